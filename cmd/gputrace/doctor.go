package main

import (
	"time"

	"github.com/urfave/cli/v2"
)

// doctorOptions is a parsed doctor command line.
type doctorOptions struct {
	pid      int           // 0: none
	duration time.Duration // that calls are counted
	json     bool
	memory   string // how it is read, one of memoryModes
	cacheDir string
}

// maxCounting is how long doctor may count calls at most.
const maxCounting = time.Minute

func doctorCommand() *cli.Command {
	return &cli.Command{
		Name:      "doctor",
		Usage:     "say whether tracing works here, and what to do when it does not",
		UsageText: "gputrace doctor [-p PID] [-d 1s] [--json]",
		Description: "Asks the kernel for what tracing uses, looks at our rights, and attaches a probe to a function of our own. With -p it also\n" +
			"looks at the process, and attaches to it for a moment. The last line is the verdict. The exit code is 0 when tracing will\n" +
			"work, 1 when it will not.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "pid", Aliases: []string{"p"}, Usage: "look at process `PID` too"},
			&cli.StringFlag{Name: "duration", Aliases: []string{"d"}, Usage: "count the process's calls for `TIME` (default 1s)"},
			&cli.BoolFlag{Name: "json", Usage: "write JSON, with the names of all functions"},
			memoryFlag(),
			&cli.StringFlag{Name: "cache-dir", Value: defaultCacheDir(), Usage: "keep unwind tables in `FOLDER` between runs; empty: do not"},
		},
		Action: func(c *cli.Context) error {
			o, err := parseDoctor(c)
			if err != nil {
				return err
			}
			return examine(o)
		},
	}
}

func parseDoctor(c *cli.Context) (doctorOptions, error) {
	o := doctorOptions{json: c.Bool("json"), cacheDir: c.String("cache-dir")}
	var err error
	if c.String("pid") != "" || c.NArg() > 0 {
		if o.pid, err = pidFlag(c, "gputrace doctor --help"); err != nil {
			return o, err
		}
	}
	if o.duration, err = durationFlag(c, "duration"); err != nil {
		return o, err
	}
	if o.memory, err = parseMemory(c); err != nil {
		return o, err
	}
	if o.duration > maxCounting {
		return o, usage("--duration %s: more than %s", c.String("duration"), maxCounting)
	}
	return o, nil
}
