// SPDX-License-Identifier: Apache-2.0

package ring

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLayout: a C compiler has the same offsets, sizes and numbers in ring.h as are here.
func TestLayout(t *testing.T) {
	source := "#include \"ring.h\"\n#include <stddef.h>\n"
	for expression, want := range map[string]int{
		"RING_MAGIC": magic, "RING_VERSION": version, "RING_HEADER_BYTES": headerBytes, "RING_PENDING": pendingSlots,
		"offsetof(struct ring_header, magic)": offMagic, "offsetof(struct ring_header, version)": offVersion,
		"offsetof(struct ring_header, arch)": offArch, "offsetof(struct ring_header, pid)": offPID,
		"offsetof(struct ring_header, started)": offStarted, "offsetof(struct ring_header, closed)": offClosed,
		"offsetof(struct ring_header, reader)":   offReader,
		"offsetof(struct ring_header, capacity)": offCapacity,
		"offsetof(struct ring_header, time)":     offTime, "offsetof(struct ring_header, head)": offHead,
		"offsetof(struct ring_header, tail)": offTail, "offsetof(struct ring_header, stacks_lost)": offStacks,
		"offsetof(struct ring_header, names_lost)": offNames, "offsetof(struct ring_header, counters)": offCounters,
		"offsetof(struct ring_header, pending)": offPending, "sizeof(struct ring_counter)": counterBytes,
		"sizeof(struct ring_pending)": pendingBytes, "sizeof(struct ring_record)": recordBytes, "sizeof(struct ring_event)": eventBytes,
		"sizeof(struct ring_stack)": stackBytes, "sizeof(struct ring_frame)": frameBytes, "sizeof(struct ring_code)": codeBytes,
		"sizeof(struct ring_symbol)": symbolBytes, "sizeof(struct ring_counters)": countersSize, "sizeof(struct ring_words)": wordsBytes,
		"HOOK_COUNT": int(hookCount), "HOOK_ALLOCATE": int(HookAllocate), "HOOK_RELEASE": int(HookRelease), "HOOK_HEAP": int(HookHeap),
		"HOOK_RESOURCE": int(HookResource), "HOOK_DEALLOC": int(HookDealloc), "HOOK_PURGE": int(HookPurge), "HOOK_COUNTERS": int(HookCounters),
		"QUIET_COUNT": len(quietNames), "DROP_COUNT": len(dropNames), "RECORD_EVENT": int(TypeEvent), "RECORD_STACK": int(TypeStack),
		"RECORD_CODE": int(TypeCode), "RECORD_SYMBOL": int(TypeSymbol), "RECORD_COUNTER": int(TypeCounter), "RECORD_WORDS": int(TypeWords),
		"PYTHON_READ": int(PythonRead), "PYTHON_CUT": int(PythonCut), "PYTHON_UNKNOWN": int(PythonUnknown), "PYTHON_BROKEN": int(PythonBroken),
		"RING_ANSWER_BYTES": answerBytes, "RING_NAME": nameBytes, "offsetof(struct ring_header, question)": offAsked,
		"offsetof(struct ring_header, question.answered)": offAnswered, "offsetof(struct ring_header, question.kind)": offKind,
		"offsetof(struct ring_header, question.got)": offGot, "offsetof(struct ring_header, question.name)": offName,
		"sizeof(struct ring_region)": regionBytes, "sizeof(struct ring_image)": imageBytes,
		"ASK_MEMORY": askMemory, "ASK_REGIONS": askRegions, "ASK_PRESENT": askPresent, "ASK_IMAGES": askImages, "ASK_SYMBOL": askSymbol,
		"ASK_PAGES": askPages, "RING_PAGE": pageBytes, "RING_PAGES": maxPages, "ASK_SIZES": askSizes, "RING_SIZES": maxSizes,
		"sizeof(struct ring_size)": sizeBytes, "offsetof(struct ring_header, question.took)": offTook,
		"FLAG_FAILED": FlagFailed, "FLAG_IMPORTED": FlagImported,
	} {
		source += fmt.Sprintf("_Static_assert(%s == %d, \"it has another value in ring.go\");\n", expression, want)
	}
	path := filepath.Join(t.TempDir(), "layout.c")
	require.NoError(t, os.WriteFile(path, []byte(source), 0o644))
	out, err := exec.Command("gcc", "-std=gnu11", "-fsyntax-only", "-I../shim", path).CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// memory is a file in memory.
type memory struct{ b []byte }

func (m *memory) ReadAt(b []byte, at int64) (int, error) { return bytes.NewReader(m.b).ReadAt(b, at) }
func (m *memory) Close() error                           { return nil }
func (m *memory) WriteAt(b []byte, at int64) (int, error) {
	if at < 0 || at+int64(len(b)) > int64(len(m.b)) {
		return 0, io.ErrShortWrite
	}
	return copy(m.b[at:], b), nil
}

func made(capacity int, change func(h []byte)) *memory {
	b := make([]byte, headerBytes+capacity)
	le := binary.LittleEndian
	le.PutUint32(b, magic)
	le.PutUint16(b[offVersion:], version)
	le.PutUint16(b[offArch:], 2)
	le.PutUint32(b[offPID:], 7)
	le.PutUint32(b[offStarted:], 1)
	le.PutUint64(b[offCapacity:], uint64(capacity))
	if change != nil {
		change(b)
	}
	return &memory{b}
}

// write is what the shim does: a record, which may wrap around the end.
func (m *memory) write(record []byte) {
	head := binary.LittleEndian.Uint64(m.b[offHead:])
	data := m.b[headerBytes:]
	for i, c := range record {
		data[(int(head)+i)%len(data)] = c
	}
	binary.LittleEndian.PutUint64(m.b[offHead:], head+uint64(len(record)))
}

func record(kind Type, what uint16, words ...uint64) []byte {
	b := binary.LittleEndian.AppendUint32(nil, uint32(8+8*len(words)))
	b = binary.LittleEndian.AppendUint16(b, uint16(kind))
	b = binary.LittleEndian.AppendUint16(b, what)
	for _, w := range words {
		b = binary.LittleEndian.AppendUint64(b, w)
	}
	return b
}

// TestWrap: many times around a small ring, each record is read once and whole.
func TestWrap(t *testing.T) {
	m := made(minCapacity, nil)
	r, err := New(m)
	require.NoError(t, err)
	require.Equal(t, 7, r.PID)
	require.Equal(t, "arm64", r.Arch)
	written, read := uint64(0), uint64(0)
	for range 3000 {
		for range written%7 + 1 {
			m.write(record(TypeEvent, uint16(HookHeap), written, 2, 3, 4, 5, 6, 7, 8, 9, 10))
			written++
		}
		more, err := r.Read(func(record *Record) error {
			e, err := record.Event()
			require.NoError(t, err)
			require.Equal(t, Event{Hook: HookHeap, Time: read, Thread: 2, Object: 3, Requested: 4, Size: 5, Heap: 6, Offset: 7, Stack: 8, Flags: 9,
				Allocated: 10}, e)
			read++
			return nil
		})
		require.NoError(t, err)
		require.False(t, more)
	}
	require.Equal(t, written, read)
	require.Equal(t, binary.LittleEndian.Uint64(m.b[offHead:]), binary.LittleEndian.Uint64(m.b[offTail:]), "the room is given back")
}

func TestRefused(t *testing.T) {
	le := binary.LittleEndian
	for want, change := range map[string]func(h []byte){
		"magic":     func(h []byte) { h[0]++ },
		"version 5": func(h []byte) { h[offVersion]++ },
		"capacity":  func(h []byte) { le.PutUint64(h[offCapacity:], minCapacity+8) },
		"processor": func(h []byte) { h[offArch] = 9 },
		"not compl": func(h []byte) { h[offStarted] = 0 },
	} {
		_, err := New(made(minCapacity, change))
		require.ErrorContains(t, err, want)
	}
	_, err := New(&memory{})
	require.ErrorIs(t, err, ErrNotStarted)
	_, err = Open(filepath.Join(t.TempDir(), "none"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

// TestGarbage: what makes no sense ends in an error.
func TestGarbage(t *testing.T) {
	for name, change := range map[string]func(m *memory){
		"head":    func(m *memory) { binary.LittleEndian.PutUint64(m.b[offHead:], minCapacity+1) },
		"size 0":  func(m *memory) { m.write(make([]byte, 8)) },
		"uneven":  func(m *memory) { m.write([]byte{9, 0, 0, 0, 1, 0, 0, 0}) },
		"beyond":  func(m *memory) { m.write([]byte{32, 0, 0, 0, 1, 0, 0, 0}) },
		"too far": func(m *memory) { m.write([]byte{0, 0, 0, 255, 1, 0, 0, 0}) },
		"stub":    func(m *memory) { m.write([]byte{8, 0, 0, 0}) },
	} {
		m := made(minCapacity, nil)
		r, err := New(m)
		require.NoError(t, err)
		change(m)
		_, err = r.Read(func(*Record) error { return nil })
		require.Error(t, err, name)
	}
	m := made(minCapacity, nil)
	r, err := New(m)
	require.NoError(t, err)
	m.write(record(TypeEvent, 0))
	stop := errors.New("stop")
	_, err = r.Read(func(*Record) error { return stop })
	require.ErrorIs(t, err, stop)
}

func TestPythonText(t *testing.T) {
	require.Equal(t, "größe", pythonText([]byte("gr\xf6\xdfe"), 1))
	require.Equal(t, "δ", pythonText([]byte{0xb4, 0x03}, 2))
	require.Equal(t, "\U0001F40D", pythonText([]byte{0x0d, 0xf4, 0x01, 0}, 4))
	require.Equal(t, "\uFFFD\uFFFD", pythonText([]byte{0, 0xd8, 0, 0, 0xff, 0xff, 0xff, 0xff}, 4), "no characters")
	require.Empty(t, pythonText([]byte("abc"), 3))
	require.Empty(t, pythonText([]byte("abc"), 0))
}

// FuzzRecord: no bytes of a traced process make the reader panic or allocate without bounds.
func FuzzRecord(f *testing.F) {
	f.Add(uint16(TypeEvent), uint16(0), record(TypeEvent, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9)[8:])
	f.Add(uint16(TypeStack), uint16(1), record(TypeStack, 1, 5, 1<<32|1, 9, 1, 2, 1)[8:])
	f.Add(uint16(TypeCode), uint16(0), make([]byte, 80))
	f.Add(uint16(TypeSymbol), uint16(0), make([]byte, 40))
	f.Add(uint16(TypeWords), uint16(0), []byte{1, 0, 0, 0, 1, 0, 0, 0, 'a', 'b'})
	f.Fuzz(func(t *testing.T, kind, what uint16, body []byte) {
		r := &Record{Type(kind), what, body}
		_, _ = r.Event()
		_, _ = r.Counters()
		_, _ = r.Words()
		_, _ = r.Symbol()
		if c, err := r.Code(); err == nil && len(c.LineTable)+len(c.Name) > 4*len(body) {
			t.Fatal("more than there was")
		}
		if s, err := r.Stack(); err == nil && len(s.Native)+len(s.Frames) > len(body) {
			t.Fatal("more than there was")
		}
	})
}
