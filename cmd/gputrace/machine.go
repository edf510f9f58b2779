// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"os"
	"slices"

	"github.com/urfave/cli/v2"

	"github.com/gputrace/gputrace/cmd/gputrace/internal/advice"
	"github.com/gputrace/gputrace/cmd/gputrace/internal/console"
	"github.com/gputrace/gputrace/cmd/gputrace/internal/progress"
	"github.com/gputrace/gputrace/export/json"
	"github.com/gputrace/gputrace/export/processes"
	"github.com/gputrace/gputrace/recorder/local"
)

// asksForList reports whether a command line without a command names nothing to record.
func asksForList(c *cli.Context) bool {
	return c.NArg() == 0 && !slices.ContainsFunc(c.LocalFlagNames(), func(name string) bool {
		return name != "json" && name != "verbose" &&
			name != "v"
	})
}

// listProcesses lists the processes that use a GPU.
func listProcesses(asJSON bool) error {
	done := progress.Doing(os.Stderr, "looking for processes that use a GPU, Ctrl-C ends it")
	r, err := local.Survey(context.Background())
	done()
	if err != nil {
		return err
	}
	if asJSON {
		err = json.WriteMachine(os.Stdout, r)
	} else {
		sudo, lines := advice.Machine()
		err = processes.Write(os.Stdout, &processes.Input{Report: r, Width: console.Width(""), Sudo: sudo, Advice: lines})
	}
	if err == nil && len(r.Processes) == 0 {
		return coded(exitNothing, errors.New(""))
	}
	return err
}
