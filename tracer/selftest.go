//go:build linux && amd64

package tracer

import (
	"fmt"
	"os"
	"reflect"
	"slices"
	"time"

	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/tracer/hook"
)

// SelfTest is what TestAttach did.
type SelfTest struct {
	Calls uint64 // of the function
	Hits  uint64 // of the probe on it
	Multi bool   // uprobe_multi
	Took  time.Duration
	// Memory is how the target's memory would be read.
	Memory MemoryUse
}

// probed is what TestAttach probes.
//
//go:noinline
func probed(r *SelfTest) { r.Calls++ }

// TestAttach loads the programs and attaches them as a trace does, but to a function of our own, and calls that a few times.
// Nil options are the default ones.
func TestAttach(o *Options) (*SelfTest, error) {
	begin := time.Now()
	p, err := process.Open(os.Getpid())
	if err != nil {
		return nil, err
	}
	probe, err := probeOfOurs(p)
	if err != nil {
		return nil, err
	}
	s := newSession(o)
	defer s.Close()
	m, err := s.newMember(p)
	if err != nil {
		return nil, err
	}
	s.sole = s.newTracer(m)
	if err := s.ready(); err != nil {
		return nil, err
	}
	if err := s.sole.publish(true); err != nil {
		return nil, err
	}
	if err := s.follow(m); err != nil {
		return nil, err
	}
	if _, err := s.probes.add([]*Probe{probe}); err != nil {
		return nil, err
	}
	if err := s.kernel.setHooks(&s.probes.table); err != nil {
		return nil, err
	}
	if _, err := s.probes.attach(s.kernel, s.scope(), s.probes.probes); err != nil {
		return nil, err
	}
	r := &SelfTest{Multi: s.kernel.multi, Memory: s.Memory()}
	for range 3 {
		probed(r)
	}
	counted, err := s.kernel.stats(probe.index)
	if err != nil {
		return nil, err
	}
	r.Hits, r.Took = counted.Hits, time.Since(begin)
	return r, nil
}

// probeOfOurs is a probe on probed. It makes no event: its row is never live.
func probeOfOurs(p *process.Process) (*Probe, error) {
	pc := uint64(reflect.ValueOf(probed).Pointer())
	maps, err := p.Maps()
	if err != nil {
		return nil, err
	}
	for _, m := range maps {
		if m.Start <= pc && pc < m.End {
			row := slices.IndexFunc(hook.Rows, func(r hook.Row) bool { return r.Program == hook.TorchReport })
			return &Probe{Library: hook.Torch, File: m.Path, Symbol: "probed", row: &hook.Rows[row], target: pc - m.Start + m.Offset, open: openMapped(p, &m)}, nil
		}
	}
	return nil, fmt.Errorf("no mapping of ours has %#x", pc)
}
