// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package main

import (
	"bytes"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	flags "github.com/gputrace/gputrace/cmd/gputrace/internal/cli"

	"github.com/stretchr/testify/require"
	"github.com/urfave/cli/v2"

	"github.com/gputrace/gputrace/analysis/holders"
	"github.com/gputrace/gputrace/inspect"
	scan "github.com/gputrace/gputrace/inspect/holders"
	"github.com/gputrace/gputrace/internal/exit"
	"github.com/gputrace/gputrace/process"
)

// parseWhoLine runs a command line up to the point where a process would be looked into.
func parseWhoLine(args string) (whoOptions, error) {
	var got whoOptions
	app := newApp()
	app.Command("who").Action = func(c *cli.Context) (err error) {
		got, err = parseWho(c)
		return err
	}
	app.Writer, app.ErrWriter = io.Discard, io.Discard
	ordered, err := flags.Order(app, append([]string{"gputrace", "who"}, strings.Fields(args)...))
	if err == nil {
		err = app.Run(ordered)
	}
	return got, err
}

func TestParseWho(t *testing.T) {
	dir := t.TempDir()
	for line, want := range map[string]whoOptions{
		"-p 42":                          {pids: []int{42}, top: 20},
		"--pid 42 --by owner --top 0":    {pids: []int{42}},
		"-p 42 --by module --top 5":      {pids: []int{42}, by: holders.ByModule, top: 5},
		"-p 42 --by category":            {pids: []int{42}, by: holders.ByCategory, top: 20},
		"-p 42,43 -p 44":                 {pids: []int{42, 43, 44}, top: 20},
		"-p 42 --json -o -":              {pids: []int{42}, top: 20, json: true},
		"-p 42 -o " + dir + "/x":         {pids: []int{42}, top: 20, output: dir + "/x"},
		"-p 42 --address 0":              {pids: []int{42}, top: 20, one: true},
		"-p 42 --address 0x7f2a80":       {pids: []int{42}, top: 20, one: true, address: 0x7f2a80},
		"-p 42 --address 8327808 --json": {pids: []int{42}, top: 20, one: true, address: 8327808, json: true},
		"-p 42 --freeze 10s":             {pids: []int{42}, top: 20, freeze: 10 * time.Second},
		"-p 42 --freeze=10ms":            {pids: []int{42}, top: 20, freeze: 10 * time.Millisecond},
	} {
		got, err := parseWhoLine(line)
		require.NoError(t, err, line)
		require.Equal(t, want, got, line)
	}
}

func TestParseWhoRefuses(t *testing.T) {
	dir := t.TempDir()
	for line, want := range map[string]string{
		"":                            "give -p PID, one with --address; see gputrace who --help",
		"-p 42 43":                    `unknown argument "43"`,
		"-p 0":                        "not a process id",
		"-p 42 --by name":             `"name": not one of owner, module, dtype, shape or category`,
		"-p 42 --address 0x":          "not an address",
		"-p 42 --address 1x":          "not an address",
		"-p 42 --address -1":          "not an address",
		"-p 42 --top -1":              "not a number of rows",
		"-p 42 --top many":            "not a number of rows",
		"-p 42 --freeze 0s":           "not between",
		"-p 42 --freeze 9ms":          "not between 10ms and 10s",
		"-p 42 --freeze -1s":          "not between",
		"-p 42 --freeze 10.1s":        "not between",
		"-p 42 --freeze 5":            `unknown argument "5"`,
		"-p 42 -o " + dir:             "exists already",
		"-p 42 -o " + dir + "/no/dir": "its folder",
	} {
		_, err := parseWhoLine(line)
		require.ErrorContains(t, err, want, line)
		require.Equal(t, exitUsage, exit.Code(err), line)
	}
}

// TestWhoContent: what is written, and that an address must be one of a live block.
func TestWhoContent(t *testing.T) {
	p, err := process.Open(os.Getpid())
	require.NoError(t, err)
	h := holders.New(&scan.Report{
		Devices: []scan.Device{{Active: 512}},
		Blocks:  []scan.Block{{Block: inspect.Block{Addr: 0x2000, Size: 512}, Class: "cuBLAS workspace"}},
	})
	for want, o := range map[string]whoOptions{
		"live by holder":          {},
		"live by dtype":           {by: holders.ByDType},
		`"format":"gputrace who"`: {json: true},
		"block    0x2000":         {one: true, address: 0x21ff},
	} {
		content, err := whoContent(o, p, h, time.Unix(0, 0))
		require.NoError(t, err)
		var out bytes.Buffer
		require.NoError(t, content(&out))
		require.Contains(t, out.String(), want)
	}
	_, err = whoContent(whoOptions{pids: []int{42}, one: true, address: 0x2200}, p, h, time.Unix(0, 0))
	require.ErrorContains(t, err, "not in a live block of pid 42")
}
