// SPDX-License-Identifier: Apache-2.0

package pytorch

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// text renders a value as Python's repr does, as far as the tests need it.
func (p *pickle) text(v value) string {
	switch v.kind {
	case kindNone:
		return "None"
	case kindBool:
		return [...]string{"False", "True"}[v.bits]
	case kindInt:
		return fmt.Sprint(int64(v.bits))
	case kindUint:
		return fmt.Sprint(v.bits)
	case kindText:
		return "'" + p.texts[v.bits] + "'"
	case kindFloat:
		return "float"
	}
	var parts []string
	list := p.containers[v.bits]
	for i := 0; i < len(list); i++ {
		s := p.text(list[i])
		if v.kind == kindDict {
			i++
			s += ": " + p.text(list[i])
		}
		parts = append(parts, s)
	}
	joined := strings.Join(parts, ", ")
	switch v.kind {
	case kindList:
		return "[" + joined + "]"
	case kindDict:
		return "{" + joined + "}"
	}
	if len(parts) == 1 {
		joined += ","
	}
	return "(" + joined + ")"
}

// TestUnpickle: what CPython's pickler writes of plain data is read as it was, by every protocol.
func TestUnpickle(t *testing.T) {
	program := `
import pickle, sys
shared = ["a", {"k": (1,)}]
value = [None, True, False, 0, 1, 255, 256, 65535, 65536, 2**31 - 1, 2**31, -1, -128, -2**31, -2**31 - 1, 2**40, -2**40, 2**62,
    -2**63, 2**63 - 1, 2**63, 2**64 - 1, (), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), [], {}, "", "ü€😀", "x" * 300, shared, shared,
    {"a": 1}, {i: str(i) for i in range(2500)}, list(range(2500)), [[[[]]]]]
sys.stdout.buffer.write(pickle.dumps(value, protocol=int(sys.argv[1])))
sys.stderr.write(repr(value))`
	for protocol := 2; protocol <= 5; protocol++ {
		var out, want bytes.Buffer
		cmd := exec.Command("python3", "-c", program, fmt.Sprint(protocol))
		cmd.Stdout, cmd.Stderr = &out, &want
		require.NoError(t, cmd.Run(), want.String())
		p, err := unpickle(&out)
		require.NoError(t, err)
		require.Equal(t, want.String(), p.text(p.root), "protocol %d", protocol)
	}
}

// TestUnpickleRefuses: nothing is looked up or called, and the place is named.
func TestUnpickleRefuses(t *testing.T) {
	for _, tt := range []struct{ name, in, want string }{
		{"nothing", "", "it ends early, at byte 0"},
		{"text", "hello", "at byte 0: malformed pickle: it begins with byte 0x68, want 0x80"},
		{"old protocol", "\x80\x01N.", "protocol 1"},
		{"new protocol", "\x80\x06N.", "protocol 6"},
		{"global", "\x80\x02cos\nsystem\n.", "at byte 2: malformed pickle: opcode GLOBAL would run code"},
		{"stack global", "\x80\x04\x8c\x02os\x8c\x06system\x93.", "at byte 14: malformed pickle: opcode STACK_GLOBAL"},
		{"reduce", "\x80\x02NNR.", "REDUCE"},
		{"inst", "\x80\x02(ios\nsystem\n.", "INST"},
		{"persistent", "\x80\x02Pabc\n.", "PERSID"},
		{"bytes", "\x80\x03C\x01a.", "opcode 0x43, which no memory snapshot has"},
		{"truncated number", "\x80\x02J\x01", "ends early, at byte 4"},
		{"truncated text", "\x80\x02X\x10\x00\x00\x00ab", "ends early, at byte 9"},
		{"huge text", "\x80\x02X\xff\xff\xff\x7fab", "a text of 2147483647 bytes"},
		{"huge number", "\x80\x02\x8a\xff", "a number of 255 bytes"},
		{"no stop", "\x80\x02N", "ends early, at byte 3"},
		{"empty", "\x80\x02.", "0 values at its end"},
		{"two values", "\x80\x02NN.", "2 values at its end"},
		{"open mark", "\x80\x02N(.", "1 values at its end"},
		{"no mark", "\x80\x02]e.", "no mark"},
		{"below the mark", "\x80\x02N(a.", "0 values on the stack, want 1"},
		{"append to number", "\x80\x02K\x01Na.", "a number to be added to, want a list"},
		{"append to nothing", "\x80\x02Na.", "no container"},
		{"odd dict", "\x80\x02}(Nu.", "a key without a value"},
		{"list as key", "\x80\x02}]Ns.", "a list as a key"},
		{"get unknown", "\x80\x02h\x05.", "number 5 of what is remembered was not given"},
		{"put far", "\x80\x02Nr\xff\xff\xff\x7f.", "number 2147483647 for what is remembered"},
		{"put nothing", "\x80\x02q\x00.", "nothing to be remembered"},
		{"tuple of too few", "\x80\x02N\x86.", "1 values on the stack, want 2"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := unpickle(strings.NewReader(tt.in))
			require.ErrorIs(t, err, ErrFormat)
			require.ErrorContains(t, err, tt.want)
		})
	}
}

