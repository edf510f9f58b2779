// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/internal/eventtest"
)

// span is where a frame lies, and how many events and marks a reader has after it. It is found here without the reader, by
// what the head of frame.go says.
type span struct {
	kind       byte
	start, end int
	steps      int
}

func spans(t *testing.T, data []byte) []span {
	t.Helper()
	decoder, err := zstd.NewReader(nil)
	require.NoError(t, err)
	defer decoder.Close()
	var out []span
	steps := 0
	for at := 16; at < len(data); {
		stored := int(binary.LittleEndian.Uint32(data[at+4:]))
		payload := data[at+16 : at+16+stored]
		if data[at+1]&1 != 0 {
			payload, err = decoder.DecodeAll(payload, nil)
			require.NoError(t, err)
		}
		switch data[at] {
		case 4:
			events, n := binary.Uvarint(payload)
			annotations, _ := binary.Uvarint(payload[n:])
			steps += int(events + annotations)
		case 2:
			if epoch, _ := binary.Uvarint(payload); epoch > 0 {
				steps++ // its state
			}
		}
		out = append(out, span{kind: data[at], start: at, end: at + 16 + stored, steps: steps})
		at += 16 + stored
	}
	return out
}

// wholeSteps is what a reader must find in a file of which the first n bytes are right.
func wholeSteps(spans []span, n int) (steps, whole int) {
	whole = 16
	for _, s := range spans {
		if s.end > n {
			break
		}
		steps, whole = s.steps, s.end
	}
	return steps, whole
}

// small is a trace whose file has frames of all types.
func small(t *testing.T, seed uint64) (want []step, data []byte) {
	t.Helper()
	j := newJob(seed)
	want = j.steps(5000)
	return want, record(t, j, want)
}

// requireDamage reads a damaged file and checks that all whole frames came out, and nothing else.
func requireDamage(t *testing.T, data []byte, want []step, steps, whole int, msg string) {
	t.Helper()
	r := open(t, data)
	got, err := read(r, 1000)
	var damage *DamageError
	require.ErrorAs(t, err, &damage, msg)
	requireSame(t, want[:steps], got, msg)
	require.Equal(t, int64(whole), damage.Offset, msg)
	require.Equal(t, int64(len(data)-whole), damage.Lost, msg)
	if damage.Lost > 0 {
		require.ErrorContains(t, err, fmt.Sprintf("the %d bytes from there on are lost", damage.Lost), msg)
	} else {
		require.ErrorContains(t, err, "no end record", msg)
	}
	require.Nil(t, r.End())
	require.NoError(t, r.Close())
}

// TestCut: a file that ends anywhere gives all its whole frames, and says how much is lost.
func TestCut(t *testing.T) {
	want, data := small(t, 3)
	list := spans(t, data)
	require.Greater(t, len(list), 10)
	first := list[0].end // without it nobody knows what is in the file
	rng := rand.New(rand.NewPCG(1, 2))
	cuts := []int{first, first + 1, len(data) - 1}
	for _, s := range list[1:] {
		cuts = append(cuts, s.start, s.start+15, s.start+16, s.end-1)
	}
	minimum := 1000
	if testing.Short() {
		minimum = 100
	}
	for len(cuts) < minimum {
		cuts = append(cuts, first+rng.IntN(len(data)-first))
	}
	for _, n := range cuts {
		steps, whole := wholeSteps(list, n)
		requireDamage(t, data[:n], want, steps, whole, fmt.Sprintf("cut at %d", n))
	}
	for n := range first {
		_, err := NewReader(bytes.NewReader(data[:n]), int64(n))
		require.ErrorIs(t, err, ErrFormat, "cut at %d", n)
	}
}

