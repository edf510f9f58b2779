// SPDX-License-Identifier: Apache-2.0

package gatecli

import (
	"io"
	"os"

	"github.com/urfave/cli/v2"

	"github.com/gputrace/gputrace/export"
	"github.com/gputrace/gputrace/recorder/folder"
)

// Brief is gputrace report --brief: the verdict on a recording, or on the processes of a job. selected reports that a moment, a range or
// rows were chosen, of which there is no verdict.
func Brief(c *cli.Context, shared *Shared, selected bool) error {
	if selected {
		return usage("--brief is for a whole recording: give it without a moment, a range or --by")
	}
	paths, asJSON := recordingsOf(c.Args().Slice()), c.Bool("json")
	if len(paths) > 1 {
		return shared.ReadJob(c, func(o *export.OpenOptions) error { return export.WriteBriefOfJob(os.Stdout, paths, o, asJSON) })
	}
	return shared.Read(c, paths[0], func(in *export.Source, stop func()) error {
		if _, err := in.Answer(); err != nil {
			return err
		}
		stop()
		return in.WriteBrief(os.Stdout, asJSON)
	})
}

// PrintResults writes the first screen of what was recorded as JSON, as Brief does; nothing if nothing was recorded.
func PrintResults(w io.Writer, results *folder.Results, stepOn string) error {
	var paths []string
	for _, p := range withFiles(results) {
		paths = append(paths, p.File())
	}
	o := &export.OpenOptions{StepOn: stepOn}
	switch len(paths) {
	case 0:
		return nil
	case 1:
		in, err := export.Open(paths[0], o)
		if err != nil {
			return err
		}
		defer in.Close()
		return in.WriteBrief(w, true)
	}
	return export.WriteBriefOfJob(w, paths, o, true)
}
