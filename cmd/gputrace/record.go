// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"time"

	"github.com/urfave/cli/v2"

	flags "github.com/gputrace/gputrace/cmd/gputrace/internal/cli"
	"github.com/gputrace/gputrace/cmd/gputrace/internal/gatecli"
	"github.com/gputrace/gputrace/export"
	"github.com/gputrace/gputrace/internal/output"
	"github.com/gputrace/gputrace/recorder/folder"
	"github.com/gputrace/gputrace/recording"
)

// recordOptions is a parsed record command line.
type recordOptions struct {
	pid        int
	others     []int         // further processes
	name       string        // expression that selects processes; empty: none
	all        bool          // record every process that can be traced
	children   bool          // also record descendants
	command    []string      // program to start
	user       string        // user to run it as; empty: the caller of sudo, or ourselves
	env        []string      // variables added to its environment
	output     string        // folder; empty: gputrace.PID.TIME
	unnamed    bool          // we chose the name of the folder
	force      bool          // replace an existing folder of results
	duration   time.Duration // 0: until it is stopped
	untilOOM   bool
	wait       bool
	inject     bool // load a library into the process
	readyFile  string
	liveFile   string // replaced with the state twice a second; empty: none
	ringBytes  int
	maxSize    int           // of the recording, bytes; 0: no limit
	maxAge     time.Duration // how far back the recording reaches; 0: to the attach
	maxStacks  int
	cpuBudget  float64
	freeStacks bool
	fullStacks bool
	formats    string // formats beside the profiles and the recording, as given to -f; empty: none
	asked      bool   // the formats were requested with -f
	verbose    bool
	silent     bool // print no results
	asJSON     bool // print the first screen as JSON, and everything else to standard error
	noNames    bool
	noSteps    bool
	stepOn     string // function whose calls begin steps; empty: detected
	memory     string // how the program's memory is read, one of memoryModes
	cacheDir   string
	limits     *gatecli.Recording // nil: none
}

// leastTrace is the smallest size limit of a recording, bytes.
const leastTrace = recording.MinSize

func recordCommand() *cli.Command {
	return &cli.Command{
		Name:      "record",
		Usage:     "attach to a running process and record until stopped",
		UsageText: "sudo gputrace record -p PID [-d 10s] [-o FOLDER]",
		Flags: append([]cli.Flag{
			flags.PIDs("pid,p", "attach to process `PID`, or several, separated by commas or with -p before each"),
			flags.Words("name", "", "attach to each process whose command line or program name matches `REGEX`, also to those that begin later",
				nil, checkPattern),
			&cli.BoolFlag{Name: "all", Usage: "attach to each process that uses CUDA, also to those that begin to later"},
			childrenFlag(),
			&cli.BoolFlag{Name: "json", Usage: "print the first screen as JSON at the end; without a process, list those that use a GPU"},
			&cli.BoolFlag{Name: "inject", Usage: "on macOS, have the process, a Python 3.14 or later, load gputrace's library, which stays " +
				"there: it sees more than dtrace"},
			&cli.BoolFlag{Name: "wait", Usage: "when the process has no CUDA library yet, wait for it; with --name or --all, wait for a process"},
		}, recordingFlags()...),
		Action: func(c *cli.Context) error {
			o, err := parseRecord(c)
			if err != nil {
				return err
			}
			return record(o)
		},
	}
}