// TestHeaderFlip: a wrong bit of the header is not taken for another version, nor read over: its checksum finds it.
func TestHeaderFlip(t *testing.T) {
	_, data := small(t, 4)
	for bit := range 8 * headerBytes {
		broken := bytes.Clone(data)
		broken[bit/8] ^= 1 << (bit % 8)
		_, err := NewReader(bytes.NewReader(broken), int64(len(broken)))
		require.ErrorIs(t, err, ErrFormat, "bit %d", bit)
		require.NotErrorIs(t, err, ErrNewer, "bit %d", bit)
		if bit >= 8*len(magic) {
			require.ErrorContains(t, err, "checksum", "bit %d", bit)
		}
	}
}

// TestCutHead: a file that ends in the head of a frame says so, and how much of the head there is.
func TestCutHead(t *testing.T) {
	_, data := small(t, 3)
	last := spans(t, data)[5].start
	for _, n := range []int{1, 15} {
		_, err := read(open(t, data[:last+n]), 1000)
		require.ErrorContains(t, err, fmt.Sprintf("%d bytes where a frame begins: want 16", n))
	}
}

// TestLargestFrame: a frame has 8,192 events at most, which is a part of the format: readers refuse more.
func TestLargestFrame(t *testing.T) {
	s := eventtest.Random(1, 8192+100)
	path := filepath.Join(t.TempDir(), "trace")
	w, err := Create(path, &Info{}, s.Stack, nil)
	require.NoError(t, err)
	require.NoError(t, w.Write(s.Events))
	require.NoError(t, w.Close(&End{}))
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	var first int
	for _, f := range spans(t, data) {
		if f.kind == 4 && first == 0 {
			first = f.steps
		}
	}
	require.Equal(t, 8192, first)
}

// TestFlip: a bit that is wrong anywhere is found, and all whole frames before it are given.
func TestFlip(t *testing.T) {
	want, data := small(t, 4)
	list := spans(t, data)
	first := list[0].end
	rng := rand.New(rand.NewPCG(3, 4))
	for range 300 {
		at := rng.IntN(len(data))
		broken := bytes.Clone(data)
		broken[at] ^= 1 << rng.IntN(8)
		if at < first {
			_, err := NewReader(bytes.NewReader(broken), int64(len(broken)))
			require.ErrorIs(t, err, ErrFormat, "flip in byte %d", at)
			continue
		}
		steps, whole := wholeSteps(list, at)
		requireDamage(t, broken, want, steps, whole, fmt.Sprintf("flip in byte %d", at))
	}
}

// TestMissingPart: zeros, as a file system leaves them after a power cut, are no frames.
func TestMissingPart(t *testing.T) {
	want, data := small(t, 5)
	list := spans(t, data)
	for _, s := range list[2:] {
		steps, whole := wholeSteps(list, s.start)
		requireDamage(t, append(bytes.Clone(data[:s.start]), make([]byte, 4096)...), want, steps, whole, "a hole")
	}
}

// frameOf makes a frame by hand.
func frameOf(kind, flags byte, raw int, payload []byte) []byte {
	head := append([]byte{kind, flags, 0, 0}, binary.LittleEndian.AppendUint32(nil, uint32(len(payload)))...)
	head = binary.LittleEndian.AppendUint32(head, uint32(raw))
	crc := crc32.New(crc32.MakeTable(crc32.Castagnoli))
	crc.Write(head)
	crc.Write(payload)
	return append(binary.LittleEndian.AppendUint32(head, crc.Sum32()), payload...)
}

// TestUnknownFrames: frames that a later minor version adds are skipped, wherever they stand, and so is what it adds to the
// header's version.
func TestUnknownFrames(t *testing.T) {
	want, data := small(t, 6)
	list := spans(t, data)
	later := append([]byte{}, data[:16]...)
	later[10] = 9 // minor
	binary.LittleEndian.PutUint32(later[12:], crc32.Checksum(later[:12], castagnoli))
	for i, s := range list {
		later = append(later, data[s.start:s.end]...)
		if i+1 < len(list) {
			later = append(later, frameOf(200, 0xff, 1<<31, []byte("later"))...)
		}
	}
	got, err := read(open(t, later), 1000)
	require.ErrorIs(t, err, io.EOF)
	requireSame(t, want, got)
}

