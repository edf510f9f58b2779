// SPDX-License-Identifier: Apache-2.0

package json

import (
	"bytes"
	"encoding/json"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/analysis/steps"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/internal/eventtest"
)

// TestWriteLeaks reads back what is written: what is not known is null.
func TestWriteLeaks(t *testing.T) {
	nan := math.NaN()
	known := leaks.Finding{
		Kind: leaks.Leak, Layer: event.LayerAllocator, Device: event.Device{Type: event.DeviceCUDA}, File: "/home/a/gpt.py", Line: 38,
		Function: "Block.forward",
		Stack:    eventtest.Stack(eventtest.Report + " " + eventtest.Own), Holder: "main() local seen[0..49]", Blocks: 1. / 4, Requested: 1,
		Bytes: 128, Period: 4,
		First: 11, Last: 58, LiveBytes: 4096, LiveBlocks: 8, Share: 0.5, Confidence: leaks.Medium, Seconds: 12,
	}
	unknown := leaks.Finding{
		Kind: leaks.DeviceGrowth, Layer: event.LayerDevice, Function: "foo", Requested: nan, Bytes: 8, Blocks: 1, Period: 1, Share: nan,
		Seconds: nan, Confidence: leaks.Low,
	}
	var buf bytes.Buffer
	require.NoError(t, WriteLeaks(&buf, &leaks.Report{
		Verdict: leaks.Growing, Findings: []leaks.Finding{known, unknown},
		Steps: leaks.Steps{Count: 58, Source: steps.SourceBackward, On: "a.py:3 main", Period: 2.5e6},
	}, "GROWING  gpt.py:38"))
	var got map[string]any
	require.NoError(t, json.Unmarshal(buf.Bytes(), &got))
	require.Equal(t, "gputrace leaks", got["format"])
	require.Equal(t, "growing", got["verdict"])
	require.Equal(t, "GROWING  gpt.py:38", got["sentence"])
	require.Equal(t, map[string]any{"count": 58., "source": "backward", "on": "a.py:3 main", "period_ms": 2.5}, got["steps"])
	findings := got["findings"].([]any)
	require.Equal(t, map[string]any{
		"kind": "leak", "layer": "torch", "device": "cuda:0", "file": "/home/a/gpt.py", "line": 38., "function": "Block.forward",
		"stack":  []any{map[string]any{"name": "gpt.py:38", "function": "Block.forward", "file": "/home/a/gpt.py", "line": 38.}},
		"holder": "main() local seen[0..49]", "holder_newer_blocks": 0.0, "requested_bytes_per_step": 1., "block_bytes_per_step": 128.,
		"blocks_per_step": .25, "period_steps": 4.,
		"first_step": 11., "last_step": 58., "live_bytes": 4096., "live_blocks": 8., "share_of_growth": .5, "confidence": "medium",
		"seconds_to_limit": 12., "phase": nil, "usual_end": nil, "advice": "each block is one number: keep .item() of it in place of the tensor",
	}, findings[0])
	other := findings[1].(map[string]any)
	for _, key := range []string{"file", "line", "holder", "requested_bytes_per_step", "share_of_growth", "seconds_to_limit", "usual_end",
		"advice"} {
		value, there := other[key]
		require.True(t, there, key)
		require.Nil(t, value, key)
	}
}

// TestWriteLeaksPast: what grew and no longer does is not among what grows, and not lost.
func TestWriteLeaksPast(t *testing.T) {
	var buf bytes.Buffer
	finding := func(line int) leaks.Finding { return leaks.Finding{File: "a.py", Line: line, First: 2, Last: 40} }
	require.NoError(t, WriteLeaks(&buf, &leaks.Report{
		Verdict: leaks.Steady, Past: []leaks.Finding{finding(3), finding(4)}, Stopped: []leaks.Finding{finding(5)},
	}, ""))
	var got struct {
		Findings, Past, Stopped []struct {
			Line int
			Last int `json:"last_step"`
		}
	}
	require.NoError(t, json.Unmarshal(buf.Bytes(), &got))
	require.Empty(t, got.Findings)
	require.Len(t, got.Past, 2)
	require.Equal(t, 4, got.Past[1].Line)
	require.Len(t, got.Stopped, 1)
	require.Equal(t, 40, got.Stopped[0].Last)
}

func TestWriteLeaksNothing(t *testing.T) {
	var buf bytes.Buffer
	require.NoError(t, WriteLeaks(&buf, &leaks.Report{Verdict: leaks.Unclear}, ""))
	require.JSONEq(t, `{"format": "gputrace leaks", "version": 1, "verdict": "unknown", "findings": [],
		"steps": {"count": null, "source": null, "on": null, "period_ms": null}}`, buf.String())
}
