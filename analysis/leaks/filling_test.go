// SPDX-License-Identifier: Apache-2.0

package leaks

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/advice"
	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/event"
)

// TestFilling: growth in a container with a bound is no finding if the container fits when it is full, together with others on its device.
func TestFilling(t *testing.T) {
	const mib = 1 << 20
	first := event.Device{Type: event.DeviceCUDA}
	second := event.Device{Type: event.DeviceCUDA, Index: 1}
	// one has 20 of 100 elements of 1 MiB each, 5 of which are newer than the reading: 15 were read.
	one := func(device event.Device) Finding {
		return Finding{Device: device, Layer: event.LayerAllocator, LiveBytes: 20 * mib, LiveBlocks: 20, Newer: 5,
			proof: proof{facts: advice.Facts{Length: 15, Most: 100}}}
	}
	full, unread, free := one(first), one(first), Finding{Device: first, Layer: event.LayerAllocator, LiveBytes: mib, LiveBlocks: 1}
	older := one(first) // 15 of 45 elements are from before the attach, and of the same size
	older.proof.facts.Length, older.proof.facts.Each = 45, 2*mib
	full.proof.facts.Length, unread.Newer = 100, 20
	for name, c := range map[string]struct {
		all               []Finding
		free              map[event.Device]uint64
		findings, filling int
	}{
		"fits":                {[]Finding{one(first)}, map[event.Device]uint64{first: 80 * mib}, 0, 1},
		"does not fit":        {[]Finding{one(first)}, map[event.Device]uint64{first: 79 * mib}, 1, 0},
		"two do not fit":      {[]Finding{one(first), one(first)}, map[event.Device]uint64{first: 159 * mib}, 2, 0},
		"on two devices":      {[]Finding{one(first), one(second)}, map[event.Device]uint64{first: 80 * mib, second: 79 * mib}, 1, 1},
		"not known":           {[]Finding{one(first)}, nil, 0, 1},
		"without a bound":     {[]Finding{free, one(first)}, nil, 1, 1},
		"with older elements": {[]Finding{older}, map[event.Device]uint64{first: 79 * mib}, 1, 0},
		"full":                {[]Finding{full}, nil, 1, 0},
		"newer than reading":  {[]Finding{unread}, nil, 1, 0},
	} {
		r := &Report{}
		left := r.filling(c.all, &Options{Free: c.free})
		require.Len(t, left, c.findings, name)
		require.Len(t, r.Filling, c.filling, name)
		for i := range left {
			const bounded = "does not fit on the device when it is full"
			require.Equal(t, left[i].Bound() != nil, strings.Contains(left[i].Advice(), bounded), name)
		}
		for i := range r.Filling {
			require.Equal(t, &Bound{15, 100, 100 * mib, false, 80 * mib}, r.Filling[i].Bound(), name)
		}
	}
}

