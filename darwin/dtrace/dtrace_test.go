// SPDX-License-Identifier: Apache-2.0

package dtrace

import (
	"errors"
	"io"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func readAll(t *testing.T, text string) ([]Event, *Reader) {
	t.Helper()
	r := NewReader(strings.NewReader(text))
	var out []Event
	for {
		e, err := r.Next()
		if errors.Is(err, io.EOF) {
			return out, r
		}
		require.NoError(t, err)
		out = append(out, *e)
	}
}

// TestRecorded: what dtrace for Linux printed for this script of a program with PyTorch's symbols. Its last stack is cut.
func TestRecorded(t *testing.T) {
	text, err := os.ReadFile("testdata/linux.txt")
	require.NoError(t, err)
	events, r := readAll(t, string(text))
	require.Zero(t, r.Broken+r.Foreign)
	require.Len(t, events, 7)
	var sizes []uint64
	live := map[uint64]uint64{}
	for i := range events {
		e := &events[i]
		require.EqualValues(t, 5985, e.Thread)
		require.EqualValues(t, 0x563ddd0de2a0, e.Object)
		if e.Kind == Free {
			delete(live, e.Object)
			continue
		}
		sizes = append(sizes, e.Size)
		live[e.Object] = e.Size
	}
	require.Equal(t, []uint64{12288, 16384, 20480, 4096}, sizes)
	require.Equal(t, map[uint64]uint64{0x563ddd0de2a0: 4096}, live)
	require.Equal(t, []Frame{{"m", "_Z7forwardi", 0x24}, {"m", "main", 0x2f}, {"libc.so.6", "", 0x7f7d3d6ec24a}}, events[0].Stack)
	require.False(t, events[0].Cut)
	require.True(t, events[6].Cut, "the recording ends within it")
}

// TestGarbage: what is missing, cut or somebody else's costs the event that it is of, at most, and is counted.
func TestGarbage(t *testing.T) {
	for name, tt := range map[string]struct {
		text            string
		kinds           []Kind
		broken, foreign uint64
	}{
		"a program's output":  {"hello\nGPT|F|1|2|a\nworld\n", []Kind{Free}, 0, 2},
		"no end of a stack":   {"GPT|A|1|2|a|3\nm`f+0x1\nGPT|A|2|2|b|4\nGPT|E\n", []Kind{Alloc, Alloc}, 0, 0},
		"no end, then a free": {"GPT|A|1|2|a|3\nm`f+0x1\nGPT|F|2|2|a\nGPT|F|3|2|b\n", []Kind{Alloc, Free, Free}, 0, 0},
		"an end too many":     {"GPT|E\nGPT|F|1|2|a\n", []Kind{Free}, 1, 0},
		"a kind of tomorrow":  {"GPT|Z|1\nGPT|F|1|2|a\n", []Kind{Free}, 1, 0},
		"no number":           {"GPT|F|x|2|a\nGPT|F|1|2|g\nGPT|F|1|2\nGPT|\n", nil, 4, 0},
		"cut in a number":     {"GPT|F|1|2|a\nGPT|A|17", []Kind{Free}, 1, 0},
		"no frame in a stack": {"GPT|A|1|2|a|3\n\n  ???\n  0x10\n  m`0x20\nGPT|E\n", []Kind{Alloc}, 0, 1},
		"nothing":             {"", nil, 0, 0},
		"a line without end":  {strings.Repeat("x", 3*maxLine) + "\nGPT|F|1|2|a\n", []Kind{Free}, 0, 1},
		"each kind": {
			"GPT|R|1|2|9\n m`f+0x1\nGPT|E\nGPT|H|1|2|a|3\n m`f+0x1\nGPT|E\nGPT|M|1|2|b|3\nGPT|E\nGPT|U|1|2|c|4|a|5\nGPT|P|1|2|a\nGPT|D|1|2|a\n",
			[]Kind{Refused, Heap, Buffer, Placed, Purged, Dealloc}, 0, 0,
		},
		"fields of another":  {"GPT|U|1|2|c|4\nGPT|H|1|2|a\nGPT|R|1|2|a|3\nGPT|B|1|2|3\n", nil, 4, 0},
		"larger than a word": {"GPT|F|1|2|1ffffffffffffffff\n", nil, 1, 0},
	} {
		events, r := readAll(t, tt.text)
		var kinds []Kind
		for i := range events {
			kinds = append(kinds, events[i].Kind)
		}
		require.Equal(t, tt.kinds, kinds, name)
		require.Equal(t, tt.broken, r.Broken, name)
		require.Equal(t, tt.foreign, r.Foreign, name)
	}
}

func TestMessages(t *testing.T) {
	for line, want := range map[string]struct {
		losses Losses
		why    string
		known  bool
	}{
		"dtrace: system integrity protection is on, some features will not be available": {known: true},
		"dtrace: 12 drops on CPU 3":                                  {losses: Losses{Drops: 12}, known: true},
		"dtrace: 1 drop on CPU 0":                                    {losses: Losses{Drops: 1}, known: true},
		"dtrace: 4 dynamic variable drops with non-empty dirty list": {losses: Losses{Dynamic: 4}, known: true},
		"dtrace: 7 aggregation drops on CPU 1":                       {losses: Losses{Drops: 7}, known: true},
		"dtrace: 99999999999999999999 drops on CPU 1":                {losses: Losses{Drops: 1}, known: true},
		"dtrace: error on enabled probe ID 3 (ID 99: pid7:a:b:entry): invalid user access in action #1 at DIF " +
			"offset 0": {losses: Losses{Errors: 1}, known: true},
		"dtrace: failed to initialize dtrace: DTrace requires additional " +
			"privileges": {why: "sudo", known: true},
		"dtrace: failed to grab pid 7: the current security restriction (...) not signed with the [com.apple.security.get-task-allow] x": {why: "hardened", known: true},
		"dtrace: failed to grab pid 7: DTrace cannot instrument translated processes":                                                    {why: "Rosetta", known: true},
		"dtrace: failed to grab pid 7: No such process":                                                                                  {why: "cannot be attached", known: true},
		"dtrace: pid 7 has exited": {known: true},
		"something new":            {},
	} {
		var l Losses
		why, known := l.Message(line)
		require.Equal(t, want.losses, l, line)
		require.Equal(t, want.known, known, line)
		require.Equal(t, want.why == "", why == "", line)
		require.Contains(t, why, want.why, line)
	}
}

// TestScript: each clause is what a compiler of D for both systems takes, as far as a check of the form can say it, and no kernel, no
// destructive action and no name of one system only is in the common part.
func TestScript(t *testing.T) {
	common := (&Script{}).Text()
	require.NotContains(t, common, "objc$target")
	all := (&Script{Metal: true, Frames: 32}).Text()
	require.Contains(t, all, "ustackframes=32")
	require.Contains(t, all, "objc$target:IOGPUMetalHeap:-dealloc:entry")
	for _, name := range []string{"machtimestamp", "vcycles", "stop(", "system(", "copyout", "fbt:", "syscall:", "jstack", "destructive"} {
		require.NotContains(t, all, name)
	}
	probe := regexp.MustCompile(`^(BEGIN|(pid|objc)\$target:[\w*?]+:-?[\w*?]+:(entry|return))( /(self->|arg)\w+( == \d)?/)? \{`)
	for _, clause := range clauses(all) {
		require.Regexp(t, probe, clause)
		require.Equal(t, strings.Count(clause, "{"), strings.Count(clause, "}"), clause)
		for _, part := range regexp.MustCompile(`:[^:{/ ]*`).FindAllString(strings.SplitN(clause, "{", 2)[0], -1) {
			require.Less(t, len(part), 128, "DTRACE_FUNCNAMELEN")
		}
	}
	require.Equal(t, []string{"-Z", "-x", "mangled", "-p", "7", "-s", "x.d"}, Options(7, "x.d"))
}

func clauses(script string) []string {
	var out []string
	for line := range strings.Lines(script) {
		switch {
		case strings.HasPrefix(line, "#pragma"):
		case strings.HasPrefix(line, "\t"), strings.HasPrefix(line, "}"):
			out[len(out)-1] += line
		default:
			out = append(out, line)
		}
	}
	return out
}

// FuzzReader: nothing that is printed makes it panic or loop.
func FuzzReader(f *testing.F) {
	f.Add("GPT|A|1|2|a|3\n m`f+0x1\nGPT|E\nGPT|F|1|2|a\n")
	f.Add("GPT|R|1|2|9\n m`f+0x1\nGPT|E\nGPT|H|1|2|a|3\nGPT|E\nGPT|U|1|2|c|4|a|5\nGPT|P|1|2|a\n")
	f.Fuzz(func(t *testing.T, text string) {
		r := NewReader(strings.NewReader(text))
		for n := 0; ; n++ {
			if _, err := r.Next(); err != nil {
				return
			}
			if n > len(text) {
				t.Fatal("more events than bytes")
			}
		}
	})
}
