// SPDX-License-Identifier: Apache-2.0

package pyobject

import (
	"bytes"
	"compress/gzip"
	"encoding/gob"
	"encoding/json"
	"io"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/cpython"
)

// recorded is the memory that the checks read of CPython 3.13.5 built with --disable-gil, of which there is no package.
// GPUTRACE_RECORD_PYTHON=PATH go test -run TestObjectsRecorded records another interpreter.
const recorded = "testdata/python3.13t.gz"

// recording is such a memory.
type recording struct {
	Version       cpython.Version
	Runtime, Type uint64
	Said          []byte // JSON
	Pages         map[uint64][]byte
}

const pageSize = 4096

// ReadAt implements process.Memory.
func (r *recording) ReadAt(b []byte, addr uint64) (int, error) {
	for n := 0; n < len(b); {
		page, offset := r.Pages[(addr+uint64(n))&^(pageSize-1)], int(addr+uint64(n))&(pageSize-1)
		if page == nil {
			return n, io.ErrUnexpectedEOF
		}
		n += copy(b[n:], page[offset:])
	}
	return len(b), nil
}

// replayed is a recording as an Image.
type replayed struct{ *recording }

// Word implements Image.
func (r replayed) Word(addr uint64) uint64 { return wordOf(r, addr) }

// View implements Image.
func (r replayed) View(addr uint64, n int) []byte { return viewOf(r, addr, n) }

// noting is an image whose bytes are noted when they are read; the others of their pages are 0.
type noting struct {
	image
	pages map[uint64][]byte
}

// ReadAt implements process.Memory.
func (i noting) ReadAt(b []byte, addr uint64) (int, error) {
	n, err := i.image.ReadAt(b, addr)
	for k, v := range b[:max(n, 0)] {
		at := addr + uint64(k)
		page := at &^ (pageSize - 1)
		if i.pages[page] == nil {
			i.pages[page] = make([]byte, pageSize)
		}
		i.pages[page][at-page] = v
	}
	return n, err
}

// Word implements Image.
func (i noting) Word(addr uint64) uint64 { return wordOf(i, addr) }

// View implements Image.
func (i noting) View(addr uint64, n int) []byte { return viewOf(i, addr, n) }

// checkObjects runs all checks of an interpreter's objects.
func checkObjects(t *testing.T, h *Heap, img Image, s *said) {
	t.Helper()
	require.NoError(t, h.Prove(img))
	checkTypes(t, h, img, s)
	checkReferences(t, h, img, s)
	checkElements(t, h, img, s)
}

// TestObjectsRecorded: objects of a build without a GIL, in memory that was recorded.
func TestObjectsRecorded(t *testing.T) {
	if python := os.Getenv("GPUTRACE_RECORD_PYTHON"); python != "" {
		record(t, python)
	}
	f, err := os.Open(recorded)
	require.NoError(t, err)
	defer f.Close()
	z, err := gzip.NewReader(f)
	require.NoError(t, err)
	r := &recording{}
	require.NoError(t, gob.NewDecoder(z).Decode(r))
	require.True(t, r.Version.FreeThreaded)
	h, err := HeapAt(r, r.Version, r.Runtime, r.Type)
	require.NoError(t, err)
	s := &said{}
	require.NoError(t, json.Unmarshal(r.Said, s))
	img := replayed{r}
	checkObjects(t, h, img, s)

	require.True(t, h.Unlisted())
	require.True(t, h.IsCollected(img, s.Kept), "a list")
	require.False(t, h.IsCollected(img, s.Leaf[0]+8), "no object")
	_, counted := h.ReferenceCount(img, s.Leaf[0])
	require.False(t, counted, "a class that is immortal")
}

// record writes the memory that the checks read.
func record(t *testing.T, python string) {
	t.Helper()
	img, s := start(t, python)
	found, err := cpython.FindInterpreter(img.Process)
	require.NoError(t, err)
	text, err := json.Marshal(s)
	require.NoError(t, err)
	r := &recording{Version: found.Version, Runtime: found.Runtime, Type: found.Type, Said: text, Pages: map[uint64][]byte{}}
	n := noting{img, r.Pages}
	h, err := HeapAt(n, found.Version, found.Runtime, found.Type)
	require.NoError(t, err)
	checkObjects(t, h, n, &s)
	h.IsCollected(n, s.Kept)
	h.IsCollected(n, s.Leaf[0]+8)
	var out bytes.Buffer
	z, _ := gzip.NewWriterLevel(&out, gzip.BestCompression)
	require.NoError(t, gob.NewEncoder(z).Encode(r))
	require.NoError(t, z.Close())
	require.NoError(t, os.MkdirAll("testdata", 0o755))
	require.NoError(t, os.WriteFile(recorded, out.Bytes(), 0o600))
}
