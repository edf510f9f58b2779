// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package measure

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/gputrace/gputrace/tracer"
)

// workload is a program to measure.
type workload struct {
	name     string
	title    string
	training bool
	threads  int    // that hit the probe at once, in a table of their own; 0: it is as it is
	modes    []mode // in place of those of all, the untraced one first; nil: those
	mean     bool   // a window's figure is the mean of its samples: steps that only hand work to a device come in bursts
	start    func(*environment) (*job, error)
}

// forever is more batches than any run makes.
const forever = "1000000000"

var workloads = []workload{
	{name: "hotloop20", title: "hot loop in C, 20 calls deep", start: hotloop("20")},
	{name: "hotloop40", title: "hot loop in C, 40 calls deep", start: hotloop("40")},
	{name: "frees", title: "hot loop in C, 20 calls deep, frees alone", start: hotloop("20", "--frees")},
	{name: "pyloop", title: "hot loop in Python, 10 calls deep", start: pyloop("10")},
	{name: "mlp", title: "mlp.py", training: true, start: training("mlp")},
	{name: "gpt", title: "gpt.py", training: true, start: training("gpt")},
	{name: "resnet", title: "resnet.py", training: true, start: training("resnet")},
}

func findWorkload(name string) *workload {
	for i := range workloads {
		if workloads[i].name == name {
			return &workloads[i]
		}
	}
	return nil
}

func hotloop(depth string, more ...string) func(*environment) (*job, error) {
	return func(e *environment) (*job, error) {
		args := append([]string{filepath.Join(e.programs, "hotloop"), "--depth", depth, "--batches", forever, "--calls", "2000"}, more...)
		return startLoop(e, "hotloop"+depth, parseBatch, args...)
	}
}

func pyloop(depth string) func(*environment) (*job, error) {
	return func(e *environment) (*job, error) {
		return startLoop(e, "pyloop", parseBatch, e.python, e.path("pyloop.py"), filepath.Join(e.programs, "libc10.so"), depth)
	}
}

// compared lists the modes of the workload, the untraced one first.
func (w *workload) compared() []mode {
	if w.modes != nil {
		return w.modes
	}
	return modes
}

// leavesOut tells if a mode has no place in the workload's tables.
func (w *workload) leavesOut(m *mode) bool {
	return m.training && !w.training || w.threads > 0 && m.name == freeStacks
}

func training(script string) func(*environment) (*job, error) {
	return func(e *environment) (*job, error) { return startTraining(e, script) }
}

// result is what was measured of one workload.
type result struct {
	workload *workload
	rounds   []map[string]figure // by name of the mode
	found    *tracer.Found
	probe    *probe
	load     load
	clocks   []clocked
}

// figure is one window.
type figure struct {
	cost
	bare cost    // of the untraced job just before and after
	hits float64 // median of the samples
}

// cost is what a step took in a window, nanoseconds.
type cost struct {
	ns  float64 // median of the wall times
	cpu float64 // median of the CPU times
}

// between is the mean of two windows.
func between(a, b figure) cost { return cost{(a.ns + b.ns) / 2, (a.cpu + b.cpu) / 2} }

// measure runs the modes in turn, starting with another in each round so that drift hits all alike.
func (w *workload) measure(e *environment, o Options) (result, error) {
	progress("%s: starting", w.name)
	j, err := w.start(e)
	if j != nil {
		defer j.stop()
	}
	if err != nil {
		return result{}, err
	}
	s, err := newSubject(e, j)
	if err != nil {
		return result{}, err
	}
	out := result{workload: w, found: s.found, probe: s.probe}
	for round := range o.Rounds {
		figures, err := s.round(w, o, round)
		if err != nil {
			return result{}, err
		}
		out.rounds = append(out.rounds, figures)
	}
	out.load = s.load
	out.clocks, err = s.clockPrograms(w, o)
	return out, err
}

