// SPDX-License-Identifier: Apache-2.0

package whatif

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
)

// steppedStream is two steps of two requests each, of which the second of the second step was refused: in the
// first, a third followed, and what was there before the steps was freed.
func steppedStream(third uint64) *Stream {
	s := &Stream{Rules: RulesOf("2.6.0"), up: true}
	alloc := func(time uint64, stack event.StackID, size uint64) uint32 {
		s.ops = append(s.ops, op{kind: opAlloc, id: s.ids, size: size, time: time, stack: stack})
		s.ids++
		return s.ids - 1
	}
	free := func(time uint64, id uint32) { s.ops = append(s.ops, op{kind: opFree, id: id, time: time}) }
	old := alloc(1, 1, 30<<20)
	x, y := alloc(10, 2, 40<<20), alloc(11, 3, 50<<20)
	z := alloc(12, 4, third)
	for i, id := range []uint32{z, y, x} {
		free(uint64(13+i), id)
	}
	alloc(20, 2, 40<<20)
	s.ops = append(s.ops, op{kind: opRefused, size: 50 << 20, time: 21, stack: 33})
	free(22, old)
	return s
}

// TestContinue: the request fits if there is room for it; that the step would have freed on to its end is known
// only with what an earlier step did after the same request, which must have come the same way.
func TestContinue(t *testing.T) {
	line := func(id event.StackID) string {
		return map[event.StackID]string{1: "a", 2: "b", 3: "c", 33: "c", 4: "d"}[id]
	}
	for name, tt := range map[string]struct {
		device  uint64
		third   uint64
		earlier Span
		line    func(event.StackID) string
		failed  uint64 // requested by what fails; 0: nothing
		follows bool
	}{
		"room for all":                 {200 << 20, 60 << 20, Span{10, 19}, line, 0, true},
		"room for all, exactly":        {180 << 20, 60 << 20, Span{10, 19}, line, 0, true},
		"no room for what follows":     {178 << 20, 60 << 20, Span{10, 19}, line, 60 << 20, false},
		"no room for the request":      {118 << 20, 60 << 20, Span{10, 19}, line, 50 << 20, false},
		"no earlier step":              {180 << 20, 60 << 20, Span{From: 1}, line, 0, false},
		"an earlier step of one line":  {180 << 20, 60 << 20, Span{12, 19}, line, 0, false},
		"a step that came another way": {180 << 20, 60 << 20, Span{10, 19}, func(id event.StackID) string { return string(rune(id)) }, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := steppedStream(tt.third)
			got := s.Continue(&Settings{Device: tt.device}, nil, 21, Span{20, 29}, tt.earlier, tt.line)
			if tt.failed > 0 {
				require.NotNil(t, got.Failed)
				require.Equal(t, tt.failed, got.Failed.Requested)
				return
			}
			require.Nil(t, got.Failed)
			require.Equal(t, tt.follows, got.Follows)
		})
	}
	require.Equal(t, After{}, steppedStream(1).Continue(&Settings{}, nil, 5, Span{20, 29}, Span{10, 19}, line), "nothing was refused then")
}

// TestContinueOlder: blocks from before the earlier step that it freed on its way are not known to have a
// counterpart, so that a later failure proves nothing.
func TestContinueOlder(t *testing.T) {
	s := steppedStream(60 << 20)
	at := 0
	for i := range s.ops {
		if s.ops[i].time == 12 {
			at = i
		}
	}
	s.ops = append(s.ops[:at], append([]op{{kind: opFree, id: 0, time: 12}}, s.ops[at:]...)...)
	for i := range s.ops {
		if s.ops[i].time == 20 { // kept between the steps
			s.ops = append(s.ops[:i], append([]op{{kind: opAlloc, id: s.ids, time: 16, size: 20 << 20, stack: 1}}, s.ops[i:]...)...)
			s.ids++
			break
		}
	}
	line := func(id event.StackID) string { return map[event.StackID]string{2: "b", 3: "c", 33: "c", 4: "d"}[id] }
	require.Equal(t, After{}, s.Continue(&Settings{Device: 160 << 20}, nil, 21, Span{20, 29}, Span{10, 15}, line))
	require.Equal(t, After{Follows: true}, s.Continue(&Settings{Device: 220 << 20}, nil, 21, Span{20, 29}, Span{10, 15}, line))
}
