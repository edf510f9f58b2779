// SPDX-License-Identifier: Apache-2.0

package cells

import (
	"encoding/binary"

	"github.com/gputrace/gputrace/cpython"
	"github.com/gputrace/gputrace/cpython/pyobject"
	"github.com/gputrace/gputrace/process"
)

// Reader names the cells of a process that runs. It reads nothing of one that has none. Not safe for concurrent use.
type Reader struct {
	process *process.Process
	python  *cpython.Interpreter // nil: not looked for yet, or none can be read
	sought  bool
	names   map[string]string // of files that were asked for
	texts   map[string]string // by name
}

// NewReader reads the cells of a process.
func NewReader(p *process.Process) *Reader {
	return &Reader{process: p, names: map[string]string{}, texts: map[string]string{}}
}

// Name is how a person knows the file of a code object that was seen just now: In[14] of a cell, else its own name. A cell
// keeps the name that it had when it was first asked for: the number of its first run since then.
func (r *Reader) Name(file string) string {
	if !IsFile(file) {
		return file
	}
	if name, ok := r.names[file]; ok {
		return name
	}
	c := r.find(file)
	name := c.NameOf(file)
	r.names[file] = name
	if _, ok := r.texts[name]; !ok && c.Text != "" {
		r.texts[name] = c.Text
	}
	return name
}

// Text is the text of a cell by what Name returned. ok false: it is none, or has no text.
func (r *Reader) Text(name string) (text string, ok bool) {
	text, ok = r.texts[name]
	return text, ok
}

// find reads a cell of the process. What cannot be read is empty but for the number in the file's name.
func (r *Reader) find(file string) Cell {
	c := Cell{Number: numberIn(file)}
	if !r.sought {
		r.sought = true
		r.python, _ = cpython.FindInterpreter(r.process)
	}
	if r.python == nil || r.python.Type == 0 {
		return c
	}
	h, err := pyobject.HeapAt(r.process, r.python.Version, r.python.Runtime, r.python.Type)
	img := image{r.process, map[uint64][]byte{}}
	if err != nil || h.Prove(img) != nil {
		return c
	}
	return Find(h, img, file)
}

const pageBytes = 4096

// image is the memory of a process by pages, each of which is read once.
type image struct {
	process.Memory
	pages map[uint64][]byte // nil: it cannot be read
}

func (i image) page(at uint64) []byte {
	if p, ok := i.pages[at]; ok {
		return p
	}
	p := make([]byte, pageBytes)
	if n, err := i.ReadAt(p, at); err != nil || n < pageBytes {
		p = nil
	}
	i.pages[at] = p
	return p
}

// Word implements pyobject.Image.
func (i image) Word(addr uint64) uint64 {
	if addr&7 != 0 {
		return 0
	}
	p := i.page(addr &^ (pageBytes - 1))
	if p == nil {
		return 0
	}
	return binary.LittleEndian.Uint64(p[addr&(pageBytes-1):])
}

// View implements pyobject.Image.
func (i image) View(addr uint64, n int) []byte {
	if n < 0 || n > maxView {
		return nil
	}
	out := make([]byte, 0, n)
	for at := addr; len(out) < n; {
		p := i.page(at &^ (pageBytes - 1))
		if p == nil {
			return nil
		}
		p = p[at&(pageBytes-1):]
		p = p[:min(len(p), n-len(out))]
		out = append(out, p...)
		at += uint64(len(p))
	}
	return out
}

// maxView bounds what is read at once, bytes: a dictionary of a million entries has 24 MiB.
const maxView = 64 << 20
