// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

// Package measure measures what tracing costs and prints it as Markdown tables. All modes of a workload are
// measured in turn in one process, window by window, so every figure is relative to its own run.
package measure

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"
)

// Options say what is measured, and how often.
type Options struct {
	Rounds  int           // how often each mode is measured, in turn; at least 1
	Window  time.Duration // of one measurement; at least 100 ms
	Only    string        // name of one workload; empty: all
	Threads []int         // numbers of threads that cores measures; nil: coreThreads
}

// settle is how long a job runs after a change of mode before its samples count.
const settle = 300 * time.Millisecond

// Check has an error where an option makes no sense.
func (o *Options) Check() error {
	switch {
	case o.Rounds < 1:
		return fmt.Errorf("-rounds %d: want at least 1", o.Rounds)
	case o.Window < 100*time.Millisecond:
		return fmt.Errorf("-window %s: want at least 100ms", o.Window)
	case o.Only != "" && !slices.Contains([]string{whoName, recordingName, viewsName, feedName, coresName}, o.Only) &&
		findWorkload(o.Only) == nil:
		return fmt.Errorf("-only %s: no such workload", o.Only)
	}
	return nil
}

// Run measures everything and prints the tables. What was measured before an error is printed too.
func Run(o Options, out io.Writer) error {
	if os.Geteuid() != 0 {
		return errors.New("attaching needs root: run it with sudo")
	}
	env, err := newEnvironment()
	if err != nil {
		return err
	}
	defer env.close()
	r := report{options: o, machine: describeMachine()}
	r.results, err = measureAll(env, o)
	if err == nil && (o.Only == "" || o.Only == attachScript) {
		r.attach, err = measureAttach(env, o)
	}
	if err == nil && (o.Only == "" || o.Only == whoName) {
		r.who, err = measureWho(env, o)
	}
	if err == nil && (o.Only == "" || o.Only == recordingName) {
		r.recording, err = measureRecording(env, o)
	}
	if err == nil && (o.Only == "" || o.Only == viewsName) {
		r.views, err = measureViews(env, o)
	}
	if err == nil && (o.Only == "" || o.Only == feedName) {
		r.feed, err = measureFeed(env, o)
	}
	if err == nil && o.Only == coresName {
		r.cores, err = measureCores(env, o)
	}
	return errors.Join(err, printReport(out, r))
}

// measureAll measures the workloads one after the other.
func measureAll(env *environment, o Options) ([]result, error) {
	var out []result
	for i := range workloads {
		w := &workloads[i]
		if o.Only != "" && o.Only != w.name {
			continue
		}
		r, err := w.measure(env, o)
		if err != nil {
			return out, fmt.Errorf("%s: %w", w.name, err)
		}
		out = append(out, r)
	}
	return out, nil
}

// progress says on stderr what is being measured.
func progress(format string, args ...any) { fmt.Fprintf(os.Stderr, "bench: "+format+"\n", args...) }