// TestFilled: a container that is full has filled while a finding grew if it had fewer elements before, or if what it would have dropped
// is nowhere.
func TestFilled(t *testing.T) {
	const kib = 1 << 10
	one := func(was uint64) Finding { // 60 of 80 elements of 64 KiB are of the line, and the other 20 from before the attach
		return Finding{Holder: "a.kept[0..79]", Sites: []string{"a.py:1 f"}, LiveBytes: 60 * 64 * kib, LiveBlocks: 60, Grown: 60 * 64 * kib,
			proof: proof{facts: advice.Facts{Length: 80, Most: 80, Was: was, Each: 64 * kib}}}
	}
	moved, several, more := one(20), one(0), one(20)
	moved.proof.facts.Was, moved.proof.facts.Moved, several.proof.facts.Containers, more.Grown = 0, true, 2, 100*64*kib
	fuller, nested := one(0), one(0)
	fuller.proof.facts.Most = 90
	nested.LiveBlocks, nested.LiveBytes = 600, 600*64*kib
	spilled := func(site string) Holder { return Holder{site, "a.spilled[0..29]", 30 * 64 * kib, 30} }
	rows := func(more ...Holder) []Holder {
		return append([]Holder{
			{Site: "a.py:1 f", Name: "a.kept[0..79]", Bytes: 60 * 64 * kib, Blocks: 60},
			{Site: stacks.BeforeAttach, Name: "a.kept[0..79]", Bytes: 20 * 64 * kib, Blocks: 20},
			{Site: stacks.BeforeAttach, Name: "net.weight", Bytes: 100 << 20, Blocks: 100},
			{Site: "a.py:2 g", Name: "b.kept[0..79]", Bytes: 80 * 64 * kib, Blocks: 80},
		}, more...)
	}
	for name, c := range map[string]struct {
		f    Finding
		rows []Holder
		want bool
	}{
		"had fewer":                   {one(20), nil, true},
		"was full":                    {one(80), rows(), false},
		"was read once":               {one(0), nil, false},
		"nothing was dropped":         {one(0), rows(), true},
		"what was dropped":            {one(0), rows(spilled(stacks.BeforeAttach)), false},
		"its own, dropped":            {one(0), rows(spilled("a.py:1 f")), false},
		"it may have been":            {one(0), rows(Holder{Site: stacks.BeforeAttach, Bytes: 30 * 64 * kib, Blocks: 30}), false},
		"not full":                    {fuller, rows(), false},
		"elements grow by themselves": {nested, rows(), false},
		"others than before":          {moved, rows(), false},
		"several, read once":          {several, rows(), false},
		"more than fills it":          {more, rows(), false},
	} {
		require.Equal(t, c.want, c.f.hasFilled(c.rows, nil), name)
	}
	part, other, inner := one(0), one(0), one(0)
	part.Holder, other.Holder, inner.Holder = "a.kept[0..79].done", "b.kept[0..79]", "a.kept[0..79].states[0..7]"
	inner.LiveBlocks, inner.LiveBytes = 600, 600*64*kib
	all := []Finding{one(20), part, other, inner}
	all[0].Holder, all[0].proof.filled = "a.kept[0..79].obs", true
	fillTogether(all)
	require.Equal(t, []bool{true, true, false}, []bool{all[0].proof.filled, all[1].proof.filled, all[2].proof.filled})
	require.False(t, all[3].proof.filled, "its elements grow by themselves")
	require.Equal(t, &Bound{80, 80, 80 * 64 * kib, false, 0}, all[0].Bound())
	require.True(t, all[0].Bound().IsFull())
}

// TestPassedOn: of what a full cache hands on to a list, the list is the holder.
func TestPassedOn(t *testing.T) {
	const each = 64 << 10
	row := func(site, name string, blocks uint64) Holder { return Holder{site, name, blocks * each, blocks} }
	const site = "a.py:1 f"
	for name, c := range map[string]struct {
		before, now []Holder
		want        string
	}{
		"the list grows": {
			[]Holder{row(stacks.BeforeAttach, "c.entries[0..99][1]", 100), row(stacks.BeforeAttach, "c.spilled[0..49]", 50)},
			[]Holder{row(stacks.BeforeAttach, "c.entries[0..99][1]", 40), row(site, "c.entries[0..99][1]", 61),
				row(stacks.BeforeAttach, "c.spilled[0..109]", 110)}, "c.spilled[0..109]",
		},
		"the cache grows": {
			[]Holder{row(site, "c.entries[0..49][1]", 50), row(site, "c.spilled[0..49]", 50)},
			[]Holder{row(site, "c.entries[0..99][1]", 100), row(site, "c.spilled[0..109]", 110)}, "",
		},
		"many take it": {
			[]Holder{row(site, "c.entries[0..99][1]", 100), row(site, "a[0..49]", 50), row(site, "b[0..49]", 50), row(site, "d[0..49]", 50)},
			[]Holder{row(site, "c.entries[0..99][1]", 100), row(site, "a[0..69]", 70), row(site, "b[0..69]", 70), row(site, "d[0..69]", 70)}, "",
		},
		"another line's": {
			[]Holder{row(site, "c.entries[0..99][1]", 100), row("a.py:9 g", "a[0..49]", 50)},
			[]Holder{row(site, "c.entries[0..99][1]", 100), row("a.py:9 g", "a[0..99]", 100)}, "",
		},
		"other sizes": {
			[]Holder{row(site, "c.entries[0..99][1]", 100), {site, "a[0..49]", 50 * 512, 50}},
			[]Holder{row(site, "c.entries[0..99][1]", 100), {site, "a[0..99]", 100 * 512, 100}}, "",
		},
		"read once": {nil, []Holder{row(site, "c.entries[0..99][1]", 100), row(site, "c.spilled[0..109]", 110)}, ""},
	} {
		f := Finding{Holder: "c.entries[0..99][1]", Sites: []string{site}, LiveBlocks: 61, LiveBytes: 61 * each}
		require.Equal(t, c.want, f.passedOn(&Options{Holders: c.now, Earlier: [][]Holder{c.before}}), name)
	}
	f := Finding{Holder: "c.entries[0..99][1]", Sites: []string{site}, LiveBlocks: 61, LiveBytes: 61 * each, Grown: 61 * each}
	once := &Options{Facts: map[string]advice.Facts{f.Holder: {Length: 100, Most: 100, Full: true}}}
	once.Holders = []Holder{row(stacks.BeforeAttach, f.Holder, 39), row(site, f.Holder, 61), row(stacks.BeforeAttach, "c.spilled[0..49]", 50)}
	require.Equal(t, "c.spilled[0..49]", f.passedOn(once), "a full cache")
	once.Holders[2].Blocks, once.Holders[2].Bytes = 30, 30*each
	require.Empty(t, f.passedOn(once), "less than half of the growth")
	f = Finding{Holder: "c.entries[0..99][1]", Sites: []string{site}, Blocks: 1, Period: 1}
	require.Equal(t, "c.entries", f.grew(nil).Container)
	same := [][]Holder{{row(stacks.BeforeAttach, "c.entries[0..99][1]", 100)}}
	require.Empty(t, f.grew(same).Container, "it had as many before")
}