// round measures each mode once, and the untraced job before and after each: the machine's speed changes from minute to minute.
func (s *subject) round(w *workload, o Options, round int) (map[string]figure, error) {
	progress("%s: round %d of %d", w.name, round+1, o.Rounds)
	list := w.compared()
	bare, others := &list[0], list[1:]
	before, err := s.window(w, bare, o)
	if err != nil {
		return nil, err
	}
	out, plain := map[string]figure{}, []figure{before}
	for i := range others {
		m := &others[(i+round)%len(others)]
		if w.leavesOut(m) {
			continue
		}
		f, err := s.window(w, m, o)
		if errors.Is(err, errNotInstalled) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", m.name, err)
		}
		after, err := s.window(w, bare, o)
		if err != nil {
			return nil, err
		}
		f.bare = between(before, after)
		out[m.name], before, plain = f, after, append(plain, after)
	}
	out[bare.name] = together(plain)
	return out, nil
}

// together is what several windows of the untraced job say.
func together(windows []figure) (out figure) {
	var ns, cpu, hits series
	for _, f := range windows {
		ns, cpu, hits = append(ns, f.ns), append(cpu, f.cpu), append(hits, f.hits)
	}
	out.cost, out.hits = cost{ns.median(), cpu.median()}, hits.median()
	out.bare = out.cost
	return out
}

// window measures one mode once.
func (s *subject) window(w *workload, m *mode, o Options) (figure, error) {
	off, err := m.on(s)
	if err != nil {
		return figure{}, err
	}
	samples, err := s.job.measure(o.Window)
	if err := errors.Join(err, off()); err != nil {
		return figure{}, err
	}
	var ns, cpu, hits series
	for _, x := range samples {
		ns, cpu, hits = append(ns, x.ns), append(cpu, x.cpu), append(hits, x.hits)
	}
	middle := series.median
	if w.mean {
		middle = series.mean
	}
	return figure{cost: cost{middle(ns), middle(cpu)}, hits: middle(hits)}, nil
}

// of returns f of a mode's figures, a value a round. Rounds in which it is missing are left out.
func (r *result) of(mode string, f func(figure) float64) series {
	var out series
	for _, round := range r.rounds {
		if m, ok := round[mode]; ok {
			out = append(out, f(m))
		}
	}
	return out
}

// hits are the allocator's events of a step, the untraced job's.
func (r *result) hits() float64 {
	return r.of(untraced, func(f figure) float64 { return f.hits }).median()
}

// perRun is what a run of a mode's programs takes by the kernel's clock, nanoseconds by mode.
func (r *result) perRun() map[string]float64 {
	out := map[string]float64{}
	for i := range r.clocks {
		out[r.clocks[i].mode] = r.clocks[i].perRun()
	}
	return out
}

// beyond is what a hit costs in a mode beyond what it costs in another one of the same round, in microseconds of CPU time.
func (r *result) beyond(mode, other string) series {
	var out series
	for _, round := range r.rounds {
		m, ok1 := round[mode]
		o, ok2 := round[other]
		if ok1 && ok2 {
			out = append(out, perHit(m)-perHit(o))
		}
	}
	return out
}

// added is what a mode adds to a step, as a share of what another one adds to it in the same round.
func (r *result) added(mode, other string) series {
	var out series
	for _, round := range r.rounds {
		m, ok1 := round[mode]
		o, ok2 := round[other]
		if ok1 && ok2 && o.ns > o.bare.ns {
			out = append(out, (m.ns-m.bare.ns)/(o.ns-o.bare.ns))
		}
	}
	return out
}

// perHit is what a mode costs the program for each allocator event, in microseconds of CPU time.
func perHit(f figure) float64 { return (f.cpu - f.bare.cpu) / f.hits / 1000 }

// slowdown is how many times longer a step takes than untraced.
func slowdown(f figure) float64 { return f.ns / f.bare.ns }