// TestVersions: a later major version is refused by its number, before anything else is read.
func TestVersions(t *testing.T) {
	_, data := small(t, 7)
	major := bytes.Clone(data)
	major[8] = Major + 1
	binary.LittleEndian.PutUint32(major[12:], crc32.Checksum(major[:12], castagnoli))
	_, err := NewReader(bytes.NewReader(major), int64(len(major)))
	require.ErrorIs(t, err, ErrNewer)
	require.ErrorIs(t, err, ErrFormat)
	require.ErrorContains(t, err, fmt.Sprintf("version 2.%d, versions 1.x are read", Minor))
	for name, data := range map[string][]byte{"empty": nil, "text": []byte("not a recording at all"), "short": data[:10]} {
		_, err := NewReader(bytes.NewReader(data), int64(len(data)))
		require.ErrorIs(t, err, ErrFormat, name)
		require.NotErrorIs(t, err, ErrNewer, name)
	}
	_, err = Open(t.TempDir())
	require.ErrorIs(t, err, ErrFormat)
	_, err = Open(filepath.Join(t.TempDir(), "none"))
	require.ErrorIs(t, err, os.ErrNotExist)
}

// TestWrongFrames: what is in a frame is not believed, although its checksum is right.
func TestWrongFrames(t *testing.T) {
	_, data := small(t, 8)
	list := spans(t, data)
	front := data[:list[1].end] // information and the first epoch
	for name, frame := range map[string][]byte{
		"flags":             frameOf(4, 2, 2, []byte{0, 0}),
		"raw too long":      frameOf(4, 0, 3, []byte{0, 0}),
		"raw too short":     frameOf(4, 0, 1, []byte{0, 0}),
		"raw huge":          frameOf(4, 1, 1<<31, []byte{0, 0}),
		"no zstd":           frameOf(4, 1, 5, []byte("hello")),
		"too many events":   frameOf(4, 0, 12, append(binary.AppendUvarint(nil, maxBlock+1), make([]byte, 10)...)),
		"long column":       frameOf(4, 0, 11, []byte{1, 0, 100, 0, 0, 0, 0, 0, 0, 0, 0}),
		"no such shape":     frameOf(4, 0, 14, []byte{1, 0, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0}),
		"endless number":    frameOf(2, 0, 11, bytes.Repeat([]byte{0xff}, 11)),
		"state too long":    frameOf(2, 0, 4, []byte{0, 0, 0, 9}),
		"strings":           frameOf(3, 0, 1, []byte{5}),
		"no such string":    frameOf(3, 0, 8, []byte{0, 1, 0, 0, 0, 0, 0, 0}),
		"no such parent":    frameOf(3, 0, 6, []byte{0, 0, 0, 1, 1, 0}),
		"end without JSON":  frameOf(5, 0, 1, []byte("x")),
		"end of wrong type": frameOf(5, 0, 2, []byte("[]")),
	} {
		whole := append(bytes.Clone(front), frame...)
		got, err := read(open(t, whole), 10)
		var damage *DamageError
		require.ErrorAs(t, err, &damage, name)
		require.Equal(t, int64(len(front)), damage.Offset, name)
		require.Equal(t, int64(len(frame)), damage.Lost, name)
		require.Empty(t, got, name)
	}
}

