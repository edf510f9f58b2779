// SPDX-License-Identifier: Apache-2.0

package verdict

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/answer"
	"github.com/gputrace/gputrace/event"
)

func TestSpare(t *testing.T) {
	const gib = 1 << 30
	require.Empty(t, Spare(&answer.Answer{}))
	a := &answer.Answer{
		Start:   1e9,
		Cached:  &answer.Cached{Bytes: 3891 << 20, Reserved: 5222 << 20, Used: 1331 << 20, Largest: gib / 4},
		Waiting: &answer.Waiting{Bytes: 416 << 20, Time: 3.5e9},
		Retried: &answer.Retried{Count: 44, Steps: 40, Slower: 2, With: 120e6, Without: 60e6},
	}
	var lines []string
	for _, s := range Spare(a) {
		lines = append(lines, s.String())
	}
	require.Equal(t, []string{
		"CACHED  3.8 GiB of 5.1 GiB reserved is free, even at the latest peak of 1.3 GiB (largest piece 256.0 MiB): gputrace whatif compares " +
			"settings of the allocator",
		"WAITING  416.0 MiB for another stream at +2.5 s: the program freed it, and work of a stream named to record_stream() may still use it",
		"RETRIED  44 requests were refused and recovered: PyTorch returned its cache to the driver and asked again; steps with one took 2.0 " +
			"times as long (120 ms instead of 60.0 ms)",
	}, lines)
	collect := "Linear is garbage in a cycle of references: call gc.collect(), or break the cycle"
	waste := &answer.Garbage{Bytes: 100 << 20, Total: 101 << 20, Advice: collect}
	require.Equal(t, "GARBAGE  100.0 MiB of 101.0 MiB in use at the end waited for Python's cycle collector. "+collect,
		Spare(&answer.Answer{Garbage: waste})[0].String())
	waste.About = true
	require.Contains(t, Spare(&answer.Answer{Garbage: waste, When: answer.AtPeak})[0].Text,
		"about 100.0 MiB of 101.0 MiB in use at the peak waited")
	waste.Time = 4e9
	require.Contains(t, Spare(&answer.Answer{Garbage: waste, Start: 1e9})[0].Text, "in use at +3.0 s waited")
	a = &answer.Answer{Cached: &answer.Cached{Bytes: gib, Reserved: 2 * gib, Used: gib, Largest: event.Unknown},
		Retried: &answer.Retried{Count: 1}}
	require.Equal(t, "1.0 GiB of 2.0 GiB reserved is free, even at the latest peak of 1.0 GiB: gputrace whatif compares settings of the "+
		"allocator", Spare(a)[0].Text)
	require.Equal(t, "1 request was refused and recovered: PyTorch returned its cache to the driver and asked again", Spare(a)[1].Text)
}

// TestReservedRises: what is reserved has its course, and the streams where there are many.
func TestReservedRises(t *testing.T) {
	const gib = 1 << 30
	c := &answer.Cached{Bytes: gib, Reserved: 2 * gib, Used: gib, Largest: event.Unknown, Streams: manyStreams, NewStreams: 1}
	require.NotContains(t, cached(c), "rose")
	c.From = gib / 2
	require.Contains(t, cached(c), "rose all along, from 512.0 MiB to 2.0 GiB: 3 streams were used, 1 of them only in the later half")
	c.NewStreams--
	require.Contains(t, cached(c), "rose all along, from 512.0 MiB to 2.0 GiB: gputrace whatif")
}
