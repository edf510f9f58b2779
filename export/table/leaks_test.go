// SPDX-License-Identifier: Apache-2.0

package table

import (
	"bytes"
	"io"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/analysis/steps"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/export/internal/layout"
)

// leakReports are verdicts of every kind.
func leakReports() map[string]*leaks.Report {
	nan := math.NaN()
	optimizer := leaks.Steps{Count: 58, Last: 58, Source: steps.SourceOptimizer, On: "train.py:112 Trainer.update", Period: 46.25e6}
	return map[string]*leaks.Report{
		"growing": {Verdict: leaks.Growing, Steps: optimizer, Findings: []leaks.Finding{
			{
				Kind: leaks.Leak, Layer: event.LayerAllocator, File: "/a/train.py", Line: 198, Function: "evaluate",
				Holder: "evaluate() local results[0..49]\x1b[2J.grad_fn",
				Blocks: 81, Requested: 603236864, Bytes: 605336576, Period: 1, First: 11, Last: 58, LiveBytes: 29 * gib, LiveBlocks: 3888, Share: 0.984,
				Confidence: leaks.High, Seconds: 9000, Graph: true,
			},
			{
				Kind: leaks.Growth, Layer: event.LayerAllocator, Function: "at::native::cat", Blocks: 1. / 3, Requested: nan, Bytes: -12.4, Period: 10,
				First: 1,
				Last:  58, LiveBytes: 4096, LiveBlocks: 3, Share: nan, Confidence: leaks.Low, Seconds: nan,
			},
		}},
		"periodic": {Verdict: leaks.Growing, Steps: leaks.Steps{Count: 58, Last: 58, Source: steps.SourcePeriod, On: "x.py:1 f",
			Period: 3.21e9}, Findings: []leaks.Finding{{
			Kind: leaks.Leak, Layer: event.LayerAllocator, File: "/a/train.py", Line: 30, Function: "main", Blocks: .2, Requested: .8, Bytes: 102.4,
			Period: 5,
			First:  11, Last: 58, LiveBytes: 512 * 9, LiveBlocks: 9, Share: nan, Confidence: leaks.Low, Seconds: nan,
		}}},
		"newer": {Verdict: leaks.Growing, Steps: optimizer, Findings: []leaks.Finding{{
			Kind: leaks.Leak, Layer: event.LayerAllocator, File: "/a/a_name_of_a_file_that_is_long.py", Line: 30,
			Function:  "Trainer.validation_step",
			Blocks:    1,
			Requested: 4e9, Bytes: 4e9, Period: 1, First: 123456, Last: 234567, LiveBytes: 444e12, LiveBlocks: 111111, Share: 1, Seconds: nan,
			Confidence: leaks.Medium, Holder: "Trainer.fit() local self.callbacks[2].history['validation'][0..1023][1].loss", Newer: 110_087,
		}}},
		"steady": {Verdict: leaks.Steady, Steps: optimizer},
		"oom":    {Verdict: leaks.OutOfMemory, Steps: optimizer},
		"few": {Verdict: leaks.Unclear, Steps: leaks.Steps{Count: 7, Last: 7, Source: steps.SourceBackward, On: "a.py:3 main",
			Period: 46.25e6}},
		"nothing": {Verdict: leaks.Unclear},
		"suspect": {Verdict: leaks.Unclear, Steps: optimizer, Suspects: []leaks.Finding{{
			Kind: leaks.Leak, Layer: event.LayerAllocator, File: "/a/train.py", Line: 30, Function: "main", Blocks: .1, Requested: 400, Bytes: 409.6,
			Period: 10,
			First:  20, Last: 58, Share: nan, Confidence: leaks.Low, Seconds: nan,
		}}},
		"interim": {
			Verdict: leaks.Unclear, Interim: true,
			Steps: leaks.Steps{Count: 58, Last: 58, Source: steps.SourceLoader, On: "DataLoader", Period: 46.25e6},
			Suspects: []leaks.Finding{{
				Kind: leaks.Leak, Layer: event.LayerAllocator, File: "/a/train.py", Line: 30, Function: "evaluate", Blocks: 1, Requested: 4096,
				Bytes:  4096,
				Period: 1, First: 2, Last: 58, Share: nan, Confidence: leaks.High, Seconds: nan, Holder: "meter.scores[0..57]",
			}}},
		"backward": {Verdict: leaks.Growing, Steps: optimizer, Findings: []leaks.Finding{{
			Kind: leaks.Leak, Layer: event.LayerAllocator, File: "/a/search.py", Line: 10, Function: "train", Backward: true, Blocks: 4,
			Requested: 24520,
			Bytes:     25000, Period: 30, First: 1, Last: 58, LiveBytes: 1 << 20, LiveBlocks: 40, Share: .49, Seconds: nan, Confidence: leaks.High,
		}}},
	}
}

