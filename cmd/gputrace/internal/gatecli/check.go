// SPDX-License-Identifier: Apache-2.0

// Package gatecli has commands about limits, settings and totals (check, oom, summary, fragments, whatif), and the rules and alerts of a
// recording. It parses, calls and prints, as cmd/gputrace does.
package gatecli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/urfave/cli/v2"

	"github.com/gputrace/gputrace/analysis/gate"
	flags "github.com/gputrace/gputrace/cmd/gputrace/internal/cli"
	"github.com/gputrace/gputrace/cmd/gputrace/internal/console"
	"github.com/gputrace/gputrace/cmd/gputrace/internal/progress"
	"github.com/gputrace/gputrace/export"
	"github.com/gputrace/gputrace/export/checks"
	"github.com/gputrace/gputrace/internal/exit"
	"github.com/gputrace/gputrace/internal/output"
	"github.com/gputrace/gputrace/recorder"
	"github.com/gputrace/gputrace/recorder/folder"
)

// Shared is what all commands have in common.
type Shared struct {
	Version string // of gputrace
	// Flags are --step-on and --phases, and Open says what they ask for to those who open a recording.
	Flags []cli.Flag
	Open  func(c *cli.Context, o *export.OpenOptions) (*export.OpenOptions, error)
}

// Read opens a recording, with a line that shows how far the reading is, and has it used. Before use prints, it calls stop.
func (s *Shared) Read(c *cli.Context, path string, use func(in *export.Source, stop func()) error) error {
	p := progress.New(os.Stderr)
	defer p.Stop()
	o, err := s.Open(c, p.Options(p.Warn))
	if err != nil {
		return err
	}
	in, err := export.Open(path, o)
	if err != nil {
		return err
	}
	defer in.Close()
	return use(in, p.Stop)
}

// ReadJob reads the recordings of a job with the options of a command. Progress is shown until it is done.
func (s *Shared) ReadJob(c *cli.Context, read func(o *export.OpenOptions) error) error {
	p := progress.New(os.Stderr)
	defer p.Stop()
	o, err := s.Open(c, p.Options(p.Warn))
	if err != nil {
		return err
	}
	return read(o)
}

// usage and coded are errors with their exit codes.
var (
	usage = exit.Usage
	coded = exit.With
)

// checkOptions are the rules of a check, and where its outcome goes.
type checkOptions struct {
	in     checks.Input
	asJSON bool
	junit  string // file; empty: none
	stepOn string // of a recording
}

// smallestBlock is the least that PyTorch's caching allocator hands out, bytes.
const smallestBlock = 512

// noUnit refuses a peak that no program keeps below: its unit is missing.
func noUnit(n int) error {
	if n > 0 && n < smallestBlock {
		return fmt.Errorf("%d B is less than any program uses; give a unit, such as %dGiB", n, n)
	}
	return nil
}

// gateFlags are the rules of a check.
func gateFlags() []cli.Flag {
	return []cli.Flag{
		flags.Bytes("max-peak", "", "check: no device's peak is more than `BYTES`, such as 10GiB", noUnit),
		flags.Bytes("max-growth-per-step", "", "check: memory grows by no more than `BYTES` each step, such as 0", nil),
		&cli.BoolFlag{Name: "no-leaks", Usage: "check: nothing grows from step to step, except too slowly to matter"},
		flags.Bytes("leak-tolerance", "", "with --no-leaks, a line may grow by `BYTES` each step, such as 0; else by an amount that takes "+
			"over 30 days to fill the device", nil),
		&cli.BoolFlag{Name: "no-oom", Usage: "check: no request is refused"},
		flags.Text("baseline", "", "check: at the peak no line and no category has more than in `FILE`, a recording or a profile"),
		flags.Percent("tolerance", "5%", "with --baseline, allow `PART` more than the baseline has"),
		flags.Text("junit", "", "write the result of each rule to `FILE`, which is replaced, in JUnit's format"),
	}
}

