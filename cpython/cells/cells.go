// SPDX-License-Identifier: Apache-2.0

// Package cells knows the cells of a notebook: which number a cell has, and its text, which no file has. IPython compiles each cell
// under the name of a file that is not there.
package cells

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/gputrace/gputrace/cpython/pyobject"
)

// Bounds on what one cell makes us read.
const (
	maxLines = 100_000
	maxBytes = 4 << 20
)

// Cell is a cell that ran.
type Cell struct {
	Number int    // n of In[n], the last time that this very text ran; 0: not known
	Text   string // what was compiled: magics are calls by then
}

// NameOf is how a person knows the cell whose code has a file: In[14], or the file where the number is not known.
func (c *Cell) NameOf(file string) string {
	if c.Number == 0 {
		return file
	}
	return fmt.Sprintf("In[%d]", c.Number)
}

// IsFile says whether a file of a code object has the name that IPython gives to a cell: /tmp/ipykernel_PID/HASH.py of a kernel
// (ipykernel/compiler.py), <ipython-input-N-HASH> of a shell (IPython/core/compilerop.py), /tmp/ipython-input-N-HASH.py of others.
func IsFile(file string) bool {
	return strings.Contains(file, "/ipykernel_") && strings.HasSuffix(file, ".py") && !strings.Contains(file, "-packages/") ||
		strings.HasPrefix(file, shellPrefix) || strings.Contains(file, "/ipython-input-")
}

const shellPrefix = "<ipython-input-"

// numberIn is the number in the name of a cell of a shell: 14 of <ipython-input-14-0123456789ab>. 0: there is none.
func numberIn(file string) int {
	digits, _, ok := strings.Cut(strings.TrimPrefix(file, shellPrefix), "-")
	n, err := strconv.Atoi(digits)
	if !ok || err != nil || n < 0 {
		return 0
	}
	return n
}

// Find reads a cell by the file of its code. What the program does not have is empty: linecache.cache has the text, and the shell's
// compiler the number.
func Find(h *pyobject.Heap, img pyobject.Image, file string) Cell {
	r := reader{h, img}
	c := Cell{Number: numberIn(file)}
	lines := h.Attribute(img, h.ModuleNamed(img, "linecache"), "cache")
	shell := h.Attribute(img, h.Attribute(img, h.ModuleNamed(img, "IPython.core.interactiveshell"), "InteractiveShell"), "_instance")
	c.Text = r.text(r.key(lines, file))
	if n, ok := h.Int(img, r.key(r.attribute(r.attribute(shell, "compile"), "_filename_map"), file)); ok && n > 0 && n < 1<<31 {
		c.Number = int(n)
	}
	return c
}

type reader struct {
	h   *pyobject.Heap
	img pyobject.Image
}

// references are what an object refers to; nil of what is no object.
func (r reader) references(object uint64) []pyobject.Ref {
	if object == 0 || !r.h.Plausible(r.img, object) {
		return nil
	}
	return r.h.References(r.img, nil, object, r.h.TypeOf(r.img, object))
}

// key is the value of a text in a dictionary; 0: there is none.
func (r reader) key(dict uint64, text string) uint64 {
	for _, ref := range r.references(dict) {
		if ref.Kind == pyobject.RefKey && r.h.Text(r.img, ref.Aux) == text {
			return ref.Target
		}
	}
	return 0
}

// attribute is an attribute of an instance; 0: there is none.
func (r reader) attribute(object uint64, name string) uint64 {
	for _, ref := range r.references(object) {
		switch {
		case ref.Kind == pyobject.RefAttribute && r.h.Text(r.img, ref.Aux) == name:
			return ref.Target
		case ref.Kind == pyobject.RefDict:
			return r.key(ref.Target, name)
		}
	}
	return 0
}

// text is the lines of an entry of linecache.cache: size, None, lines, name. Empty when it is none.
func (r reader) text(entry uint64) string {
	const linesOf = 2
	var b strings.Builder
	for _, e := range r.references(entry) {
		if e.Kind != pyobject.RefIndex || e.Aux != linesOf {
			continue
		}
		for _, line := range r.references(e.Target) {
			if line.Kind != pyobject.RefIndex || line.Aux >= maxLines || b.Len() >= maxBytes {
				break
			}
			b.WriteString(strings.TrimRight(r.h.Text(r.img, line.Target), "\r\n") + "\n")
		}
	}
	return b.String()
}
