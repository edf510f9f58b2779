// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	flags "github.com/gputrace/gputrace/cmd/gputrace/internal/cli"

	"github.com/stretchr/testify/require"

	"github.com/urfave/cli/v2"

	"github.com/gputrace/gputrace/internal/exit"
)

// parse runs the command line up to the point where a recording would begin.
func parse(args string) (recordOptions, error) {
	var got recordOptions
	only := func(c *cli.Context) (err error) {
		got, err = parseRecord(c)
		return err
	}
	app := newApp()
	app.Action, app.Commands[0].Action = only, only
	app.Writer, app.ErrWriter = &strings.Builder{}, &strings.Builder{}
	ordered, err := flags.Order(app, append([]string{"gputrace"}, strings.Fields(args)...))
	if err == nil {
		err = app.Run(ordered)
	}
	return got, err
}

func TestParseRecord(t *testing.T) {
	dir := t.TempDir()
	plain := func(change func(*recordOptions)) recordOptions {
		o := recordOptions{pid: 42, output: dir + "/out", ringBytes: 32 << 20, formats: "html", maxSize: 1 << 30, maxStacks: 65536,
			memory: "auto", cacheDir: defaultCacheDir()}
		change(&o)
		return o
	}
	for flags, want := range map[string]recordOptions{
		"":                       plain(func(*recordOptions) {}),
		"-d 10s":                 plain(func(o *recordOptions) { o.duration = 10 * time.Second }),
		"--duration 1m30s":       plain(func(o *recordOptions) { o.duration = 90 * time.Second }),
		"-d 10":                  plain(func(o *recordOptions) { o.duration = 10 * time.Second }),
		"--wait":                 plain(func(o *recordOptions) { o.wait = true }),
		"--ready-file /tmp/r":    plain(func(o *recordOptions) { o.readyFile = "/tmp/r" }),
		"--live-file /tmp/l":     plain(func(o *recordOptions) { o.liveFile = "/tmp/l" }),
		"--ring-size 4096":       plain(func(o *recordOptions) { o.ringBytes = 4096 }),
		"--ring-size 64KiB":      plain(func(o *recordOptions) { o.ringBytes = 64 << 10 }),
		"--ring-size 1GiB":       plain(func(o *recordOptions) { o.ringBytes = 1 << 30 }),
		"--max-stacks 1":         plain(func(o *recordOptions) { o.maxStacks = 1 }),
		"--cpu-budget 2.5%":      plain(func(o *recordOptions) { o.cpuBudget = 0.025 }),
		"--max-size 0":           plain(func(o *recordOptions) { o.maxSize = 0 }),
		"--max-size 4MiB":        plain(func(o *recordOptions) { o.maxSize = 4 << 20 }),
		"--max-size 64GiB":       plain(func(o *recordOptions) { o.maxSize = 64 << 30 }),
		"--max-age 1h":           plain(func(o *recordOptions) { o.maxAge = time.Hour }),
		"--max-age 1s":           plain(func(o *recordOptions) { o.maxAge = time.Second }),
		"-f png,folded":          plain(func(o *recordOptions) { o.formats, o.asked = "png,folded", true }),
		"--format none":          plain(func(o *recordOptions) { o.formats, o.asked = "", true }),
		"--memory copy":          plain(func(o *recordOptions) { o.memory = "copy" }),
		"--memory in-place":      plain(func(o *recordOptions) { o.memory = "in-place" }),
		"--memory=auto":          plain(func(*recordOptions) {}),
		"--force":                plain(func(o *recordOptions) { o.force = true }),
		"--free-stacks":          plain(func(o *recordOptions) { o.freeStacks = true }),
		"--full-stacks":          plain(func(o *recordOptions) { o.fullStacks = true }),
		"--cache-dir /var/x":     plain(func(o *recordOptions) { o.cacheDir = "/var/x" }),
		"--cache-dir=":           plain(func(o *recordOptions) { o.cacheDir = "" }),
		"--wait --full-stacks":   plain(func(o *recordOptions) { o.wait, o.fullStacks = true, true }),
		"--pid 43":               plain(func(o *recordOptions) { o.pid = 43 }),
		"-p 43 -p 44,45":         plain(func(o *recordOptions) { o.pid, o.others = 43, []int{44, 45} }),
		"-p 43,43":               plain(func(o *recordOptions) { o.pid = 43 }),
		"--children":             plain(func(o *recordOptions) { o.children = true }),
		"-p 43 --name train":     plain(func(o *recordOptions) { o.pid, o.name = 43, "train" }),
		"--all":                  plain(func(o *recordOptions) { o.all = true }),
		"-p 2147483647":          plain(func(o *recordOptions) { o.pid = 1<<31 - 1 }),
		"--output " + dir + "/o": plain(func(o *recordOptions) { o.output = dir + "/o" }),
	} {
		for _, command := range []string{"", "record "} { // the same twice: record is what the bare command does
			line := command + "-p 42 -o " + dir + "/out " + flags
			if strings.Contains(flags, "pid") || strings.HasPrefix(flags, "-p") {
				line = command + flags + " -o " + dir + "/out"
			}
			if strings.Contains(flags, "output") {
				line = command + "-p 42 " + flags
			}
			got, err := parse(line)
			require.NoError(t, err, line)
			require.Equal(t, want, got, line)
		}
	}
}

