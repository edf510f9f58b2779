package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/gputrace/gputrace/recording"
)

// recordOptions is a parsed record command line.
type recordOptions struct {
	pid        int
	others     []int         // further processes
	name       string        // expression for processes; empty: none
	all        bool          // every process that can be traced
	children   bool          // the descendants too
	command    []string      // to start
	output     string        // folder; empty: gputrace.PID.TIME
	force      bool          // a folder of results of that name is replaced
	duration   time.Duration // 0: until it is stopped
	wait       bool
	readyFile  string
	ringBytes  int
	maxSize    int           // of the recording, bytes; 0: no limit
	maxAge     time.Duration // that the recording reaches back; 0: to the attach
	maxStacks  int
	freeStacks bool
	fullStacks bool
	formats    string // beside the profiles and the recording, as of -f; empty: none
	asked      bool   // for the formats, by -f
	noNames    bool
	memory     string // how the program's is read, one of memoryModes
	cacheDir   string
}

// leastTrace is the least size at which a recording can be bounded, bytes.
const leastTrace = recording.MinSize

func recordCommand() *cli.Command {
	return &cli.Command{
		Name:      "record",
		Usage:     "attach to a running process, record until stopped, write profiles",
		UsageText: "sudo gputrace record -p PID [-d 10s] [-o FOLDER]",
		Flags: append([]cli.Flag{
			&cli.StringSliceFlag{Name: "pid", Aliases: []string{"p"}, Usage: "attach to process `PID`, or several, separated by commas or with -p before each"},
			&cli.StringFlag{Name: "name", Usage: "attach to each process whose command line or program name matches `REGEX`, also to those that begin later"},
			&cli.BoolFlag{Name: "all", Usage: "attach to each process that uses CUDA, also to those that begin to"},
			&cli.BoolFlag{Name: "children", Usage: "trace the children of the processes too, and theirs, those to come from their first allocation"},
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

// recordingFlags are those of every command that records.
func recordingFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "output", Aliases: []string{"o"}, Usage: "write into the new `FOLDER` (default gputrace.PID.TIME)"},
		forceFlag(),
		&cli.StringFlag{Name: "format", Aliases: []string{"f"}, Value: "html", Usage: "write `FORMAT` too, or several, separated by commas, or none; see gputrace export --help"},
		&cli.StringFlag{Name: "duration", Aliases: []string{"d"}, Usage: "stop after `TIME`, such as 10s, or a number of seconds (default: at Ctrl-C or when the process ends)"},
		&cli.StringFlag{Name: "ready-file", Usage: "create `PATH` when the probes are live"},
		&cli.StringFlag{Name: "ring-size", Value: "32MiB", Usage: "`BYTES` of the ring between kernel and gputrace, a power of two"},
		&cli.StringFlag{Name: "max-size", Value: "1GiB", Usage: "drop the oldest part of the recording when it has `BYTES`; 0: never"},
		&cli.StringFlag{Name: "max-age", Usage: "keep only the last `TIME` in the recording, such as 1h (default: all)"},
		&cli.IntFlag{Name: "max-stacks", Value: 65536, Usage: "keep `N` different stacks, of about 10 kB each; what comes beyond is counted as [over the limit]"},
		&cli.BoolFlag{Name: "free-stacks", Usage: "also capture a stack at every free (costs as much as at an allocation)"},
		&cli.BoolFlag{Name: "full-stacks", Usage: "profiles with every frame: also the interpreter's own and the allocator's"},
		&cli.BoolFlag{Name: "no-names", Usage: "do not read from the process's memory who holds the live blocks"},
		memoryFlag(),
		&cli.StringFlag{Name: "cache-dir", Value: defaultCacheDir(), Usage: "keep unwind tables in `FOLDER` between runs; empty: do not"},
	}
}

// memoryModes are the ways of reading a program's memory (docs/reading-memory.md); the first is the default.
var memoryModes = []string{"auto", "copy", "in-place"}

// memoryFlag is of every command that attaches.
func memoryFlag() cli.Flag {
	return &cli.StringFlag{Name: "memory", Value: memoryModes[0], Usage: "read stacks by `WAY`: in-place, which is faster, copy, or auto: in place where that is tested"}
}

// parseMemory reads it.
func parseMemory(c *cli.Context) (string, error) {
	mode := c.String("memory")
	if !slices.Contains(memoryModes, mode) {
		return "", usage("--memory %s: not %s", strconv.Quote(mode), joinOr(memoryModes))
	}
	return mode, nil
}

// defaultCacheDir is root's own when root runs us: files of other users are not trusted.
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
	o, err := parseRecording(c)
	if err != nil {
		return o, err
	}
	o.name, o.all, o.children, o.wait = c.String("name"), c.Bool("all"), c.Bool("children"), c.Bool("wait")
	if _, err := regexp.Compile(o.name); err != nil {
		return o, usage("--name: %w", err)
	}
	pids, err := pidsFlag(c)
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
	return o, o.chooseOutput()
}

