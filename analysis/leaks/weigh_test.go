// SPDX-License-Identifier: Apache-2.0

package leaks

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
)

// TestWeighed: growth is negligible that takes more than a month to fill what is free, or less than a thousandth of the device a day.
func TestWeighed(t *testing.T) {
	const second, gib = 1e9, 1 << 30
	free := func(n, size uint64) *Options {
		d := event.Device{Type: event.DeviceCUDA}
		return &Options{Free: map[event.Device]uint64{d: n}, Size: map[event.Device]uint64{d: size}}
	}
	for name, c := range map[string]struct {
		bytes float64 // a second
		o     *Options
		note  bool
	}{
		"a number of each epoch":         {853, free(20*gib, 24*gib), true},
		"a number of each step":          {51200, free(20*gib, 24*gib), false},
		"full in 29 days":                {gib / (29 * 86400.), free(gib, gib), false},
		"full in 31 days":                {gib / (31 * 86400.), free(gib, gib), true},
		"little of a device almost full": {80 * gib / 1001. / 86400, free(gib, 80*gib), true},
		"more of it":                     {80 * gib / 999. / 86400, free(gib, 80*gib), false},
		"full within a day":              {80 * gib / 1001. / 86400, free(gib/16, 80*gib), false},
		"a full device":                  {1, free(0, gib), false},
		"nothing known":                  {1600, &Options{}, true},
		"nothing known, more":            {1700, &Options{}, false},
		"only the size, of an ended one": {31000, &Options{Size: map[event.Device]uint64{{Type: event.DeviceCUDA}: 80 * gib}, Ended: true},
			true},
		"of a device that is not in them": {31000, &Options{Size: map[event.Device]uint64{{Type: event.DeviceHIP}: 80 * gib}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			all := []Finding{{Device: event.Device{Type: event.DeviceCUDA}, Layer: event.LayerAllocator, Bytes: c.bytes}}
			findings, notes := weigh(all, &Steps{Period: second}, c.o)
			require.Len(t, notes, map[bool]int{true: 1}[c.note])
			require.Len(t, findings, map[bool]int{false: 1}[c.note])
			findings, notes = weigh(all, &Steps{}, c.o)
			require.Equal(t, all, findings, "no rate is known")
			require.Empty(t, notes)
		})
	}
}

// TestWeighedTogether: many small ones matter together, a small one beside a large one does not, and the order stays.
func TestWeighedTogether(t *testing.T) {
	var many []Finding
	for range 100 {
		many = append(many, Finding{Bytes: 100})
	}
	findings, notes := weigh(many, &Steps{Period: 1e9}, &Options{})
	require.Len(t, notes, 16, "1,657 B a second fill 4 GiB in a month")
	require.Len(t, findings, 84)
	findings, notes = weigh([]Finding{{Bytes: 1e6, Line: 1}, {Bytes: 3e5, Line: 2}, {Bytes: 10, Line: 3}, {Bytes: 5, Line: 4}},
		&Steps{Period: 1e9}, &Options{})
	require.Equal(t, []int{1, 2}, []int{findings[0].Line, findings[1].Line})
	require.Equal(t, []int{3, 4}, []int{notes[0].Line, notes[1].Line})
	r := &Report{Steps: Steps{Period: 1e9}, Notes: notes}
	day, known := r.PerDay()
	require.True(t, known)
	require.InDelta(t, 15*86400, day, 1e-6)
	_, known = (&Report{Notes: notes}).PerDay()
	require.False(t, known)
}

// TestEndedIsNeverFull: of a program that has ended no time is said until a device is full.
func TestEndedIsNeverFull(t *testing.T) {
	d := event.Device{Type: event.DeviceCUDA}
	for _, ended := range []bool{false, true} {
		f := []Finding{{Device: d, Layer: event.LayerAllocator, Bytes: 1 << 20, Seconds: math.NaN()}}
		fill(f, &Steps{Period: 1e9}, &Options{Free: map[event.Device]uint64{d: 1 << 30}, Ended: ended})
		require.Equal(t, ended, math.IsNaN(f[0].Seconds))
	}
}

// TestWeighedSuspect: what was seen too few times is a note where it will not matter, and what is in use besides is weighed too.
func TestWeighedSuspect(t *testing.T) {
	r := &Report{Steps: Steps{Count: 100, Period: 1e9}}
	r.suspect(nil, &Options{})
	r.suspect([]Finding{{Bytes: 10}}, &Options{})
	require.Len(t, r.Notes, 1)
	require.Empty(t, r.Suspects)
	require.EqualValues(t, 0, r.unexplained(500, &Options{}), "it is of the note")
	require.EqualValues(t, 0, r.unexplained(501, &Options{}), "the rest will not matter")
	require.EqualValues(t, 1e6, r.unexplained(1e6, &Options{}))
	full := &Options{Free: map[event.Device]uint64{{Type: event.DeviceCUDA}: 1 << 40, {Type: event.DeviceCUDA, Index: 1}: 10}}
	require.EqualValues(t, 501, r.unexplained(501, full), "of the device that is full first")
	r.suspect([]Finding{{Bytes: 1e6}}, &Options{})
	require.InDelta(t, 1e6, r.Suspects[0].Bytes, 0)
}

// TestFails: what rose too few times is growth if it filled the device before a request failed, and only then.
func TestFails(t *testing.T) {
	used := newDetector(nil, nil)
	used.level.add(1, floor{Bytes: 1000})
	used.level.advance(40)
	for _, c := range []struct {
		live uint64
		last int
		ends bool
	}{{249, 40, false}, {250, 40, true}, {250, 39, false}} {
		of := Finding{Bytes: 1, Period: 15, First: 10, Last: c.last}
		small := of
		of.LiveBytes, small.LiveBytes = c.live-10, 10
		r := &Report{Suspects: []Finding{of, small}}
		r.fails(used, &Options{})
		require.Len(t, r.Suspects, 2, "nothing failed")
		r.fails(used, &Options{Until: 1})
		require.Equal(t, c.ends, len(r.Findings) == 2 && r.Suspects == nil, c)
		require.Equal(t, c.ends, r.Doubt == FewRises)
	}
}
