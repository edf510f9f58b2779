// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/recording"
)

// madeDivider divides a recording each time that it has grown by some bytes.
type madeDivider struct {
	*madeKeeper
	every  int64
	parts  []string
	states [][]byte // the live set at the beginning of each part but the first
	ends   []*recording.End
	fails  int // number of the next attempts that fail
	broken []error
}

func (d *madeDivider) Create(p *Process, info *recording.Info, stack func(event.StackID) *event.Stack) (*recording.Writer, error) {
	return d.next(p, info, stack, nil)
}

func (d *madeDivider) next(
	p *Process, info *recording.Info, stack func(event.StackID) *event.Stack, before *recording.Before,
) (*recording.Writer, error) {
	if d.fails > 0 {
		d.fails--
		d.writers[p] = nil
		return nil, errors.New("no room")
	}
	path := fmt.Sprintf("%s/%d.gputrace", d.dir, len(d.parts))
	w, err := recording.Create(path, info, stack, &recording.Options{Before: before})
	d.parts, d.writers[p] = append(d.parts, path), w
	return w, err
}

func (d *madeDivider) Due(_ *Process, written int64) bool { return written < 0 || written > d.every }

func (d *madeDivider) Divide(p *Process, s *Segment) (*recording.Writer, error) {
	if s.End != nil {
		d.ends = append(d.ends, s.End)
		if err := errors.Join(d.writers[p].Seal(), d.writers[p].Close(s.End)); err != nil {
			return nil, err
		}
		d.states = append(d.states, s.Before.State)
	}
	return d.next(p, s.Info, s.Stack, s.Before)
}

func (d *madeDivider) Failed(_ *Process, err error) { d.broken = append(d.broken, err) }

// TestDivide: a recording in parts. Each part begins with the live set at the end of the part before, whose replay is that live set.
func TestDivide(t *testing.T) {
	trades := &trader{rng: rand.New(rand.NewPCG(1, 2))}
	target := &madeTarget{pid: 7}
	s := &madeSource{start: []Target{target}, hang: true}
	for range 60 {
		var b madeBatch
		for range 1000 {
			b.events = append(b.events, trades.step())
		}
		s.batches = append(s.batches, b)
	}
	s.batches = append(s.batches, madeBatch{then: func() { target.end = Exited }})
	d := &madeDivider{madeKeeper: newMadeKeeper(t), every: 64 << 10, fails: 1}
	n := &noted{}
	r, _, _ := newMade(t, s, func(o *Options) { o.Keeper, o.Forever, o.Observer, o.NoHolders = d, true, n, true })
	done := make(chan error, 1)
	go func() {
		_, err := r.Run(t.Context())
		done <- err
	}()
	require.Eventually(t, func() bool { return s.more(nil) == 0 }, 20*time.Second, time.Millisecond)
	r.Interrupt(nil)
	require.NoError(t, <-done)
	require.Greater(t, len(d.parts), 3)
	require.Len(t, d.states, len(d.parts)-1)
	for i, path := range d.parts {
		file, err := recording.Open(path)
		require.NoError(t, err)
		h := heap.New()
		require.NoError(t, h.Replay(file))
		require.NotNil(t, file.End())
		if i < len(d.states) {
			was := heap.New()
			require.NoError(t, was.SetState(d.states[i]))
			require.Equal(t, was.Snapshot(), h.Snapshot(), "part %d", i)
			require.Equal(t, recording.ReasonStopped, file.End().Reason)
		} else {
			require.EqualValues(t, 60_000, h.Totals().Events)
			require.Equal(t, recording.ReasonExited, file.End().Reason)
		}
		require.NoError(t, file.Close())
	}
	require.Empty(t, d.broken)
	require.Empty(t, d.kept)
}

// TestDividedFails: a part that cannot be written ends once, and the process is recorded again from its live set.
func TestDividedFails(t *testing.T) {
	h := newRecordedHeap(func(error) {})
	warned, failed := 0, 0
	h.warn = func(error) { warned++ }
	h.failed = func(error) { failed++ }
	w, err := recording.Create(t.TempDir()+"/a", &recording.Info{}, nil, nil)
	require.NoError(t, err)
	h.writer = w
	h.check(errors.New("no space"))
	require.Nil(t, h.writer)
	h.take([]event.Event{alloc(7, 1, 0x1000, 512, 512)})
	h.check(errors.New("late"))
	require.Equal(t, []int{2, 1}, []int{warned, failed})
	require.NoError(t, w.Close(&recording.End{}))
}
