// SPDX-License-Identifier: Apache-2.0

package stacks

import (
	"bufio"
	"io"
	"strings"
)

// InHandler reports whether a line of a Python file is in an except block of a try statement that has another line in its body. It is false
// if the file cannot be read. open is as in SourceLines.
func InHandler(open func(path string) io.Reader, file string, tried, line int) bool {
	if open == nil || tried <= 0 || line <= tried {
		return false
	}
	r := open(file)
	if r == nil {
		return false
	}
	if c, ok := r.(io.Closer); ok {
		defer c.Close()
	}
	var text []string // from the first line on
	lines := bufio.NewReaderSize(io.LimitReader(r, maxSourceBytes), maxSourceLine)
	for len(text) < line {
		t, ok := readLine(lines)
		if !ok {
			return false
		}
		text = append(text, strings.TrimRight(t, " \t\r\n\f"))
	}
	indent := indentOf(text[line-1])
	for n := line - 1; n > tried && indent > 0; n-- { // the statements around it, from the inside out
		t := text[n-1]
		if at := indentOf(t); at < indent && isCode(t) {
			indent = at
			if isKeyword(t, "except") {
				return inBody(text, n, tried)
			}
		}
	}
	return false
}

// inBody reports whether a line is in the body of the try statement to which an except line belongs.
func inBody(text []string, except, tried int) bool {
	indent := indentOf(text[except-1])
	for n := except - 1; n > 0; n-- {
		t := text[n-1]
		at := indentOf(t)
		switch {
		case !isCode(t) || at > indent:
		case at < indent:
			return false
		case isKeyword(t, "try"):
			return n < tried
		case !isKeyword(t, "except"):
			return false
		case n <= tried: // the line is in another except block
			return false
		}
	}
	return false
}

// indentOf returns the columns before a line's text: a tab goes to the next multiple of eight.
func indentOf(line string) int {
	n := 0
	for _, c := range line {
		switch c {
		case ' ':
			n++
		case '\t':
			n += 8 - n%8
		default:
			return n
		}
	}
	return n
}

func isCode(line string) bool {
	t := strings.TrimSpace(line)
	return t != "" && t[0] != '#'
}

// isKeyword reports whether a line begins with a keyword of a compound statement.
func isKeyword(line, keyword string) bool {
	rest, ok := strings.CutPrefix(strings.TrimSpace(line), keyword)
	return ok && (rest == "" || strings.ContainsRune(" :(*\t#", rune(rest[0])))
}
