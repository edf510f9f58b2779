// SPDX-License-Identifier: Apache-2.0

package main

import (
	"regexp"
	"slices"
	"strings"
)

// Declaration is a function that a header declares.
type Declaration struct {
	// Name is the exported symbol, after applying the header's #defines.
	Name string
	// Params are the types of the parameters, without names.
	Params []string
}

// function matches the names of functions of the interfaces. Types have similar names; a function is followed by "(".
var function = regexp.MustCompile(`^(cu|cuda|hip|ze)[A-Z]\w*$`)

// streamSuffixes are the macros that define a second name: libraries export each function that takes a stream again,
// for programs in which each thread has its own default stream (cuda.h, cuda_runtime_api.h, amd_hip_runtime_pt_api.h).
var streamSuffixes = []struct{ macro, suffix string }{
	{"_PTSZ", "_ptsz"},
	{"_PTDS", "_ptds"},
	{"_SPT", "_spt"},
}

// Scan lists the declarations of a C header in order, each name once. It is not a compiler: it takes every branch of an #if, so it
// finds what any setting can enable, including older forms of a function; and it takes for a declaration whatever looks like one.
func Scan(header string) []Declaration {
	var out []Declaration
	seen := map[string]bool{}
	macros := map[string]string{}
	var statement []string
	for line := range strings.Lines(uncommented(header)) {
		if directive, ok := strings.CutPrefix(strings.TrimSpace(line), "#"); ok {
			define(macros, directive)
			continue
		}
		for _, token := range tokens(line) {
			if token != ";" && token != "{" && token != "}" {
				statement = append(statement, token)
				continue
			}
			if name, params, ok := prototype(statement); ok && token == ";" {
				for _, exported := range expand(macros, name) {
					if !seen[exported] {
						seen[exported] = true
						out = append(out, Declaration{exported, params})
					}
				}
			}
			statement = statement[:0]
		}
	}
	return out
}

// uncommented returns the text without comments and with continued lines joined. A comment keeps its line ends, because
// otherwise the next line would become part of a directive.
func uncommented(text string) string {
	var out strings.Builder
	out.Grow(len(text))
	for {
		at := strings.IndexAny(text, "/\\")
		if at < 0 || at+1 == len(text) {
			out.WriteString(text)
			return out.String()
		}
		out.WriteString(text[:at])
		text = text[at:]
		end := len(text)
		switch {
		case strings.HasPrefix(text, "/*"):
			if i := strings.Index(text[2:], "*/"); i >= 0 {
				end = i + 4
			}
			out.WriteString(" " + strings.Repeat("\n", strings.Count(text[:end], "\n")))
		case strings.HasPrefix(text, "//"):
			if i := strings.IndexByte(text, '\n'); i >= 0 {
				end = i
			}
		case strings.HasPrefix(text, "\\\n"):
			end = 2
		case strings.HasPrefix(text, "\\\r\n"):
			end = 3
		default:
			end = 1
			out.WriteByte(text[0])
		}
		text = text[end:]
	}
}

var directive = regexp.MustCompile(`^\s*(define|undef)\s+(\w+)(\(?)(.*)`)

// define stores the macros that rename functions.
func define(macros map[string]string, line string) {
	m := directive.FindStringSubmatch(line)
	switch {
	case m == nil || m[3] != "":
	case m[1] == "undef":
		delete(macros, m[2])
	case function.MatchString(m[2]):
		macros[m[2]] = strings.TrimSpace(m[4])
	}
}

// tokens splits a line into words, strings and single characters.
func tokens(line string) []string {
	var out []string
	for line = strings.TrimLeft(line, " \t\r\n\f\v"); line != ""; line = strings.TrimLeft(line, " \t\r\n\f\v") {
		n := 1
		if i := strings.IndexFunc(line, notWord); i != 0 {
			n = len(line)
			if i > 0 {
				n = i
			}
		} else if line[0] == '"' {
			n += strings.IndexByte(line[1:], '"') + 1
		}
		out = append(out, line[:n])
		line = line[n:]
	}
	return out
}

func notWord(r rune) bool {
	return r != '_' && (r < '0' || r > '9') && (r < 'A' || r > 'Z') && (r < 'a' || r > 'z')
}

// notTypes are the first words of statements that do not declare functions.
var notTypes = []string{"typedef", "return", "else", "static", "template", "using"}

// prototype parses one statement: a result type, a name, parameters.
func prototype(statement []string) (name string, params []string, ok bool) {
	at := slices.IndexFunc(statement, function.MatchString)
	for at >= 0 && (at+1 == len(statement) || statement[at+1] != "(") {
		next := slices.IndexFunc(statement[at+1:], function.MatchString)
		if next < 0 {
			return "", nil, false
		}
		at += 1 + next
	}
	if at < 1 || slices.Contains(notTypes, statement[0]) || slices.Contains(statement[:at], "=") || statement[at-1] == "(" {
		return "", nil, false
	}
	end := closing(statement, at+1)
	if end < 0 {
		return "", nil, false
	}
	return statement[at], parameters(statement[at+2 : end]), true
}

// closing returns the index of the parenthesis that closes the one at open, or -1.
func closing(statement []string, open int) int {
	depth := 0
	for i := open; i < len(statement); i++ {
		switch statement[i] {
		case "(":
			depth++
		case ")":
			if depth--; depth == 0 {
				return i
			}
		}
	}
	return -1
}

// parameters splits a list at the commas outside parentheses.
func parameters(list []string) []string {
	var out []string
	depth, start := 0, 0
	for i := 0; i <= len(list); i++ {
		switch {
		case i == len(list) || depth == 0 && list[i] == ",":
			if p := parameterType(list[start:i]); p != "" && p != "void" {
				out = append(out, p)
			}
			start = i + 1
		case list[i] == "(":
			depth++
		case list[i] == ")":
			depth--
		}
	}
	return out
}

// parameterType removes the parameter's name, default and macros: "const size_t *x __dv(0)" becomes "const size_t*".
func parameterType(words []string) string {
	if i := slices.Index(words, "="); i >= 0 {
		words = words[:i]
	}
	if i := slices.Index(words, "("); i >= 1 {
		words = words[:i-1]
	}
	if n := len(words); n > 1 && !strings.ContainsFunc(words[n-1], notWord) && words[n-2] != "struct" && words[n-2] != "enum" &&
		words[n-2] != "const" {
		words = words[:n-1]
	}
	words = slices.DeleteFunc(slices.Clone(words), func(w string) bool { return w == "struct" || w == "enum" })
	return strings.ReplaceAll(strings.Join(words, " "), " *", "*")
}

// expand applies the header's macros to a name, as the preprocessor does, for both kinds of default stream.
func expand(macros map[string]string, name string) []string {
	used := map[string]bool{}
	for !used[name] {
		used[name] = true
		body := macros[name]
		if function.MatchString(body) {
			name = body
			continue
		}
		macro, rest, ok := strings.Cut(body, "(")
		inner := strings.TrimSuffix(rest, ")")
		for _, s := range streamSuffixes {
			if ok && strings.HasSuffix(macro, s.macro) && function.MatchString(inner) {
				return []string{inner, inner + s.suffix}
			}
		}
	}
	return []string{name}
}