func TestDefaultOutput(t *testing.T) {
	t.Chdir(t.TempDir())
	got, err := parse("-p 42")
	require.NoError(t, err)
	require.Regexp(t, regexp.MustCompile(`^gputrace\.42\.\d{8}-\d{6}$`), got.output)
}

func TestParseRecordRefuses(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(dir+"/file", nil, 0o644))
	for line, want := range map[string]string{
		"":                           "give -p PID",
		"record":                     "give -p PID",
		"-p 42 --inject":             "--inject is for macOS",
		"-p":                         "needs a value",
		"-p x":                       `--pid "x": not a process id`,
		"-p 0":                       "not a process id",
		"-p -1":                      "not a process id",
		"-p 1.5":                     "not a process id",
		"-p 2147483648":              "not a process id",
		"-p 99999999999999999999":    "not a process id",
		"-p 42,x":                    "not a process id",
		"-p 42 --name (":             "error parsing regexp",
		"-p 42 extra":                `unknown argument "extra"`,
		"train.py":                   `unknown argument "train.py"`,
		"-p 42 -d -1s":               "not a time",
		"-p 42 -d soon":              "not a time",
		"-p 42 --memory no":          `--memory "no": not one of auto, copy or in-place`,
		"-p 42 --memory=":            `--memory "": not one of auto`,
		"-p 42 --ring-size 0":        "not a power of two",
		"-p 42 --ring-size 2048":     "not a power of two",
		"-p 42 --ring-size 5000":     "not a power of two",
		"-p 42 --ring-size 12MiB":    "not a power of two",
		"-p 42 --ring-size 2MB":      "not a size",
		"-p 42 --ring-size x":        "not a size",
		"-p 42 --ring-size -4096":    "not a size",
		"-p 42 --max-size 4194303":   "at least 4MiB",
		"-p 42 --max-stacks 0":       "at least 1",
		"-p 42 --max-stacks x":       "not a number",
		"-p 42 --max-size x":         "not a size",
		"-p 42 --max-age 999ms":      "at least 1s",
		"-p 42 --max-age -1s":        "not a time",
		"-p 42 --nothing":            "unknown flag --nothing",
		"record -p 42 --nothing":     "unknown flag --nothing",
		"-p 42 -o " + dir:            "exists already",
		"-p 42 -o " + dir + "/file":  "exists already",
		"-p 42 -o " + dir + "/a/b":   "its folder",
		"-p 42 -o " + dir + "/file/": "output",
	} {
		_, err := parse(line)
		require.ErrorContains(t, err, want, line)
		require.Equal(t, exitUsage, exit.Code(err), line)
	}
}