type brokenDisk struct{}

var errDisk = errors.New("disk")

func (brokenDisk) Read([]byte) (int, error) { return 0, errDisk }

func TestUnpickleReadError(t *testing.T) {
	_, err := unpickle(io.MultiReader(strings.NewReader("\x80\x02"), brokenDisk{}))
	require.ErrorIs(t, err, errDisk)
	require.NotErrorIs(t, err, ErrFormat, "the file may be whole")
}

// allocated is how many bytes a function allocates.
func allocated(do func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	do()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// TestMemoryOfHostilePickles: memory is bounded by the bytes that are there, not by what they say.
func TestMemoryOfHostilePickles(t *testing.T) {
	repeat := func(s string) string { return "\x80\x02" + strings.Repeat(s, 100_000/len(s)) }
	for name, in := range map[string]string{
		"long texts":  "\x80\x02X\x00\x00\xff\x00" + "abc",
		"lists":       repeat("]"),
		"dicts":       repeat("}"),
		"marks":       repeat("("),
		"memo":        repeat("]q\x00"),
		"doubling":    "\x80\x02]q\x00" + strings.Repeat("(h\x00h\x00e", 20_000),
		"put far":     "\x80\x02Nr\xff\xff\xff\x0f",
		"nested":      "\x80\x02" + strings.Repeat("](", 50_000),
		"many frames": laughs(),
	} {
		used := allocated(func() {
			_, err := New(strings.NewReader(in))
			require.Error(t, err, name)
		})
		require.Less(t, used, uint64(1<<20+600*len(in)), name)
	}
}

// laughs has one list of blocks to which many segments refer.
func laughs() string {
	var b strings.Builder
	b.WriteString("\x80\x02}(X\x08\x00\x00\x00segments](}(")
	key := func(s string) { fmt.Fprintf(&b, "X%c\x00\x00\x00%s", len(s), s) }
	segment := func() {
		for _, k := range []string{"device", "address", "total_size"} {
			key(k)
			b.WriteString("M\x00\x10")
		}
	}
	segment()
	key("frames")
	b.WriteString("](" + strings.Repeat("N", 10_000) + "eq\x00u")
	for range 5000 {
		b.WriteString("}(")
		key("blocks")
		b.WriteString("h\x00u")
	}
	b.WriteString("eu.")
	return b.String()
}

// snapshots are those of PyTorch that are kept here.
func snapshots(t testing.TB) map[string][]byte {
	out := map[string][]byte{}
	files, err := os.ReadDir("testdata")
	require.NoError(t, err)
	for _, f := range files {
		if strings.HasSuffix(f.Name(), ".pickle") {
			b, err := os.ReadFile("testdata/" + f.Name())
			require.NoError(t, err)
			out[f.Name()] = b
		}
	}
	require.NotEmpty(t, out)
	return out
}

// TestTruncated: no front of a snapshot is one.
func TestTruncated(t *testing.T) {
	for name, b := range snapshots(t) {
		for n := range len(b) {
			_, err := New(bytes.NewReader(b[:n]))
			require.ErrorIs(t, err, ErrFormat, "%s, %d bytes", name, n)
			require.ErrorContains(t, err, "ends early", "%s, %d bytes", name, n)
		}
	}
}