// TestDamageComesAlone: what a frame has before its damage is given first, and the error only with the next call.
func TestDamageComesAlone(t *testing.T) {
	s := eventtest.Random(1, 8)
	path := filepath.Join(t.TempDir(), "trace")
	w, err := Create(path, &Info{}, s.Stack, nil)
	require.NoError(t, err)
	require.NoError(t, w.Write(s.Events))
	require.NoError(t, w.Annotate(&event.Annotation{Kind: event.AnnotationLost, PID: eventtest.PID,
		Loss: event.Loss{From: 1, To: 2, Events: 3}}))
	require.NoError(t, w.Close(&End{}))
	data, err := os.ReadFile(path)
	require.NoError(t, err)
	list := spans(t, data)
	at := slices.IndexFunc(list, func(s span) bool { return s.kind == 4 })
	decoder, err := zstd.NewReader(nil)
	require.NoError(t, err)
	defer decoder.Close()
	payload := data[list[at].start+16 : list[at].end]
	if data[list[at].start+1]&1 != 0 {
		payload, err = decoder.DecodeAll(payload, nil)
		require.NoError(t, err)
	}
	after := 0
	for i := range payload {
		broken := bytes.Clone(payload)
		broken[i] ^= 0xff
		r := open(t, append(bytes.Clone(data[:list[at].start]), frameOf(4, 0, len(broken), broken)...))
		buf := make([]event.Event, 0, 100)
		for read := 0; ; read += len(buf) {
			if buf, err = r.Read(buf[:0]); err != nil {
				require.Empty(t, buf, "byte %d", i)
				require.Empty(t, r.Annotations(), "byte %d", i)
				if read > 0 {
					after++
				}
				break
			}
			r.Annotations()
		}
	}
	require.Positive(t, after, "damage behind events")
}

// TestFull: when the disk is full, the error says so once, nothing that was written is lost, and the end record tells how
// much is missing if there is room for it.
func TestFull(t *testing.T) {
	j := newJob(9)
	want := j.steps(5000)
	full := len(record(t, j, want))
	for room := 4096; room < full*3/4; room += full / 50 {
		for _, later := range []int{0, 1 << 20} {
			f := &memoryFile{room: room}
			w, err := newWriter(f, &Info{}, j.resolve, nil)
			require.NoError(t, err)
			_ = j.write(w, want)
			w.flush()
			require.ErrorIs(t, w.Write(nil), errFull)
			f.room += later // somebody made room
			end := &End{Reason: ReasonStopped}
			require.ErrorIs(t, w.Close(end), errFull)
			require.Contains(t, end.Error, "no space left")

			list := spans(t, f.data) // whole frames only
			got, err := read(open(t, f.data), 1000)
			require.Equal(t, list[len(list)-1].steps, len(got))
			requireSame(t, want[:len(got)], got)
			events := func(steps []step) (n int) {
				for _, s := range steps {
					if s.event != nil {
						n++
					}
				}
				return n
			}
			require.Equal(t, uint64(events(want)-events(got)), w.Missing(), "room %d", room)
			if later == 0 {
				var damage *DamageError
				require.ErrorAs(t, err, &damage)
				require.Zero(t, damage.Lost, "part of a frame was left")
				continue
			}
			require.ErrorIs(t, err, io.EOF)
		}
	}
}

// killEnv makes the test's program a process that records until it is killed.
const killEnv = "GPUTRACE_RECORD_UNTIL_KILLED"