// TestLonger: a batch that is copied to the device in the input phase, longer each time, is no finding; anything else is.
func TestLonger(t *testing.T) {
	stack := func(operator string) *event.Stack {
		return &event.Stack{Frames: []event.Frame{
			{Kind: event.FrameNative, Func: "at::_ops::" + operator + "::call"}, {Kind: event.FramePython, File: "train.py", Line: 3, Func: "main"},
		}}
	}
	batch := func() Finding {
		return Finding{Layer: event.LayerAllocator, Phase: phases.Input, Stack: stack("to_dtype_layout")}
	}
	batch1, history, kept, forward, unread := batch(), batch(), batch(), batch(), batch()
	batch1.Stack, history.Stack, kept.Blocks, forward.Phase, unread.Stack = stack("to_device"), stack("cat"), 1, phases.Forward, nil
	r := &Report{}
	require.Len(t, r.longer([]Finding{batch1, history, kept, forward, unread}), 4)
	require.Len(t, r.Longer, 1)
}

// TestGets: one reading tells which container gets the blocks of a growing line: one with many more elements than a rise has blocks.
func TestGets(t *testing.T) {
	for name, c := range map[string]struct {
		f    Finding
		want string
	}{
		"a list":        {Finding{Holder: "a.kept[0..39]", Blocks: 1, Period: 1}, "a.kept"},
		"two a step":    {Finding{Holder: "a.kept[0..39][0..1]", Blocks: 2, Period: 1}, "a.kept"},
		"many a step":   {Finding{Holder: "a.layers[0..39].cache", Blocks: 40, Period: 1}, ""},
		"each epoch":    {Finding{Holder: "a.kept[0..39]", Blocks: .4, Period: 25}, "a.kept"},
		"a short list":  {Finding{Holder: "a.kept[0..8]", Blocks: 1, Period: 1}, ""},
		"a queue":       {Finding{Holder: "q.queue[0..10][0..1]", Blocks: 6, Period: 1}, "q.queue"},
		"longer blocks": {Finding{Holder: "a.kept[0..39]", Requested: 100, Period: 1}, ""},
	} {
		require.Equal(t, c.want, c.f.gets().Container, name)
	}
}

