// SPDX-License-Identifier: Apache-2.0

package phases

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/internal/eventtest"
)

func TestUsersRules(t *testing.T) {
	r, err := Read(strings.NewReader("# mine\ninput\tloader.py:read_*   # all of them\n\nevaluation models/*/net.py:Net.score\n" +
		"communication libmine*!mine::*\nworkspace !scratch\nforward? *:attention\n"))
	require.NoError(t, err)
	for in, want := range map[string]Result{
		linear + call + "/home/a/loader.py:3:read_batch" + main:    {Phase: Input, Category: NoCategory}, // the user's rule before a nearer one
		linear + call + "/home/a/my_loader.py:3:read_batch" + main: {Phase: Forward, Category: NoCategory},
		"a.so!f /home/models/b/c/net.py:3:Net.score" + main:        {Phase: Evaluation, Category: NoCategory},
		"a.so!f /home/models/b/net.py:3:score" + main:              {Phase: Other, Category: NoCategory},
		"libmine.so.3!mine::gather " + linear + call + main:        {Phase: Communication, Category: NoCategory},
		"a.so!mine::gather " + linear + call + main:                {Phase: Forward, Category: NoCategory},
		"a.so!scratch " + main:                                     {Phase: Other, Category: Workspace},
		"a.so!f /home/a/x.py:3:attention" + main:                   {Phase: Forward, Category: NoCategory},
		linear + call + main:                                       {Phase: Forward, Category: NoCategory},
	} {
		require.Equal(t, want, New(r, nil, nil).Stack(eventtest.Stack(in)), in)
	}
}

// TestForwardLines: a line of forward that is put behind a stack of the backward pass did not run, so that no rule is of it.
func TestForwardLines(t *testing.T) {
	r, err := Read(strings.NewReader("evaluation net.py:Net.score\n"))
	require.NoError(t, err)
	st := eventtest.Stack("a.so!at::_ops::mm::call " + engine)
	st.Frames = append(append(st.Frames, stacks.Mark()), eventtest.Stack("/home/a/net.py:3:Net.score"+main).Frames...)
	require.Equal(t, Backward, New(r, nil, nil).Stack(st).Phase)
}

func TestWrongRules(t *testing.T) {
	for in, want := range map[string]string{
		"\n\nfoo a.py:b":                        `line 3: "foo" is neither a phase nor a category`,
		"other a.py:b":                          `line 1: "other" is neither`,
		"ambiguous a.py:b":                      `line 1: "ambiguous" is neither`,
		"workspace? !a":                         `line 1: "workspace?" is neither`,
		"training? !a":                          `line 1: "training?" is neither`,
		"forward+? !a":                          `line 1: "forward+?" is neither`,
		"forward":                               "line 1: no function: want PHASE FILE:FUNCTION or PHASE !SYMBOL",
		"forward a.py":                          `line 1: "a.py" is neither FILE:FUNCTION nor !SYMBOL`,
		"forward " + strings.Repeat("x", 5000):  "read rules",
		strings.Repeat("forward a:b\n", 10_001): "line 10001: more than 10000 rules",
	} {
		_, err := Read(strings.NewReader(in))
		require.ErrorContains(t, err, want)
	}
}

// TestBuiltIn: every phase has a rule, and no rule is there twice.
func TestBuiltIn(t *testing.T) {
	seen := map[Phase]bool{}
	texts := map[string]bool{}
	for line := range strings.Lines(builtIn) {
		text, _, _ := strings.Cut(line, "#")
		if fields := strings.Fields(text); len(fields) > 0 {
			key := strings.Join(fields, " ")
			require.False(t, texts[key], key)
			texts[key] = true
		}
	}
	for _, r := range standard() {
		seen[r.phase] = true
	}
	for _, p := range Phases {
		require.Equal(t, isPhase(string(p)), seen[p], p)
	}
}

func FuzzRules(f *testing.F) {
	f.Add("forward a.py:b\nbackward? !c::*\n", "/x/a.py", "b")
	f.Fuzz(func(t *testing.T, rules, file, function string) {
		r, err := Read(strings.NewReader(rules))
		if err != nil {
			return
		}
		st := &event.Stack{Frames: []event.Frame{{Kind: event.FramePython, File: file, Func: function},
			{Kind: event.FrameNative, Func: function}}}
		got := New(r, nil, nil).Stack(st)
		require.Contains(t, Phases, got.Phase)
		require.Contains(t, Categories, got.Category)
	})
}
