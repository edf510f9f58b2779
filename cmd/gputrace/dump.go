package main

import (
	"slices"
	"strconv"

	"github.com/urfave/cli/v2"
)

// dumpFormats are the forms in which a map can be written, the default first.
var dumpFormats = []string{"text", "json", "snapshot"}

// dumpOptions is a parsed dump command line.
type dumpOptions struct {
	pid    int
	format string
	output string // file; empty: stdout
	force  bool   // a file of that name is replaced
	// noNames: the holders of blocks are not looked for.
	noNames bool
}

func dumpCommand() *cli.Command {
	return &cli.Command{
		Name:      "dump",
		Usage:     "show where PyTorch's memory is now: every segment, block and hole (no probes, no pause)",
		UsageText: "gputrace dump -p PID [-f text|json|snapshot] [--no-names] [-o FILE]",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "pid", Aliases: []string{"p"}, Usage: "look into process `PID`"},
			&cli.StringFlag{Name: "format", Aliases: []string{"f"}, Value: dumpFormats[0], Usage: "`FORMAT`: text, json, or snapshot (a pickle for pytorch.org/memory_viz)"},
			&cli.StringFlag{Name: "output", Aliases: []string{"o"}, Usage: "write into the new `FILE` (default and -: standard output)"},
			forceFlag(),
			&cli.BoolFlag{Name: "no-names", Usage: "do not look for what holds each block (see gputrace who): faster"},
		},
		Action: func(c *cli.Context) error {
			o, err := parseDump(c)
			if err != nil {
				return err
			}
			return dump(o)
		},
	}
}

func parseDump(c *cli.Context) (dumpOptions, error) {
	o := dumpOptions{format: c.String("format"), output: c.String("output"), force: c.Bool("force"), noNames: c.Bool("no-names")}
	var err error
	if o.pid, err = pidFlag(c, "gputrace dump --help"); err != nil {
		return o, err
	}
	if !slices.Contains(dumpFormats, o.format) {
		return o, usage("-f %s: not one of %s", strconv.Quote(o.format), joinOr(dumpFormats))
	}
	if o.output, err = outputFile(o.output, o.force); err != nil {
		return o, err
	}
	return o, nil
}

// joinOr is "a, b or c".
func joinOr(words []string) string {
	out := words[0]
	for i, w := range words[1:] {
		if i+2 == len(words) {
			out += " or " + w
		} else {
			out += ", " + w
		}
	}
	return out
}
