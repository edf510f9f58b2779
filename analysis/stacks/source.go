// SPDX-License-Identifier: Apache-2.0

package stacks

import (
	"bufio"
	"io"
	"strings"

	"github.com/gputrace/gputrace/internal/words"
)

// Limits of what is read of a source file: the path comes from the program that is watched.
const (
	maxSourceBytes = 16 << 20
	maxSourceLine  = 4096 // of a longer line only the front is kept, in bytes
)

// Place is a line of a Python file.
type Place struct {
	File string // the whole path
	Line int    // 0: not known
}

// SourceLines reads the text of lines, trimmed and printable, each file once; a line that cannot be read is left out. open returns
// a file as the program sees it, or nil; what it returns is closed when it is an io.Closer. open nil: there is nothing to read.
func SourceLines(open func(path string) io.Reader, places []Place) map[Place]string {
	out := map[Place]string{}
	if open == nil {
		return out
	}
	byFile := map[string]map[int]bool{}
	for _, p := range places {
		if p.Line <= 0 {
			continue
		}
		if byFile[p.File] == nil {
			byFile[p.File] = map[int]bool{}
		}
		byFile[p.File][p.Line] = true
	}
	for file, wanted := range byFile {
		readSource(open, file, wanted, out)
	}
	return out
}

// readSource reads the wanted lines of one file.
func readSource(open func(path string) io.Reader, file string, wanted map[int]bool, out map[Place]string) {
	r := open(file)
	if r == nil {
		return
	}
	if c, ok := r.(io.Closer); ok {
		defer c.Close()
	}
	last := 0
	for line := range wanted {
		last = max(last, line)
	}
	lines := bufio.NewReaderSize(io.LimitReader(r, maxSourceBytes), maxSourceLine)
	for n := 1; n <= last; n++ {
		text, ok := readLine(lines)
		if !ok {
			return
		}
		if wanted[n] {
			out[Place{file, n}] = strings.TrimSpace(words.Line(text))
		}
	}
}

// readLine returns the front of the next line and skips its rest.
func readLine(r *bufio.Reader) (string, bool) {
	front, more, err := r.ReadLine()
	if err != nil {
		return "", false
	}
	text := string(front)
	for more && err == nil {
		_, more, err = r.ReadLine()
	}
	return text, true
}