func TestMain(m *testing.M) {
	if path := os.Getenv(killEnv); path != "" {
		fmt.Fprintln(os.Stderr, recordForever(path))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// recordForever writes a trace that everybody can make, and tells after each flush how many steps are in the file.
func recordForever(path string) error {
	j := newJob(77)
	w, err := Create(path, &Info{Name: "killed"}, j.resolve, nil)
	if err != nil {
		return err
	}
	for total := 0; ; {
		steps := j.steps(1000)
		if err := j.write(w, steps); err != nil {
			return err
		}
		if w.flush(); w.err != nil {
			return w.err
		}
		total += len(steps)
		if _, err := fmt.Println(total); err != nil {
			return err
		}
	}
}

// TestKill: a process that is killed at any moment leaves all that it had handed over, and at most a part of one frame
// behind it. GPUTRACE_KILLS is how many are killed: 40 unless it is set.
func TestKill(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	kills := 40
	if testing.Short() {
		kills = 10
	}
	if text := os.Getenv("GPUTRACE_KILLS"); text != "" {
		n, err := strconv.Atoi(text)
		require.NoError(t, err)
		kills = n
	}
	for i := range kills {
		path := filepath.Join(t.TempDir(), "killed.gputrace")
		child := exec.Command(os.Args[0])
		child.Env = append(os.Environ(), killEnv+"="+path)
		out, err := child.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, child.Start())
		reported := 0
		lines := bufio.NewScanner(out)
		for n := 1 + rng.IntN(12); n > 0 && lines.Scan(); n-- {
			reported, err = strconv.Atoi(lines.Text())
			require.NoError(t, err)
		}
		for range rng.IntN(1 << 20) { // a moment anywhere between two lines
			reported += 0
		}
		require.NoError(t, child.Process.Kill())
		for lines.Scan() {
			if n, err := strconv.Atoi(lines.Text()); err == nil {
				reported = n
			}
		}
		require.Error(t, child.Wait())
		requirePrefix(t, path, reported, i)
	}
}

// requirePrefix checks that a file has the first steps of recordForever, at least as many as it reported.
func requirePrefix(t *testing.T, path string, reported, i int) {
	t.Helper()
	r, err := Open(path)
	require.NoError(t, err)
	defer r.Close()
	got, err := read(r, 4096)
	var damage *DamageError
	require.ErrorAs(t, err, &damage, "kill %d", i)
	require.GreaterOrEqual(t, len(got), reported, "kill %d", i)
	j, f := newJob(77), &memoryFile{room: -1}
	w, err := newWriter(f, &Info{}, j.resolve, nil)
	require.NoError(t, err)
	var want []step
	for len(want) < len(got) {
		steps := j.steps(1000)
		require.NoError(t, j.write(w, steps)) // it draws random numbers too
		want = append(want, steps...)
	}
	requireSame(t, want[:len(got)], got, "kill %d", i)
}

func FuzzReader(f *testing.F) {
	j := newJob(11)
	memory := &memoryFile{room: -1}
	w, err := newWriter(memory, &Info{PID: 7}, j.resolve, nil)
	if err != nil {
		f.Fatal(err)
	}
	if err := errors.Join(j.write(w, j.steps(300)), w.Checkpoint([]byte("state"), j.ids), j.write(w, j.steps(30)),
		w.Close(&End{})); err != nil {
		f.Fatal(err)
	}
	f.Add(memory.data)
	f.Add(memory.data[:len(memory.data)/2])
	f.Fuzz(func(t *testing.T, data []byte) {
		// A checksum would keep the fuzzer out: it is put right.
		data = bytes.Clone(data)
		if len(data) >= 16 {
			binary.LittleEndian.PutUint32(data[12:], crc32.Checksum(data[:12], castagnoli))
		}
		for at := 16; at+16 <= len(data); {
			stored := int(binary.LittleEndian.Uint32(data[at+4:]))
			if at+16+stored > len(data) {
				break
			}
			binary.LittleEndian.PutUint32(data[at+12:], frameCRC(data[at:], data[at+16:at+16+stored]))
			at += 16 + stored
		}
		r, err := NewReader(bytes.NewReader(data), int64(len(data)))
		if err != nil {
			require.ErrorIs(t, err, ErrFormat)
			return
		}
		defer r.Close()
		steps, err := read(r, 100)
		var damage *DamageError
		require.True(t, errors.Is(err, io.EOF) || errors.As(err, &damage), "%v", err)
		for _, s := range steps {
			if s.event != nil {
				r.Stack(s.event.Stack)
			}
		}
		epochs, _ := r.Epochs()
		for _, e := range epochs {
			r.Seek(e)
			_, err := r.Read(make([]event.Event, 0, 10))
			require.True(t, err == nil || errors.Is(err, io.EOF) || errors.As(err, &damage), "%v", err)
		}
	})
}