// TestFullContainerOfTwoLines: a container that was full at both readings takes the blocks of one line in place of another's, unless these
// are elsewhere. What another variable had before was not dropped by it, and elements that the last reading could not name are its own.
func TestFullContainerOfTwoLines(t *testing.T) {
	f := Finding{Holder: "t.losses[0..99]", Sites: []string{"a.py:2 f"}, LiveBytes: 57 * 512, LiveBlocks: 57, Grown: 57 * 512,
		proof: proof{facts: advice.Facts{Length: 100, Most: 100, Was: 100, Each: 512}}}
	row := func(site, name string, blocks uint64) Holder { return Holder{site, name, blocks * 512, blocks} }
	before := []Holder{row("a.py:1 f", "t.losses[0..80]", 81), row(stacks.BeforeAttach, "t.table[0..9][0..7]", 60)}
	now := func(more ...Holder) []Holder {
		return append([]Holder{
			row("a.py:2 f", "t.losses[0..99]", 57), row("a.py:1 f", "t.losses[0..99]", 32), row("a.py:1 f", "", 11),
			row(stacks.BeforeAttach, "t.table[0..9][0..7]", 53),
		}, more...)
	}
	for name, c := range map[string]struct {
		now, before []Holder
		want        bool
	}{
		"freed":                {now(), before, true},
		"in a list":            {now(row("a.py:1 f", "t.all[0..56]", 57)), before, false},
		"of another size":      {now(Holder{"a.py:1 f", "t.all[0..56]", 57 * 4096, 57}), before, false},
		"perhaps in a list":    {now(row("a.py:1 f", "", 40)), before, false},
		"no earlier reading":   {now(), nil, false},
		"of the growth's half": {now(), append([]Holder{row("a.py:2 f", "t.losses[0..80]", 30)}, before...), false},
	} {
		require.Equal(t, c.want, f.hasFilled(c.now, [][]Holder{c.before}), name)
	}
}

// TestFollowsInput: one block that a longer one replaces follows the batch if both grow by the same part, and is not joined of parts.
func TestFollowsInput(t *testing.T) {
	one := func(requested float64, live uint64, operator string) *Finding {
		return &Finding{Layer: event.LayerAllocator, Requested: requested, LiveBytes: live, Holder: "a.py:9 epoch() local out",
			Stack: &event.Stack{Frames: []event.Frame{{Kind: event.FrameNative, Func: operator}}}}
	}
	input := one(5<<10, 2<<20, "at::_ops::to_device::call")
	many, other := one(640, 256<<10, "at::_ops::log_softmax::call"), one(640, 256<<10, "at::_ops::log_softmax::call")
	many.Blocks, other.Device = 1, event.Device{Type: event.DeviceCUDA, Index: 1}
	kept := one(640, 256<<10, "at::_ops::log_softmax::call")
	kept.Holder = "a.py:9 main() local log.out"
	for name, c := range map[string]struct {
		f    *Finding
		want bool
	}{
		"its output":             {one(640, 256<<10, "at::_ops::log_softmax::call"), true},
		"of half the growth":     {one(320, 256<<10, "at::_ops::log_softmax::call"), false},
		"joined":                 {one(640, 256<<10, "at::_ops::cat::call"), false},
		"lengthened":             {one(640, 256<<10, "at::_ops::constant_pad_nd::call"), false},
		"kept by an object":      {kept, false},
		"more blocks":            {many, false},
		"on another device":      {other, false},
		"nothing of it is there": {one(640, 0, "at::_ops::log_softmax::call"), false},
	} {
		require.Equal(t, c.want, c.f.follows(input), name)
	}
}

// TestAddsElements: containers within the elements of one with a bound have none.
func TestAddsElements(t *testing.T) {
	for _, c := range []struct {
		holder       string
		was          uint64 // elements at an earlier reading, of 5 now of 1 MiB each
		bytes        float64
		period       int
		addsElements bool
	}{
		{"slots[0..4]", 0, 1, 1, true},
		{"slots[0..4][0..2]", 0, 1 << 17, 1, false},
		{"slots[0..4][0..2]", 5, 1 << 17, 1, false},
		{"slots[0..4][0..2]", 3, 1 << 17, 1, true},
		{"slots[0..4][0..19]", 0, 1 << 14, 64, true},
		{"clients[0..4].history[0..9]", 0, 1 << 17, 4, false},
	} {
		f := Finding{Holder: c.holder, Bytes: c.bytes, Period: c.period, LiveBytes: 5 << 20, LiveBlocks: 5}
		f.proof.facts = advice.Facts{Length: 5, Most: 16, Was: c.was}
		require.Equal(t, c.addsElements, f.addsElements(), "%+v", c)
		require.Equal(t, c.addsElements, f.Bound() != nil, "%+v", c)
	}
}