// recordingFlags returns the flags of every command that records.
func recordingFlags() []cli.Flag {
	return append([]cli.Flag{
		flags.Text("output,o", "", "write into the new `FOLDER` (default gputrace.PID.TIME)"),
		forceFlag(),
		flags.Words("format,f", "html", "beside the recording and the profiles, write `FORMAT`, or several, separated by commas, or none; see "+
			"gputrace export --help", append(export.Names(), noFormats), checkFormats),
		flags.Duration("duration,d", "stop after `TIME`, such as 10s, or a number of seconds (default: at Ctrl-C or when the process ends)",
			0, 0),
		&cli.BoolFlag{Name: "until-oom", Usage: "stop when a request for memory has failed and was not caught, and report why"},
		flags.Text("ready-file", "", "create `PATH` when the probes are live"),
		flags.Text("live-file", "", "replace `PATH` twice a second with the current figures, as a line of JSON"),
		flags.Bytes("ring-size", "32MiB", "`BYTES` of the ring between kernel and gputrace, a power of two", checkRing),
		flags.Bytes("max-size", "1GiB", "drop the oldest part of the recording when it has `BYTES`; 0: never", checkMaxSize),
		flags.Duration("max-age", "keep only the last `TIME` in the recording, such as 1h (default: all)", time.Second, 0),
		flags.Count("max-stacks", "65536", "keep `N` different stacks, of about 10 kB each; further ones are '[over the limit]'",
			1, "at least 1"),
		flags.Percent("cpu-budget", "0%", "leave stacks out while tracing takes more than a `PART` of one CPU, as 1%; bytes stay exact"),
		&cli.BoolFlag{Name: "free-stacks", Usage: "also capture a stack at every free (costs as much as at an allocation)"},
		&cli.BoolFlag{Name: "full-stacks", Usage: "profiles with every frame: also the interpreter's own and the allocator's"},
		&cli.BoolFlag{Name: "no-steps", Usage: "do not look for steps, or for what grows from one to the next"},
		stepOnFlag(),
		&cli.BoolFlag{Name: "no-holders", Usage: "do not look for the holders of the live blocks"},
		memoryFlag(),
		cacheFlag(),
		verboseFlag(),
	}, gatecli.RecordingFlags()...)
}

// childrenFlag returns --children, for the commands that record a running process.
func childrenFlag() cli.Flag {
	return &cli.BoolFlag{Name: "children", Usage: "trace the processes' children too, and theirs, later ones from their first " +
		"allocation"}
}

// memoryModes are the ways to read a program's memory (docs/decisions/reading-memory.md); the first is the default.
var memoryModes = []string{"auto", "copy", "in-place"}

// memoryFlag returns the flag that selects one of memoryModes, for every command that attaches.
func memoryFlag() cli.Flag {
	return flags.Choice("memory", memoryModes[0],
		"read stacks by `WAY`: in-place (faster), copy, or auto: in place if that was tested", memoryModes)
}

// cacheFlag returns the flag for the cache folder, for every command that attaches.
func cacheFlag() cli.Flag {
	return flags.Text("cache-dir", defaultCacheDir(), "keep unwind tables in `FOLDER` between runs; empty: do not")
}

