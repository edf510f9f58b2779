// SPDX-License-Identifier: Apache-2.0

package pprof

import (
	"bytes"
	"os"
	"runtime"
	rpprof "runtime/pprof"
	"strings"
	"testing"

	"github.com/google/pprof/profile"
	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/stacks"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/internal/words"
)

// sanitized is entries as a profile has them: its strings are UTF-8, and it has no text of lines.
func sanitized(entries []view.Row) []view.Row {
	for i := range entries {
		e := &entries[i]
		e.Name, e.Func, e.File, e.Source = words.Valid(e.Name), words.Valid(e.Func), words.Valid(e.File), ""
		for j := range e.Stack {
			c := &e.Stack[j]
			c.Name, c.Func, c.File = words.Valid(c.Name), words.Valid(c.Func), words.Valid(c.File)
		}
	}
	return entries
}

// TestEntriesOfOurs: a profile has the tables of the v that it was made of, in any detail.
func TestEntriesOfOurs(t *testing.T) {
	v, _ := recording()
	for _, detail := range []Detail{DetailSite, DetailVisible, DetailFull} {
		_, p := write(t, func(in *Input) { in.Detail = detail })
		for by := range view.RowKindNames {
			kind := view.RowKind(by)
			if kind == view.ByStack && detail == DetailFull {
				continue // it has more frames
			}
			require.Equal(t, view.GroupRows(sanitized(v.Rows()), kind), view.GroupRows(Rows(p), kind), "%s, detail %d", kind, detail)
		}
	}
}

// foreign is a profile of another tool: frames by file, line and function, leaf first.
func foreign(frames ...[3]string) *profile.Profile {
	m := &profile.Mapping{ID: 1, File: "/usr/bin/python3"}
	p := &profile.Profile{
		SampleType: []*profile.ValueType{{Type: "inuse_space", Unit: "bytes"}}, PeriodType: &profile.ValueType{}, Mapping: []*profile.Mapping{m},
	}
	s := &profile.Sample{Value: []int64{100}}
	for i, f := range frames {
		fn := &profile.Function{ID: uint64(i + 1), Name: f[2], Filename: f[0]}
		loc := &profile.Location{ID: uint64(i + 1), Mapping: m, Line: []profile.Line{{Function: fn, Line: int64(len(f[1]))}}}
		p.Function, p.Location, s.Location = append(p.Function, fn), append(p.Location, loc), append(s.Location, loc)
	}
	p.Sample = []*profile.Sample{s}
	return p
}

func TestEntriesOfOthers(t *testing.T) {
	const site = "/venv/lib/python3.11/site-packages/torch/nn.py"
	for name, c := range map[string]struct {
		p    *profile.Profile
		want view.Row
	}{
		"the leaf": {
			foreign([3]string{"/a/x.py", "===", "f"}, [3]string{"/a/x.py", "=", "main"}),
			view.Row{Name: "x.py:3", Func: "f", File: "/a/x.py", Line: 3},
		},
		"libraries": {
			foreign([3]string{"", "", "malloc"}, [3]string{site, "=", "Linear"}, [3]string{"/usr/lib/python3/x.py", "=", "g"},
				[3]string{"/a/x.py", "==", "f"}),
			view.Row{Name: "x.py:2", Func: "f", File: "/a/x.py", Line: 2},
		},
		"all libraries": {
			foreign([3]string{"", "", "malloc"}, [3]string{site, "=", "Linear"}), view.Row{Name: "nn.py:1", Func: "Linear", File: site, Line: 1},
		},
		"native":   {foreign([3]string{"", "", "malloc"}), view.Row{Name: "malloc"}},
		"no stack": {foreign(), view.Row{Name: stacks.NoStack}},
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, c.p.CheckValid())
			entries := Rows(c.p)
			require.Len(t, entries, 1)
			require.Len(t, entries[0].Stack, len(c.p.Location))
			c.want.Layer, c.want.Device, c.want.Bytes, c.want.Stack = "unknown", "unknown", 100, entries[0].Stack
			require.Equal(t, c.want, entries[0])
		})
	}
}

// kept is what TestEntriesOfGo looks for in a profile of this very test.
var kept []byte

// TestEntriesOfGo reads a profile of Go's own runtime.
func TestEntriesOfGo(t *testing.T) {
	rate := runtime.MemProfileRate
	defer func() { runtime.MemProfileRate = rate }()
	runtime.MemProfileRate = 1
	kept = bytes.Repeat([]byte("kept"), 1<<20)
	runtime.GC()
	var buf bytes.Buffer
	require.NoError(t, rpprof.Lookup("heap").WriteTo(&buf, 0))
	p, err := Parse(&buf)
	require.NoError(t, err)
	bytes := int64(0)
	for _, e := range view.GroupRows(Rows(p), view.ByLine) {
		if strings.HasPrefix(e.Name, "read_test.go:") && strings.HasSuffix(e.Func, "TestEntriesOfGo") {
			bytes += e.Bytes
		}
	}
	require.GreaterOrEqual(t, bytes, int64(len(kept)))
}

func TestParseRefuses(t *testing.T) {
	cpu := foreign()
	cpu.SampleType[0].Type = "cpu"
	var other, cut bytes.Buffer
	require.NoError(t, cpu.Write(&other))
	require.NoError(t, foreign([3]string{"/a/x.py", "=", "f"}).Write(&cut))
	for name, b := range map[string][]byte{
		"nothing": nil, "text": []byte("hello, this is no profile"), "gzip of nothing": {0x1f, 0x8b, 8}, "a profile of time": other.Bytes(),
		"cut off": cut.Bytes()[:cut.Len()-9],
	} {
		_, err := Parse(bytes.NewReader(b))
		require.ErrorIs(t, err, ErrFormat, name)
	}
	_, err := Parse(failing{})
	require.ErrorIs(t, err, os.ErrClosed)
}

type failing struct{}

func (failing) Read([]byte) (int, error) { return 0, os.ErrClosed }

// FuzzParse: no file makes it panic, and what is read adds up.
func FuzzParse(f *testing.F) {
	view, _ := recording()
	var ours, packed bytes.Buffer
	if err := Write(&packed, Input{View: view}); err != nil {
		f.Fatal(err)
	}
	p, err := profile.ParseData(packed.Bytes())
	if err != nil {
		f.Fatal(err)
	}
	if err := p.WriteUncompressed(&ours); err != nil {
		f.Fatal(err)
	}
	f.Add(ours.Bytes())
	f.Add(packed.Bytes())
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := Parse(bytes.NewReader(b))
		if err != nil {
			return
		}
		var want, got int64
		at := valueIndex(p, "inuse_space")
		for _, s := range p.Sample {
			want += s.Value[at]
		}
		for _, e := range Rows(p) {
			got += e.Bytes
		}
		require.Equal(t, want, got)
		_ = WriteDiff(&bytes.Buffer{}, p, p)
	})
}
