// SPDX-License-Identifier: Apache-2.0

package whatif_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/steps"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/analysis/whatif"
	"github.com/gputrace/gputrace/event"
)

func streams(t *testing.T, j *job) []*whatif.Stream {
	t.Helper()
	trace, err := view.NewTrace(j.Stream, nil)
	require.NoError(t, err)
	out, err := whatif.NewStreams(trace)
	require.NoError(t, err)
	return out
}

// last is the event that was added last.
func (j *job) last() *event.Event { return &j.Events[len(j.Events)-1] }

// refuse is a request that finds no memory.
func (j *job) refuse(size uint64) { j.event(event.KindOutOfMemory, event.LayerAllocator, 0, size) }

// Requests of each device are a stream of their own, in the order of the devices; what the driver has beside the segments is outside.
func TestDevices(t *testing.T) {
	j := newJob()
	j.segment(0x7000_0000_0000, 12*mib)
	j.alloc(0x7000_0000_0000, 12*mib)
	j.event(event.KindAlloc, event.LayerDevice, 0x1000_0000, 3*mib) // of a library
	j.last().Device.Index = 1
	j.event(event.KindAlloc, event.LayerDevice, 0x2000_0000, 5*mib)
	j.free(0x7000_0000_0000)
	j.event(event.KindFree, event.LayerDevice, 0x2000_0000, event.Unknown)
	j.alloc(0x7000_0000_0000, 12*mib)
	other := newJob()
	other.segment(0x8000_0000_0000, 2*mib)
	other.alloc(0x8000_0000_0000, mib)
	for _, e := range other.Events {
		e.Device.Index, e.Time = 1, e.Time+1e6
		j.Events = append(j.Events, e)
	}
	j.Events = append(j.Events[len(j.Events)-2:], j.Events[:len(j.Events)-2]...) // the second device comes first
	for i := range j.Events {
		j.Events[i].Time = uint64(i+1) * 1000
	}
	all := streams(t, j)
	require.Len(t, all, 2)
	require.EqualValues(t, []int8{0, 1}, []int8{all[0].Device.Index, all[1].Device.Index})
	require.EqualValues(t, []uint64{2, 1}, []uint64{all[0].Allocs, all[1].Allocs})
	require.EqualValues(t, 5*mib, all[0].PeakOutside)
	require.Zero(t, all[0].Lost)
	require.False(t, all[0].Expandable)
	reserved, outside := all[0].Last()
	require.EqualValues(t, []uint64{12 * mib, 0}, []uint64{reserved, outside})
	require.EqualValues(t, 12*mib, all[0].Run(&whatif.Settings{}, nil).Peak)
	small := all[0].Run(&whatif.Settings{Device: 20 * mib}, &whatif.Options{Outside: 4 * mib})
	require.Nil(t, small.Failed)
	require.EqualValues(t, 20*mib-12*mib-4*mib, small.HeadRoom, "the library's 5 MiB were there between two requests only")
}

// A block whose requested size is not known has the size of the block; a stream that is not known is the usual one.
func TestUnknown(t *testing.T) {
	j := newJob()
	j.segment(0x7000_0000_0000, 2*mib)
	j.alloc(0x7000_0000_0000, 1024)
	j.last().Requested, j.last().Stream = event.Unknown, event.Unknown
	j.alloc(0x7000_0000_0400, 1024)
	j.free(0x7000_0000_0000)
	j.alloc(0x7000_0000_0000, 1024)
	s := streams(t, j)[0]
	require.EqualValues(t, 1, s.Guessed)
	require.EqualValues(t, 3, s.Allocs)
	require.EqualValues(t, 2*mib, s.Run(&whatif.Settings{}, nil).Peak, "one segment: all are of one stream")
	agreement := s.Check(&whatif.Settings{}, nil)
	require.Equal(t, whatif.Agreement{Compared: 4, Equal: 4}, *agreement)
	require.True(t, agreement.Exact())
	require.False(t, (&whatif.Agreement{}).Exact(), "nothing was compared")
}

// A total that is not the replay's is counted, with its time.
func TestDisagreement(t *testing.T) {
	j := made()
	j.Events[3].Reserved += mib
	j.Events[7].Reserved += mib
	a := streams(t, j)[0].Check(&whatif.Settings{}, nil)
	require.Equal(t, whatif.Agreement{Compared: 4, Equal: 2, FirstAt: j.Events[3].Time}, *a)
	require.False(t, a.Exact())
}

