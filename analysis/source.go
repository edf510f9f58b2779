package analysis

import (
	"bufio"
	"io"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Limits of what is read of a source file: the path comes from the program that is watched.
const (
	maxSourceBytes = 16 << 20
	maxSourceLine  = 4096 // of a longer line only the front is kept, in bytes
)

// readSources fills in the text of the rows' lines, each file read once.
func (v *View) readSources(rows []Row) {
	if v.options.Source == nil {
		return
	}
	byFile := map[string][]*Row{}
	for i := range rows {
		if rows[i].Line > 0 {
			byFile[rows[i].File] = append(byFile[rows[i].File], &rows[i])
		}
	}
	for file, rows := range byFile {
		v.readSource(file, rows)
	}
}

func (v *View) readSource(file string, rows []*Row) {
	r := v.options.Source(file)
	if r == nil {
		return
	}
	if c, ok := r.(io.Closer); ok {
		defer c.Close()
	}
	last := 0
	for _, row := range rows {
		last = max(last, row.Line)
	}
	lines := bufio.NewReaderSize(io.LimitReader(r, maxSourceBytes), maxSourceLine)
	for n := 1; n <= last; n++ {
		text, ok := readLine(lines)
		if !ok {
			return
		}
		for _, row := range rows {
			if row.Line == n {
				row.Source = clean(text)
			}
		}
	}
}

// readLine gives the front of the next line and skips its rest.
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

// clean makes one printable line of text: nothing in it can move a terminal's cursor.
func clean(text string) string {
	if !utf8.ValidString(text) {
		text = strings.ToValidUTF8(text, "?")
	}
	text = strings.Map(func(r rune) rune {
		switch {
		case r == '\t':
			return ' '
		case !unicode.IsPrint(r):
			return -1
		}
		return r
	}, text)
	return strings.TrimSpace(text)
}