// TestParseRun: what is behind -- is the program's, also what looks like flags of ours.
func TestParseRun(t *testing.T) {
	dir := t.TempDir()
	var got recordOptions
	app := newApp()
	run := app.Command("run")
	run.Action = func(c *cli.Context) (err error) {
		got, err = parseRun(c)
		return err
	}
	line := "gputrace run -d 10s -o " + dir + "/out -- python -p 7 train.py --wait -- x"
	args, err := flags.Order(app, strings.Fields(line))
	require.NoError(t, err)
	require.NoError(t, app.Run(args))
	require.Equal(t, []string{"python", "-p", "7", "train.py", "--wait", "--", "x"}, got.command)
	require.Equal(t, 10*time.Second, got.duration)
	require.True(t, got.children)
	require.True(t, got.isJob())
	require.Zero(t, got.pid)

	args, err = flags.Order(app, strings.Fields("gputrace run -d 10s"))
	require.NoError(t, err)
	requireUsage(t, app.Run(args), "which program?")
}

// TestParseRecordNumber: a number alone is a process, wherever the flags stand.
func TestParseRecordNumber(t *testing.T) {
	for _, line := range []string{"42", "42 --wait", "--wait 42", "record 42", "record --wait 42", "-p 42"} {
		args, err := flags.Order(newApp(), append([]string{"gputrace"}, strings.Fields(line)...))
		require.NoError(t, err, line)
		o, err := parse(strings.Join(args[1:], " "))
		require.NoError(t, err, line)
		require.Equal(t, 42, o.pid, line)
		require.Equal(t, strings.Contains(line, "--wait"), o.wait, line)
	}
	for _, line := range []string{"42 43", "-p 42 43", "record 42 x"} {
		args, err := flags.Order(newApp(), append([]string{"gputrace"}, strings.Fields(line)...))
		require.NoError(t, err, line)
		_, err = parse(strings.Join(args[1:], " "))
		requireUsage(t, err, "unknown argument")
	}
}

// TestRunExitCodes goes through the whole command line, for what ends before any process is looked at.
func TestRunExitCodes(t *testing.T) {
	for line, want := range map[string]int{
		"--help": exitOK, "-h": exitOK, "--version": exitOK, "record --help": exitOK, "report --help": exitOK,
		"--wait": exitUsage, "-p x": exitUsage, "--nothing": exitUsage, "record --nothing": exitUsage, "nothing": exitUsage,
		"report": exitUsage, "report a b": exitError, "report a --json": exitError, "report --nothing": exitUsage, "report /none": exitError,
		"report /dev/null":      exitInvalid,
		"report record_test.go": exitInvalid,
	} {
		out, err := os.CreateTemp(t.TempDir(), "out")
		require.NoError(t, err)
		stdout, stderr := os.Stdout, os.Stderr
		os.Stdout, os.Stderr = out, out
		got := run(append([]string{"gputrace"}, strings.Fields(line)...))
		os.Stdout, os.Stderr = stdout, stderr
		require.Equal(t, want, got, "gputrace %s", line)
		text, err := os.ReadFile(out.Name())
		require.NoError(t, err)
		require.NotEmpty(t, text, "gputrace %s says nothing", line)
	}
}

// TestExitCodesAreFixed holds what scripts rely on.
func TestExitCodesAreFixed(t *testing.T) {
	require.Equal(t, []int{0, 1, 2, 5, 6, 7, 8, 130},
		[]int{exitOK, exitError, exitUsage, exitInvalid, exitNotPermitted, exitNothing, exitTargetEnded, exitInterrupted})
}

func TestCodedError(t *testing.T) {
	cause := errors.New("cause")
	err := coded(exitNothing, cause)
	require.ErrorIs(t, err, cause)
	require.Equal(t, "cause", err.Error())
}

func TestDefaultCacheDir(t *testing.T) {
	if os.Geteuid() == 0 {
		require.Equal(t, "/var/cache/gputrace", defaultCacheDir())
		return
	}
	t.Setenv("XDG_CACHE_HOME", "/home/x/.cache")
	require.Equal(t, filepath.Join("/home/x/.cache", "gputrace"), defaultCacheDir())
}