// Where the driver refused memory first, returned segments are the allocator's doing and not a call of empty_cache. The request that was
// refused then is replayed: on a larger device it is served, and noted.
func TestRefusedThen(t *testing.T) {
	const a, b = 0x7000_0000_0000, 0x6000_0000_0000
	j := newJob()
	j.segment(a, 12*mib)
	j.alloc(a, 12*mib)
	j.free(a)
	j.event(event.KindOutOfMemory, event.LayerDevice, 0, 30*mib)
	j.release(a)
	j.refuse(30 * mib)
	j.segment(b, 12*mib)
	j.alloc(b, 12*mib)
	s := streams(t, j)[0]
	require.Zero(t, s.Emptied)
	large := s.Run(&whatif.Settings{}, nil)
	require.Nil(t, large.Failed)
	require.NotNil(t, large.Past)
	require.EqualValues(t, 30*mib, large.Past.Requested)
	require.Equal(t, event.Unknown, large.Past.Free, "the device has no end")
	require.Equal(t, event.Unknown, large.HeadRoom)
	require.EqualValues(t, 42*mib, large.Peak, "the request is served, freed, and its segment used for 12 MiB")
	small := s.Run(&whatif.Settings{Device: 20 * mib}, nil)
	require.NotNil(t, small.Failed)
	require.Equal(t, 1, small.Retries)
	require.EqualValues(t, j.Events[5].Time, small.Failed.Time)
	require.Equal(t, []uint64{30 * mib, 0, 0, 20 * mib}, []uint64{small.Failed.Size, small.Failed.Reserved, small.Failed.Allocated,
		small.Failed.Free})
	for _, device := range []uint64{20 * mib, 100 * mib, 0} {
		check := s.Check(&whatif.Settings{Device: device}, nil)
		require.Equal(t, whatif.Agreement{Compared: 4, Equal: 4}, *check,
			"a failure that was recorded is one on every device, and does not end it: %d", device)
	}
}

// What a fraction leaves bounds the room, and is what is left at the least.
func TestFraction(t *testing.T) {
	s := streams(t, made())[0]
	r := s.Run(&whatif.Settings{Device: 100 * mib, Fraction: 0.5}, nil)
	require.Nil(t, r.Failed)
	require.EqualValues(t, 50*mib-42*mib, r.HeadRoom)
	require.EqualValues(t, 42*mib, r.Peak)
	require.EqualValues(t, made().Events[3].Time, r.PeakAt)
	require.NotNil(t, s.Run(&whatif.Settings{Device: 100 * mib, Fraction: 0.4}, nil).Failed)
	require.EqualValues(t, 100*mib-42*mib, s.Run(&whatif.Settings{Device: 100 * mib}, nil).HeadRoom)
}

// Of two rules that differ by version, the one that comes to the recorded totals is taken, whatever the version says. Two free blocks of
// 12 MiB lie in an older segment at a higher address, and a younger one at a lower address; which is taken shows when one is returned.
func TestRules(t *testing.T) {
	const high, low, next = 0x7000_0000_0000, 0x6000_0000_0000, 0x5000_0000_0000
	for _, oldest := range []bool{false, true} {
		j := newJob()
		j.segment(high, 24*mib)
		j.alloc(high, 24*mib)
		j.segment(low, 26*mib)
		j.alloc(low, 26*mib)
		j.free(high)
		j.alloc(high, 12*mib)
		j.free(low)
		j.alloc(low, 14*mib)
		taken := uint64(low + 14*mib) // 12 MiB, as the block behind high
		if oldest {
			taken = high + 12*mib
		}
		j.alloc(taken, 12*mib)
		j.free(low)
		j.free(high)
		if oldest {
			j.release(low)
		} else {
			j.release(high)
		}
		j.alloc(next, mib/2)
		j.reserved += 2 * mib
		j.last().Reserved = j.reserved
		for version, want := range map[string]bool{"2.6.0": oldest, "2.15.0": oldest, "": oldest} {
			r := report(t, j, whatif.Ask{PyTorch: version})
			require.Equal(t, want, r.Rules.OldestFirst, "recorded %v, version %q, %+v", oldest, version, r.Check)
			require.True(t, r.Check.Exact(), "%+v", r.Check)
		}
	}
	j := made()
	j.Events[3].Reserved += mib
	require.False(t, report(t, j, whatif.Ask{PyTorch: "2.6.0"}).Rules.OldestFirst, "neither agrees: those of the version")
	require.True(t, report(t, j, whatif.Ask{PyTorch: "2.15.0"}).Rules.OldestFirst)
}

