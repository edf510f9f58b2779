// SPDX-License-Identifier: Apache-2.0

// Package words makes text from the traced program safe to show: names of functions, files, modules, keys and messages can
// hold anything, and must not move a terminal's cursor, turn the direction of what follows, or pass for a line of ours.
package words

import (
	"path"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Valid is the text as UTF-8: each run of bytes that are none becomes one U+FFFD. For formats that keep names as they are, but
// whose strings must be UTF-8.
func Valid(s string) string { return strings.ToValidUTF8(s, string(utf8.RuneError)) }

// Line is the text in one printable line: newlines and tabs become spaces, whatever else does not print (control characters,
// escape sequences' first bytes, marks of direction, invalid UTF-8) becomes U+FFFD.
func Line(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' {
			return ' '
		}
		return printable(r)
	}, Valid(s))
}

// Text is Line that keeps newlines and tabs, for messages of several lines.
func Text(s string) string {
	return strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' {
			return r
		}
		return printable(r)
	}, Valid(s))
}

// Cut is a text of at most n characters, n > 0; "…" stands for the rest of a longer one.
func Cut(s string, n int) string {
	if len(s) <= n || utf8.RuneCountInString(s) <= n {
		return s
	}
	end := 0
	for range n - 1 {
		_, size := utf8.DecodeRuneInString(s[end:])
		end += size
	}
	return s[:end] + "…"
}

// printable is the character, or U+FFFD where it does not print. Of spaces only U+0020 does.
func printable(r rune) rune {
	if unicode.IsPrint(r) {
		return r
	}
	return unicode.ReplacementChar
}

// ScriptLine is CommandLine with what tells programs apart in front: the script of a Python, without the interpreter and folders.
func ScriptLine(args []string, name string) string {
	if len(args) > 1 && strings.Contains(path.Base(args[0]), "python") && !strings.HasPrefix(args[1], "-") {
		args = args[1:]
	}
	return CommandLine(args, name)
}

// maxCommandLine is the length of a shortened command line, characters.
const maxCommandLine = 60

// CommandLine shortens a command line to what identifies it, with what is not printable quoted. Without arguments it is name,
// which must be printable.
func CommandLine(args []string, name string) string {
	if len(args) == 0 {
		return name
	}
	args = append([]string{path.Base(args[0])}, args[1:]...)
	line := strings.Trim(strconv.Quote(strings.Join(args, " ")), `"`)
	if r := []rune(line); len(r) > maxCommandLine {
		line = string(r[:maxCommandLine-1]) + "…"
	}
	return line
}
