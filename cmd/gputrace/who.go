package main

import (
	"slices"
	"strconv"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/gputrace/gputrace/analysis/holders"
)

const (
	defaultWhoTop = 20
	// maxFreeze is how long a process may be stopped at most: a server's clients wait meanwhile.
	maxFreeze = 10 * time.Second
)

// whoOptions is a parsed who command line.
type whoOptions struct {
	pid     int
	by      holders.Grouping
	address uint64
	one     bool // address was given
	top     int  // rows; 0: all
	json    bool
	output  string        // file; empty: stdout
	force   bool          // a file of that name is replaced
	freeze  time.Duration // 0: the process is not stopped
}

func whoCommand() *cli.Command {
	return &cli.Command{
		Name:      "who",
		Usage:     "show who holds PyTorch's memory now: the variable, module, cache or graph behind each block (no probes, no pause)",
		UsageText: "gputrace who -p PID [--by owner|module|dtype|shape|category] [--address ADDR] [--top N] [--json] [-o FILE]",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "pid", Aliases: []string{"p"}, Usage: "look into process `PID`"},
			&cli.StringFlag{Name: "by", Value: holders.GroupingNames[0], Usage: "a row for each `WHAT`: " + joinOr(holders.GroupingNames)},
			&cli.StringFlag{Name: "address", Usage: "show all that is known of the block at `ADDR`, a device address"},
			&cli.StringFlag{Name: "top", Value: strconv.Itoa(defaultWhoTop), Usage: "show the `N` largest rows; 0: all"},
			&cli.BoolFlag{Name: "json", Usage: "write JSON, with every block"},
			&cli.StringFlag{Name: "output", Aliases: []string{"o"}, Usage: "write into the new `FILE` (default and -: standard output)"},
			forceFlag(),
			&cli.DurationFlag{Name: "freeze", Usage: "stop the process while its memory is copied, at most for `TIME`, such as 500ms (default: do not stop it)"},
		},
		Action: func(c *cli.Context) error {
			o, err := parseWho(c)
			if err != nil {
				return err
			}
			return showHolders(o)
		},
	}
}

func parseWho(c *cli.Context) (whoOptions, error) {
	o := whoOptions{json: c.Bool("json"), output: c.String("output"), force: c.Bool("force"), freeze: c.Duration("freeze"), one: c.IsSet("address")}
	var err error
	if o.pid, err = pidFlag(c, "gputrace who --help"); err != nil {
		return o, err
	}
	by := slices.Index(holders.GroupingNames, c.String("by"))
	if by < 0 {
		return o, usage("--by %s: not one of %s", strconv.Quote(c.String("by")), joinOr(holders.GroupingNames))
	}
	o.by = holders.Grouping(by)
	if o.one {
		if o.address, err = strconv.ParseUint(c.String("address"), 0, 64); err != nil {
			return o, usage("--address %s: not an address, such as 0x7f2a80000000", strconv.Quote(c.String("address")))
		}
	}
	if o.top, err = strconv.Atoi(c.String("top")); err != nil || o.top < 0 {
		return o, usage("--top %s: not a number of rows", strconv.Quote(c.String("top")))
	}
	if c.IsSet("freeze") && (o.freeze <= 0 || o.freeze > maxFreeze) {
		return o, usage("--freeze %s: not between 1ms and %s", o.freeze, maxFreeze)
	}
	if o.output, err = outputFile(o.output, o.force); err != nil {
		return o, err
	}
	return o, nil
}