// The usual settings are replayed on the recorded device, each alone; garbage is collected only with a fraction.
func TestUsual(t *testing.T) {
	trace, err := view.NewTrace(made().Stream, nil)
	require.NoError(t, err)
	known := func(uint32, event.Device, *whatif.Stream) whatif.Known {
		return whatif.Known{Total: 60 * mib, Outside: 10 * mib}
	}
	ask := &whatif.Ask{Outside: event.Unknown, Recorded: whatif.Settings{MaxSplit: 64 * mib}}
	reports, err := whatif.Find(trace, &steps.Table{}, ask, known)
	require.NoError(t, err)
	r := &reports[0]
	require.False(t, r.OutsideUnknown)
	require.EqualValues(t, 10*mib, r.Outside)
	require.Len(t, r.Rows, 6)
	var conf []string
	for _, row := range r.Rows {
		require.EqualValues(t, 60*mib, row.Device)
		conf = append(conf, row.Conf())
	}
	require.Equal(t, []string{
		"max_split_size_mb:64", "expandable_segments:True", "max_split_size_mb:128", "max_split_size_mb:512", "roundup_power2_divisions:4",
		"roundup_power2_divisions:8",
	}, conf)
	require.EqualValues(t, 50*mib, r.Room())
	need := r.Need()
	for _, tt := range []struct {
		memory uint64
		fails  bool
	}{{need, false}, {need - 2*mib, true}} {
		settings := whatif.Settings{MaxSplit: 64 * mib, Device: tt.memory}
		require.Equal(t, tt.fails, r.Run(&settings, nil).Failed != nil, "%d", tt.memory)
	}
	ask.Fraction, ask.Device, ask.Outside = 0.5, 80*mib, 0
	reports, err = whatif.Find(trace, &steps.Table{}, ask, known)
	require.NoError(t, err)
	r = &reports[0]
	require.Len(t, r.Rows, 7)
	require.Equal(t, "garbage_collection_threshold:0.8", r.Rows[6].Conf())
	require.InDelta(t, 0.5, r.Rows[6].Fraction, 0)
	require.EqualValues(t, 80*mib, r.Rows[6].Device)
	require.Zero(t, r.Outside)
	ask.Settings = []whatif.Settings{{Expandable: true}}
	reports, err = whatif.Find(trace, &steps.Table{}, ask, known)
	require.NoError(t, err)
	expandable := whatif.Settings{Expandable: true, Device: reports[0].Need()}
	require.Nil(t, reports[0].Run(&expandable, nil).Failed, "of one setting that was asked for, that one")
	expandable.Device -= 2 * mib
	require.NotNil(t, reports[0].Run(&expandable, nil).Failed)
}

// Settings at their bounds, as PyTorch takes them.
func TestParseConfBounds(t *testing.T) {
	for text, ok := range map[string]bool{
		"max_split_size_mb:20": true, "max_split_size_mb:19": false, "garbage_collection_threshold:0": true,
		"garbage_collection_threshold:1":    false,
		"garbage_collection_threshold:0.99": true, "garbage_collection_threshold:-0.1": false, "roundup_power2_divisions:3": false,
		"roundup_power2_divisions:2": true, "roundup_power2_divisions:1": true, "roundup_power2_divisions:6": false,
		"roundup_power2_divisions:x": false,
		"expandable_segments:maybe":  true, "other:1": true, " expandable_segments:true": true,
	} {
		_, err := whatif.ParseConf(text)
		require.Equal(t, ok, err == nil, text)
	}
	one, err := whatif.ParseConf("roundup_power2_divisions:1")
	require.NoError(t, err)
	require.Empty(t, one.Conf(), "PyTorch's default")
	yes, err := whatif.ParseConf(" expandable_segments:true")
	require.NoError(t, err)
	require.True(t, yes.Expandable)
}

// Sizes of batches are positive numbers.
func TestParseSizes(t *testing.T) {
	sizes, err := whatif.ParseSizes("8,16,0.5")
	require.NoError(t, err)
	require.Equal(t, []float64{8, 16, 0.5}, sizes)
	for _, bad := range []string{"", "0", "-1", "inf", "NaN", "8,,9", "x"} {
		_, err := whatif.ParseSizes(bad)
		require.Error(t, err, bad)
	}
	off := whatif.NewBatches([]whatif.Batch{{Size: 1, Need: 100}, {Size: 2, Need: 230}, {Size: 3, Need: 300}}, 460)
	require.InDelta(t, 100, off.Slope, 1e-9)
	require.InDelta(t, 10, off.Intercept, 1e-9)
	require.InDelta(t, 20, off.Residual, 1e-9)
	require.InDelta(t, 4, off.Largest, 1e-9, "10 + 4 x 100 + 20 fits, 10 + 5 x 100 does not")
	require.Equal(t, 3, off.Points)
	falling := whatif.NewBatches([]whatif.Batch{{Size: 1, Need: 300}, {Size: 2, Need: 200}}, 460)
	require.False(t, falling.Known)
	require.Zero(t, whatif.NewBatches([]whatif.Batch{{Size: 1, Need: 300}, {Size: 2, Need: 500}}, 50).Largest, "nothing fits")
	all := whatif.Settings{Device: 100}
	require.EqualValues(t, 0, all.Room(150, 0))
	require.EqualValues(t, 0, (&whatif.Settings{}).Room(1, 0))
}
