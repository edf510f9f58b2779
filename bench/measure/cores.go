// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package measure

import (
	"fmt"
	"io"
	"path/filepath"
	"strconv"
	"strings"
)

// coresName selects this measurement on the command line. It is not among all: a machine of few cores has little to say.
const coresName = "cores"

// coreThreads are how many threads hit the probe at once when nothing else is said.
var coreThreads = []int{1, 2, 4, 16, 64}

// ParseThreads reads how many threads hit the probe at once, such as "1,16,64".
func ParseThreads(s string) (out []int, err error) {
	for _, word := range strings.Split(s, ",") {
		n, err := strconv.Atoi(word)
		if err != nil || n < 1 {
			return nil, fmt.Errorf("%q is no number of threads", word)
		}
		out = append(out, n)
	}
	return out, nil
}

// measureCores measures the hot loop in many threads, which share nothing but the kernel's side.
func measureCores(e *environment, o Options) ([]result, error) {
	var out []result
	threads := o.Threads
	if threads == nil {
		threads = coreThreads
	}
	for _, n := range threads {
		w := &workload{name: fmt.Sprintf("%s%d", coresName, n), threads: n,
			start: func(e *environment) (*job, error) { return startThreads(e, n) }}
		r, err := w.measure(e, o)
		if err != nil {
			return out, fmt.Errorf("%s: %w", w.name, err)
		}
		out = append(out, r)
	}
	return out, nil
}

// startThreads starts the hot loop in so many threads. It yields to every other program: the tracer keeps up also where there
// are fewer cores than threads.
func startThreads(e *environment, threads int) (*job, error) {
	return startLoop(e, coresName, new(totalParser).parse, "nice", "-n", "19", filepath.Join(e.programs, "hotloop"),
		"--depth", "20", "--batches", forever, "--threads", strconv.Itoa(threads))
}

// totalParser makes samples of one call of "total N ns T cpu_ns C", the mean of those between two lines.
type totalParser struct {
	last [3]float64
}

func (p *totalParser) parse(line []byte) (sample, bool, error) {
	f := strings.Fields(string(line))
	if len(f) != 6 || f[0] != "total" || f[2] != "ns" || f[4] != "cpu_ns" {
		return sample{}, false, nil
	}
	var now [3]float64
	for i := range now {
		var err error
		if now[i], err = strconv.ParseFloat(f[2*i+1], 64); err != nil {
			return sample{}, false, err
		}
	}
	last := p.last
	calls := now[0] - last[0]
	if calls == 0 { // no thread had a core
		return sample{}, false, nil
	}
	p.last = now
	return sample{ns: (now[1] - last[1]) / calls, cpu: (now[2] - last[2]) / calls, hits: 1}, last[1] > 0, nil
}

// dearer is how many times a hit costs in a mode what it costs in another one of the same round.
func (r *result) dearer(mode, other string) series {
	var out series
	for _, round := range r.rounds {
		m, ok1 := round[mode]
		o, ok2 := round[other]
		if ok1 && ok2 {
			out = append(out, perHit(m)/perHit(o))
		}
	}
	return out
}

// rate is how many events a second there are, in millions.
func rate(f figure) float64 { return 1000 / f.ns }

func coresTimes(results []result, w io.Writer) {
	fmt.Fprintf(w, "The hot loop in C, 20 calls deep, in many threads that do nothing else and share nothing, at the lowest priority. "+
		"Events a second of all threads, "+
		"in millions; price of a hit in µs of CPU time; mean ns of a run by the kernel's clock, less that of the empty program. Of lost "+
		"events the ring was full.\n\n")
	t := table{{"threads", "M events/s, empty uprobe", "M events/s, gputrace", "empty uprobe", "gputrace beyond it",
		"gputrace as a multiple of the empty uprobe",
		"ns by the kernel's clock", "lost"}}
	for i := range results {
		r := &results[i]
		perRun := r.perRun()
		t.row(strconv.Itoa(r.workload.threads), r.of(empty, rate).text("%.2f"), r.of(traced, rate).text("%.2f"),
			r.of(empty, perHit).text("%.2f"), r.beyond(traced, empty).text("%.2f"), r.dearer(traced, empty).text("%.2f"),
			fmt.Sprintf("%.0f", perRun[traced]-perRun[empty]),
			fmt.Sprintf("%.1f %%", 100*float64(r.load.lost)/float64(max(r.load.hits+r.load.lost, 1))))
	}
	t.print(w)
}