// isJob reports whether there may be more than one process.
func (o *recordOptions) isJob() bool {
	return len(o.others) > 0 || o.name != "" || o.all || o.children || o.command != nil
}

// chooseOutput names the folder of results, and says whether it could be written.
func (o *recordOptions) chooseOutput() error {
	if o.output == "" {
		what := "job"
		if !o.isJob() {
			what = strconv.Itoa(o.pid)
		}
		o.output = fmt.Sprintf("gputrace.%s.%s", what, time.Now().Format("20060102-150405"))
	}
	if err := checkFolder(o.output, o.force); err != nil {
		return coded(exitUsage, err)
	}
	return nil
}

// pidsFlag reads the processes: -p PID as often as one likes, with commas in between too, or a number alone. None is no error.
func pidsFlag(c *cli.Context) ([]int, error) {
	texts, words := c.StringSlice("pid"), c.Args().Slice()
	if len(texts) == 0 && len(words) > 0 && isNumber(words[0]) {
		texts, words = words[:1], words[1:]
	}
	if len(words) > 0 {
		return nil, usage("unknown argument %q; see gputrace --help", words[0])
	}
	var out []int
	for _, text := range texts {
		pid, err := strconv.ParseInt(text, 10, 32)
		if err != nil || pid <= 0 {
			return nil, usage("-p %s: not a process id", strconv.Quote(text))
		}
		if !slices.Contains(out, int(pid)) {
			out = append(out, int(pid))
		}
	}
	return out, nil
}

// parseRecording reads the flags of every command that records.
func parseRecording(c *cli.Context) (recordOptions, error) {
	o := recordOptions{
		output: c.String("output"), force: c.Bool("force"), readyFile: c.String("ready-file"),
		freeStacks: c.Bool("free-stacks"), fullStacks: c.Bool("full-stacks"), noNames: c.Bool("no-names"),
		cacheDir: c.String("cache-dir"), maxStacks: c.Int("max-stacks"),
	}
	var err error
	if o.duration, err = durationFlag(c, "duration"); err != nil {
		return o, err
	}
	if o.maxAge, err = durationFlag(c, "max-age"); err != nil {
		return o, err
	}
	if o.formats = c.String("format"); o.formats == "none" {
		o.formats = ""
	}
	o.asked = c.IsSet("format")
	if _, err := recordFormats(o.formats); err != nil {
		return o, err
	}
	if o.ringBytes, err = parseBytes(c.String("ring-size")); err != nil || o.ringBytes < 4096 || o.ringBytes&(o.ringBytes-1) != 0 {
		return o, usage("--ring-size %s: not a power of two of at least 4KiB", c.String("ring-size"))
	}
	if o.maxSize, err = parseBytes(c.String("max-size")); err != nil || o.maxSize > 0 && o.maxSize < leastTrace {
		return o, usage("--max-size %s: not a size of at least 4MiB, or 0", c.String("max-size"))
	}
	if o.memory, err = parseMemory(c); err != nil {
		return o, err
	}
	if o.maxStacks < 1 {
		return o, usage("--max-stacks %d: not a number of at least 1", o.maxStacks)
	}
	if o.maxAge > 0 && o.maxAge < time.Second {
		return o, usage("--max-age %s: not a time of at least 1s, or 0", o.maxAge)
	}
	return o, nil
}

// durationFlag reads a flag that says how long; 0: it was not given.
func durationFlag(c *cli.Context, name string) (time.Duration, error) {
	text := c.String(name)
	if text == "" {
		return 0, nil
	}
	d, err := parseOffset(text)
	if err != nil || d < 0 {
		return 0, usage("--%s %s: not a time, such as 10s; see %s --help", name, strconv.Quote(text), c.Command.HelpName)
	}
	return d, nil
}

// recordFormats are the formats that are not written anyhow.
func recordFormats(list string) ([]exportFormat, error) {
	if list == "" {
		return nil, nil
	}
	formats, err := findFormats(list)
	return slices.DeleteFunc(formats, func(f exportFormat) bool { return slices.Contains(profileNames, f.file) }), err
}

// parseBytes reads a number with an optional binary unit: 65536, 64KiB, 32MiB.
func parseBytes(s string) (int, error) {
	units := []struct {
		suffix string
		shift  uint
	}{{"KiB", 10}, {"MiB", 20}, {"GiB", 30}, {"", 0}}
	for _, u := range units {
		n := len(s) - len(u.suffix)
		if n < 0 || s[n:] != u.suffix {
			continue
		}
		v, err := strconv.ParseUint(s[:n], 10, 30)
		if err != nil {
			return 0, fmt.Errorf("%q is not a size", s)
		}
		return int(v << u.shift), nil
	}
	return 0, fmt.Errorf("%q is not a size", s)
}
