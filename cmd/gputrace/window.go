// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"

	"github.com/urfave/cli/v2"

	"github.com/gputrace/gputrace/analysis/phases"
	flags "github.com/gputrace/gputrace/cmd/gputrace/internal/cli"
	"github.com/gputrace/gputrace/cmd/gputrace/internal/gatecli"
	"github.com/gputrace/gputrace/event/moment"
	"github.com/gputrace/gputrace/export"
)

// windowFlags returns the flags of the commands that can select a part of a recording.
func windowFlags() []cli.Flag {
	return []cli.Flag{
		flags.Moment("at", "what is in use at `MOMENT`: peak, end, 12.5s, -3s, oom (default: end)"),
		flags.Moment("from", "only what was allocated after `MOMENT`"),
		flags.Moment("to", "only what was allocated up to `MOMENT`; in use is what is not freed by then"),
		flags.Count("step", "", "only what was allocated in step `N`; in use is what is not freed by its end", 1, "a step, from 1 on"),
		flags.Steps("steps", "the same for the steps `A:B`; A: ends at the last, :B begins at the first"),
		stepOnFlag(), phasesFlag(),
		flags.Bytes("min-size", "", "only blocks of at least `BYTES`, such as 1MiB", nil),
	}
}

func windowOf(c *cli.Context) (export.Window, error) {
	w := export.Window{
		At: flags.Get[moment.Moment](c, "at"), From: flags.Get[moment.Moment](c, "from"), To: flags.Get[moment.Moment](c, "to"),
		MinSize: uint64(flags.Get[int](c, "min-size")), Steps: flags.Get[moment.StepRange](c, "steps"),
	}
	if n := flags.Get[int](c, "step"); n > 0 {
		if w.Steps != (moment.StepRange{}) {
			return w, usage("--step and --steps: give only one")
		}
		w.Steps = moment.StepRange{First: n, Last: n}
	}
	return w, w.Check()
}

// stepOnFlag returns --step-on for every command that uses steps.
func stepOnFlag() cli.Flag {
	return flags.Text("step-on", "", "a step begins where `FUNCTION` is called, Python or native, such as train_step (default: detected)")
}

// ruleFlags are the values of --step-on and --phases.
type ruleFlags struct {
	stepOn string // function whose calls begin steps; empty: detected
	phases string // file of rules for phases; empty: none
}

func rulesOf(c *cli.Context) ruleFlags {
	return ruleFlags{flags.Get[string](c, "step-on"), flags.Get[string](c, "phases")}
}

// options returns the options for opening a recording.
func (r ruleFlags) options(o *export.OpenOptions) (*export.OpenOptions, error) {
	o.StepOn = r.stepOn
	if r.phases == "" {
		return o, nil
	}
	f, err := os.Open(r.phases)
	if err != nil {
		return nil, usage("--phases: %w", err)
	}
	defer f.Close()
	if o.Rules, err = phases.Read(f); err != nil {
		return nil, usage("--phases %s: %w", r.phases, err)
	}
	return o, nil
}

// open opens a recording.
func (r ruleFlags) open(path string, o *export.OpenOptions) (*export.Source, error) {
	o, err := r.options(o)
	if err != nil {
		return nil, err
	}
	return export.Open(path, o)
}

// rowsFlag returns --by for the commands that show a recording; kinds are the possible kinds of rows.
func rowsFlag(initial, usage string, kinds []string) cli.Flag {
	return flags.Choice("by", initial, usage+flags.Or(kinds), kinds)
}

// phasesFlag returns --phases for every command that uses phases.
func phasesFlag() cli.Flag {
	return flags.Text("phases", "", "rules in `FILE`, before the built-in ones, say which functions are forward, input, ...; see "+
		"docs/use/phases.md")
}

// shared returns what commands in other packages share with those here.
func shared() *gatecli.Shared {
	return &gatecli.Shared{Version: version, Flags: []cli.Flag{stepOnFlag(), phasesFlag()},
		Open: func(c *cli.Context, o *export.OpenOptions) (*export.OpenOptions, error) {
			return rulesOf(c).options(o)
		}}
}
