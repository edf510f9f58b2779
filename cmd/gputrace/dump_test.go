// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package main

import (
	"io"
	"os"
	"strings"
	"testing"

	flags "github.com/gputrace/gputrace/cmd/gputrace/internal/cli"

	"github.com/stretchr/testify/require"
	"github.com/urfave/cli/v2"

	"github.com/gputrace/gputrace/internal/exit"
)

// parseDumpLine runs a command line up to the point where a process would be looked into.
func parseDumpLine(args string) (dumpOptions, error) {
	var got dumpOptions
	app := newApp()
	app.Command("dump").Action = func(c *cli.Context) (err error) {
		got, err = parseDump(c)
		return err
	}
	app.Writer, app.ErrWriter = io.Discard, io.Discard
	ordered, err := flags.Order(app, append([]string{"gputrace", "dump"}, strings.Fields(args)...))
	if err == nil {
		err = app.Run(ordered)
	}
	return got, err
}

func TestParseDump(t *testing.T) {
	dir := t.TempDir()
	for line, want := range map[string]dumpOptions{
		"-p 42":                              {42, "text", "", false, false},
		"--pid 42 --format text":             {42, "text", "", false, false},
		"-p 42 -f json":                      {42, "json", "", false, false},
		"-p 42 --no-holders":                 {42, "text", "", false, true},
		"-p 42 -f snapshot -o -":             {42, "snapshot", "", false, false},
		"-p 42 -f snapshot -o " + dir + "/x": {42, "snapshot", dir + "/x", false, false},
		"-p 42 --output " + dir + "/x":       {42, "text", dir + "/x", false, false},
		"42":                                 {42, "text", "", false, false},
		"-p 2147483647":                      {1<<31 - 1, "text", "", false, false},
		"-p 42 --force -o " + dir + "/x":     {42, "text", dir + "/x", true, false},
	} {
		got, err := parseDumpLine(line)
		require.NoError(t, err, line)
		require.Equal(t, want, got, line)
	}
}

func TestParseDumpRefuses(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(dir+"/file", nil, 0o644))
	for line, want := range map[string]string{
		"":                            "give -p PID",
		"x42":                         `unknown argument "x42"`,
		"42 43":                       `unknown argument "43"`,
		"-p 42 43":                    `unknown argument "43"`,
		"-p 0":                        "not a process id",
		"-p 2147483648":               "not a process id",
		"-p 42 -f pickle":             `"pickle": not one of text, json or snapshot`,
		"-p 42 -f=":                   "not one of text",
		"-p 42 -o " + dir:             "exists already",
		"-p 42 -o " + dir + "/file":   "exists already",
		"-p 42 -o " + dir + "/no/dir": "its folder",
		"-p 42 --nothing":             "unknown flag --nothing",
	} {
		_, err := parseDumpLine(line)
		require.ErrorContains(t, err, want, line)
		require.Equal(t, exitUsage, exit.Code(err), line)
	}
}

// TestDumpToTerminal: a pickle on a terminal would be of no use to anyone.
func TestDumpToTerminal(t *testing.T) {
	terminal, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	require.NoError(t, err)
	defer terminal.Close()
	stdout := os.Stdout
	os.Stdout = terminal
	err = dump(dumpOptions{pid: os.Getpid(), format: "snapshot"})
	os.Stdout = stdout
	require.Equal(t, exitUsage, exit.Code(err))
	require.ErrorContains(t, err, "give -o FILE")
}

func TestJoinOr(t *testing.T) {
	require.Equal(t, "a", flags.Or([]string{"a"}))
	require.Equal(t, "a or b", flags.Or([]string{"a", "b"}))
	require.Equal(t, "a, b or c", flags.Or([]string{"a", "b", "c"}))
}
