// SPDX-License-Identifier: Apache-2.0

package oom

import (
	"io"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/internal/eventtest"
)

// copied is a stack that copies a batch to the device.
const copied = eventtest.Report + " a.so!at::_ops::to_dtype_layout::call /home/a/train.py:10:batch /home/a/train.py:20:main"

// goodSteps runs steps that fit: input and activations have a size in bytes, and are freed.
func (p *program) goodSteps(n int, size uint64) {
	for range n {
		for _, stack := range []string{copied, eventtest.Forward, eventtest.Backward} {
			p.block(stack, 50*mib, size, 0)
			p.free(50*mib, size)
		}
	}
}

// TestPasses: forward passes wait for one backward pass where each input of the step has kept activations, and not where
// the inputs come first, as of a model that takes several, or there are two of them.
func TestPasses(t *testing.T) {
	for name, tt := range map[string]struct {
		inputs []string // the order of the step's allocations
		want   int
	}{
		"each is kept":     {[]string{"i", "f", "f", "i", "f", "f", "i", "f", "f", "i", "f"}, 4},
		"inputs at first":  {[]string{"i", "i", "i", "i", "f", "f", "f", "f"}, 0},
		"two":              {[]string{"i", "f", "f", "i", "f"}, 0},
		"only results":     {[]string{"i", "r", "i", "r", "i", "r", "i", "r", "f", "f"}, 0},
		"one keeps little": {[]string{"i", "f", "f", "i", "i", "f", "f", "i", "f"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			p := newProgram()
			p.segment(0, 60*mib)
			p.goodSteps(4, mib)
			for n, kind := range tt.inputs {
				forward := strings.Replace(eventtest.Forward, "net.py:7", "net.py:"+string(rune('6'+n%3)), 1)
				p.block(map[string]string{"i": copied, "r": eventtest.Forward, "f": forward}[kind], uint64(n)*2*mib, mib, 0)
			}
			p.failIn(eventtest.Forward, 16*mib)
			c := &p.find(t, Input{}).Cases[0]
			require.Equal(t, tt.want, c.Passes.Count)
			if tt.want > 0 {
				require.Equal(t, "train.py:10 batch", c.Passes.Site)
				require.EqualValues(t, 2*mib, c.Passes.Each)
			}
		})
	}
}

// TestAttempt: what a step had allocated when it was refused memory is left over where its input is brought again.
func TestAttempt(t *testing.T) {
	for name, tt := range map[string]struct {
		then func(p *program) // between the refusals
		want uint64
	}{
		"begun again":                   {func(p *program) { p.block(copied, 30*mib, mib, 0) }, 5 * mib},
		"begun again, and a part freed": {func(p *program) { p.free(4*mib, 4*mib); p.block(copied, 30*mib, mib, 0) }, mib},
		"given up and dropped": {func(p *program) {
			p.free(0, mib)
			p.block(copied, 30*mib, mib, 0)
		}, 0},
		"goes on with less":  {func(p *program) { p.block(eventtest.Forward, 30*mib, 2*mib, 0) }, 0},
		"nothing in between": {func(*program) {}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			p := newProgram()
			p.segment(0, 60*mib)
			p.goodSteps(4, mib)
			p.block(copied, 0, mib, 0)
			p.block(eventtest.Forward, 4*mib, 4*mib, 0)
			p.failIn(eventtest.Forward, 32*mib)
			tt.then(p)
			p.failIn(eventtest.Forward, 8*mib)
			cases := p.find(t, Input{}).Cases
			require.Zero(t, cases[0].Attempt.Bytes)
			require.Equal(t, tt.want, cases[1].Attempt.Bytes)
			require.Equal(t, tt.want, cases[1].Cause(EarlierAttempt).Bytes)
			if tt.want > 0 {
				require.EqualValues(t, 32*mib, cases[1].Attempt.Requested)
			}
		})
	}
}

// TestHandler: what a call has allocated that was left because it was refused memory is left over while its caller tries another way.
func TestHandler(t *testing.T) {
	call := func(line int, rest string) string {
		callers := "/home/a/net.py:" + strconv.Itoa(line) + ":attend /home/a/train.py:9:main"
		return eventtest.Report + " " + strings.TrimSpace(rest+" "+callers)
	}
	whole, parts := call(32, "/home/a/net.py:13:whole"), call(36, "/home/a/net.py:22:parts")
	source := strings.Repeat("\n", 30) +
		"    try:\n        return whole(q)\n    except OutOfMemoryError:\n        pass\n\n        return parts(q)\n"
	behind := strings.Replace(source, "\n        return parts", "\n    return parts", 1)
	for name, tt := range map[string]struct {
		before, then string
		next, source string
		want         uint64
	}{
		"in its handler":          {whole, parts, parts, source, 4 * mib},
		"behind its handler":      {whole, parts, parts, behind, 0},
		"the call itself goes on": {whole, whole, parts, source, 0},
		"another function":        {whole, parts, eventtest.Report + " /home/a/train.py:10:other", source, 0},
		"the same line again":     {whole, whole, whole, source, 0},
		"made by its caller":      {call(30, ""), parts, parts, source, 0},
	} {
		t.Run(name, func(t *testing.T) {
			p := newProgram()
			p.segment(0, 60*mib)
			p.goodSteps(4, mib)
			p.block(call(30, ""), 0, mib, 0)
			p.block(tt.before, 4*mib, 4*mib, 0)
			p.failIn(whole, 32*mib)
			p.block(tt.then, 40*mib, mib, 0)
			p.failIn(tt.next, 8*mib)
			files := func(string) io.Reader { return strings.NewReader(tt.source) }
			c := p.findWith(t, Input{}, &view.Options{Files: files}).Cases[1]
			require.Equal(t, tt.want, c.Attempt.Bytes)
			if tt.want > 0 {
				require.Equal(t, "whole", c.Attempt.Call)
				require.Equal(t, tt.want, c.Cause(EarlierAttempt).Bytes)
			}
		})
	}
}