func TestLeaks(t *testing.T) {
	for name, r := range leakReports() {
		t.Run(name, func(t *testing.T) {
			var buf bytes.Buffer
			require.NoError(t, Leaks(&buf, r, LeakSentence(r), 0))
			require.NotContains(t, buf.String(), "\x1b")
			for line := range strings.Lines(buf.String()) {
				require.LessOrEqual(t, len([]rune(strings.TrimSuffix(line, "\n"))), layout.DefaultColumns, line)
			}
			golden(t, "leaks."+name, buf.String())
		})
	}
}

func TestLeaksError(t *testing.T) {
	require.ErrorIs(t, Leaks(failingWriter{}, leakReports()["growing"], "", 0), io.ErrShortWrite)
}

func TestLongText(t *testing.T) {
	for seconds, want := range map[float64]string{0: "0 s", 119: "119 s", 120: "2 min", 7199: "120 min", 9000: "2.5 h", 1e6: "12 days"} {
		require.Equal(t, want, Span(seconds))
	}
}

// TestLeakSize: a rise consists of whole blocks, where the distance of two rises is not quite the number that is said.
func TestLeakSize(t *testing.T) {
	for _, c := range []struct {
		f    leaks.Finding
		want float64
	}{
		{leaks.Finding{Blocks: 1 / 14.0625, Requested: 262144 / 14.0625, Period: 14}, 262144},
		{leaks.Finding{Blocks: 3 / 14.0625, Requested: math.NaN(), Bytes: 3072 / 14.0625, Period: 14}, 3072},
		{leaks.Finding{Blocks: 2, Requested: 1024, Period: 1}, 1024},
		{leaks.Finding{Blocks: 0, Requested: 128, Period: 2}, 256},
		{leaks.Finding{Blocks: 0.1, Requested: 100, Period: 14}, 1400}, // 1.4 blocks: they vary
	} {
		require.InDelta(t, c.want, LeakSize(&c.f), 1e-6)
	}
}

// TestLeakTotal: of lines that grow at different times the sum is a mean.
func TestLeakTotal(t *testing.T) {
	each := leaks.Finding{File: "a.py", Line: 1, Function: "f", Requested: 2048, Period: 1}
	epoch := leaks.Finding{File: "a.py", Line: 2, Function: "g", Requested: 4096, Period: 25}
	require.Equal(t, "a.py:2 g and 1 other line keep 6.0 KiB more each step on average", LeakTotal([]leaks.Finding{epoch, each}, ""))
	require.Equal(t, "a.py:1 f and 1 other line keep 4.0 KiB more each step", LeakTotal([]leaks.Finding{each, each}, ""))
	require.Equal(t, "a.py:2 g keeps 100.0 KiB more every 25 steps", LeakTotal([]leaks.Finding{epoch}, ""))
}

// TestLeakRise: a rise after a fall that was as large may be the last tooth of a sawtooth.
func TestLeakRise(t *testing.T) {
	r := &leaks.Report{Steps: leaks.Steps{Rise: 30 << 20, Count: 395}, Risers: []leaks.Riser{{Name: "a.py:29 recurrent", Bytes: 20 << 20}}}
	require.Equal(t, "30.0 MiB more are in use between steps than in the middle of 395 steps, 20.0 MiB of it at a.py:29 recurrent: "+
		"too few rises were seen to say whether it goes on; record longer", leakRise(r))
	r.Risers[0].Holder = "main() local cache[0..9].state"
	require.Contains(t, leakRise(r), "at a.py:29 recurrent in main() local cache[0..9].state: too few")
	r.Risers[0].Holder = ""
	r.Steps.Fell = 87 << 20
	require.Contains(t, leakRise(r), "at a.py:29 recurrent; it had fallen by 87.0 MiB before: too few rises were seen")
	r.Risers[0].Turns = true
	require.Contains(t, leakRise(r), "at a.py:29 recurrent, whose early blocks are freed by now: sessions do so until as many end as begin")
}