// CheckCommand is gputrace check.
func CheckCommand(shared *Shared) *cli.Command {
	return &cli.Command{
		Name:      "check",
		Usage:     "check recordings against limits, for CI",
		UsageText: "gputrace check FOLDER... --max-peak 10GiB --no-leaks --no-oom [--baseline FILE] [--junit FILE] [--json]",
		Description: "The exit code is 4 when a rule is not met, or could not be judged. In a job's folder each process is checked. " +
			"docs/use/check.md explains the rules.",
		Flags: append(append(gateFlags(), &cli.BoolFlag{Name: "json", Usage: "print JSON"}, &cli.BoolFlag{Name: "force", Hidden: true}),
			shared.Flags...),
		Action: func(c *cli.Context) error {
			o, err := parseCheck(c, shared.Version)
			switch {
			case err != nil:
				return err
			case c.NArg() == 0:
				return usage("which recording? give one file or more; see gputrace check --help")
			case !o.in.Rules.Any():
				return usage("which rules? give --max-peak, --no-leaks or others; see gputrace check --help")
			}
			o.in.Paths, o.asJSON = c.Args().Slice(), c.Bool("json")
			p := progress.New(os.Stderr)
			defer p.Stop()
			if o.in.Open, err = shared.Open(c, p.Options(p.Warn)); err != nil {
				return err
			}
			done, err := checks.Check(&o.in)
			p.Stop()
			if err != nil {
				return err
			}
			return o.finish(os.Stdout, done)
		},
	}
}

// parseCheck reads the rules.
func parseCheck(c *cli.Context, version string) (*checkOptions, error) {
	path := flags.Get[string](c, "baseline")
	o := &checkOptions{in: checks.Input{
		BaselinePath: path, Version: version,
		Rules: gate.Rules{NoLeaks: c.Bool("no-leaks"), NoOOM: c.Bool("no-oom"), Baseline: path != "",
			Tolerance: flags.Get[float64](c, "tolerance")},
	}}
	if c.IsSet("max-peak") {
		n := uint64(flags.Get[int](c, "max-peak"))
		o.in.Rules.MaxPeak = &n
	}
	if c.IsSet("max-growth-per-step") {
		n := float64(flags.Get[int](c, "max-growth-per-step"))
		o.in.Rules.MaxGrowth = &n
	}
	if c.IsSet("leak-tolerance") {
		if !o.in.Rules.NoLeaks {
			return nil, usage("--leak-tolerance needs --no-leaks: give it too")
		}
		n := float64(flags.Get[int](c, "leak-tolerance"))
		o.in.Rules.LeakTolerance = &n
	}
	if c.IsSet("tolerance") && path == "" {
		return nil, usage("--tolerance needs --baseline: give it too")
	}
	var err error
	o.junit, err = output.File(flags.Get[string](c, "junit"), true) // the next run of a CI job finds that of the last
	return o, err
}

// finish prints a check and says by its exit code whether all rules are met.
func (o *checkOptions) finish(w io.Writer, done *gate.Check) error {
	if err := checks.Write(w, done, o.asJSON, console.Width("")); err != nil {
		return err
	}
	if o.junit != "" {
		if err := output.Write(o.junit, true, false, func(w io.Writer) error { return checks.WriteJUnit(w, done) }); err != nil {
			return err
		}
	}
	if !done.Passed() {
		return coded(exit.Gate, errors.New(""))
	}
	return nil
}

// afterRecording checks what was recorded, and the exit code of a program that was started. An error of the recording stays; that a
// program used no GPU memory is for the rules to say.
func (o *checkOptions) afterRecording(r *recorder.Recorder, results *folder.Results, out io.Writer, err error) error {
	code, started := r.Wait()
	if err != nil && !(started && errors.Is(err, recorder.ErrEndedEarly)) {
		return err
	}
	for _, p := range withFiles(results) {
		o.in.Paths = append(o.in.Paths, filepath.Dir(p.File()))
	}
	p := progress.New(os.Stderr)
	o.in.Open = p.Options(p.Warn)
	o.in.Open.StepOn = o.stepOn
	done, err := checks.Check(&o.in)
	p.Stop()
	if err != nil {
		return err
	}
	if started {
		const program = "the program"
		if len(o.in.Paths) == 0 {
			done.Reports = append(done.Reports, gate.NotRecorded(&o.in.Rules, program))
		}
		done.Reports = append(done.Reports, gate.Report{Name: program, Results: []gate.Result{gate.OfCommand(code)}})
	}
	return o.finish(out, done)
}

// withFiles are the processes of which there is a recording.
func withFiles(results *folder.Results) []*folder.Process {
	var out []*folder.Process
	if results == nil {
		return nil
	}
	for _, p := range results.Processes() {
		if p.File() != "" {
			out = append(out, p)
		}
	}
	return out
}