// defaultCacheDir returns the default cache folder. For root it is root's own, because files of other users are not trusted.
func defaultCacheDir() string {
	if os.Geteuid() == 0 {
		return "/var/cache/gputrace"
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(dir, "gputrace")
}

func parseRecord(c *cli.Context) (recordOptions, error) {
	o := parseRecording(c)
	o.name, o.all, o.children, o.wait = flags.Get[string](c, "name"), c.Bool("all"), c.Bool("children"), c.Bool("wait")
	o.inject, o.asJSON = c.Bool("inject"), c.Bool("json")
	if o.inject && runtime.GOOS != "darwin" {
		return o, usage("--inject is for macOS: on Linux, nothing runs in the process, and all of it is traced")
	}
	pids, err := pidsOf(c)
	if err != nil {
		return o, err
	}
	if len(pids) == 0 && o.name == "" && !o.all {
		return o, usage("which process? give -p PID; see gputrace --help")
	}
	if len(pids) > 0 {
		o.pid = pids[0]
	}
	if len(pids) > 1 {
		o.others = pids[1:]
	}
	if o.limits, err = gatecli.ParseRecording(c, version); err != nil {
		return o, err
	}
	return o, o.chooseOutput()
}

// isJob reports whether there may be more than one process.
func (o *recordOptions) isJob() bool {
	return len(o.others) > 0 || o.name != "" || o.all || o.children || o.command != nil
}

// chooseOutput chooses the name of the folder of results, and checks whether it can be written.
func (o *recordOptions) chooseOutput() error {
	if o.unnamed = o.output == ""; o.unnamed {
		what := "job"
		if !o.isJob() {
			what = strconv.Itoa(o.pid)
		}
		o.output = fmt.Sprintf("gputrace.%s.%s", what, time.Now().Format("20060102-150405"))
	}
	if err := o.results().Check(); err != nil {
		return coded(exitUsage, err)
	}
	for _, path := range []string{o.readyFile, o.liveFile} {
		if _, err := output.File(path, true); err != nil {
			return err
		}
	}
	return nil
}

// results returns what is written to the folder of results.
func (o *recordOptions) results() *folder.Options {
	return &folder.Options{
		Path: o.output, Force: o.force, Next: o.unnamed, MaxSize: int64(o.maxSize), MaxAge: o.maxAge, FullStacks: o.fullStacks, Version: version,
	}
}

// pidsOf returns the processes of -p, or the number alone. It is no error if there are none.
func pidsOf(c *cli.Context) ([]int, error) {
	pids, words := flags.Get[[]int](c, "pid"), c.Args().Slice()
	if len(pids) == 0 && len(words) > 0 {
		if pid, err := flags.ParsePID(words[0]); err == nil {
			return []int{pid}, refuseWords(c, words[1:])
		}
	}
	return pids, refuseWords(c, words)
}

// parseRecording parses the flags of every command that records.
func parseRecording(c *cli.Context) recordOptions {
	o := recordOptions{
		output: flags.Get[string](c, "output"), force: c.Bool("force"), readyFile: flags.Get[string](c, "ready-file"),
		liveFile:   flags.Get[string](c, "live-file"),
		freeStacks: c.Bool("free-stacks"), fullStacks: c.Bool("full-stacks"), noNames: c.Bool("no-holders"),
		noSteps: c.Bool("no-steps"), untilOOM: c.Bool("until-oom"), stepOn: flags.Get[string](c, "step-on"),
		cacheDir: flags.Get[string](c, "cache-dir"), maxStacks: flags.Get[int](c, "max-stacks"), cpuBudget: flags.Get[float64](c, "cpu-budget"),
		duration: flags.Get[time.Duration](c, "duration"), maxAge: flags.Get[time.Duration](c, "max-age"),
		ringBytes: flags.Get[int](c, "ring-size"), maxSize: flags.Get[int](c, "max-size"),
		formats: flags.Get[string](c, "format"), asked: c.IsSet("format"), verbose: c.Bool("verbose"), memory: flags.Get[string](c, "memory"),
	}
	if o.formats == noFormats {
		o.formats = ""
	}
	return o
}

// noFormats is the value of -f for no other formats.
const noFormats = "none"

func checkFormats(list string) error {
	if list == noFormats {
		return nil
	}
	_, err := export.Find(list)
	return err
}

func checkRing(n int) error {
	if n < 4096 || n&(n-1) != 0 {
		return errors.New("not a power of two of at least 4KiB")
	}
	return nil
}

func checkMaxSize(n int) error {
	if n > 0 && n < leastTrace {
		return errors.New("not a size of at least 4MiB, or 0")
	}
	return nil
}

func checkPattern(s string) error {
	_, err := regexp.Compile(s)
	return err
}

// recordFormats returns the requested formats, except those that are always written.
func recordFormats(list string) ([]export.Format, error) {
	if list == "" {
		return nil, nil
	}
	formats, err := export.Find(list)
	return slices.DeleteFunc(formats, func(f export.Format) bool { return slices.Contains(folder.ProfileNames, f.File) }), err
}
