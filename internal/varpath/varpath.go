// SPDX-License-Identifier: Apache-2.0

// Package varpath takes the names of holders apart, such as "train.py:88 main() local self.kept[0..7]['loss']", as analysis/holders writes
// them: what two of them have in common, whether one is part of another, and how a name is shortened.
package varpath

import (
	"regexp"
	"strings"
	"unicode"
)

// Path is a name in its elements.
type Path struct {
	// Where is the frame in which the variable is local, "train.py:88 main()"; empty: it is none.
	Where string
	// Elements are the variable, and what leads on from it: ".kept", "[0..7]", " closure". Joined they are the name without Where.
	Elements []string
}

const (
	local   = " local "
	anyOf   = "…" // names of modules that differ
	anyName = ".*"
	graph   = ".grad_fn"
	// tbFrame is followed by the frame that a traceback keeps, and local.
	tbFrame = ".tb_frame "
	// suspended is followed by the frame of a generator or coroutine that waits, and local.
	suspended = " suspended "
)

// ownHook is the hook of a graph that keeps its graph, with where its code is: "hook train.py:18 <lambda>".
var ownHook = regexp.MustCompile(`^hook (?:\S*:\d+ )?[^ .\[]+`)

// isFrame reports whether the rest of a name begins with a frame that an object keeps.
func isFrame(rest string) bool {
	return strings.HasPrefix(rest, tbFrame) || strings.HasPrefix(rest, suspended)
}

// Parse takes a name apart.
func Parse(name string) Path {
	var p Path
	rest := name
	outside, _, _ := strings.Cut(name, tbFrame) // the variables of a frame that an object keeps are no roots
	outside, _, _ = strings.Cut(outside, suspended)
	if i := lastOutside(outside, local); i >= 0 {
		p.Where, rest = name[:i], name[i+len(local):]
	}
	if hook := ownHook.FindString(rest); hook != "" {
		p.Elements, rest = append(p.Elements, hook), rest[len(hook):]
	}
	for rest != "" {
		n := elementLength(rest)
		e := rest[:n]
		if i := len(p.Elements); i > 0 && p.Elements[i-1] == anyOf && strings.IndexAny(e, ".[ ") != 0 {
			e = "." + e
		}
		p.Elements = append(p.Elements, e)
		rest = rest[n:]
	}
	return p
}

// String joins a path to its name.
func (p Path) String() string {
	rest := join(p.Elements)
	if p.Where == "" {
		return rest
	}
	return p.Where + local + rest
}

// join writes elements, without the dot after names that are left out.
func join(elements []string) string {
	var out strings.Builder
	for i, e := range elements {
		if i > 0 && elements[i-1] == anyOf {
			e = strings.TrimPrefix(e, ".")
		}
		out.WriteString(e)
	}
	return out.String()
}

// lastOutside finds the last occurrence of a text that is not in brackets.
func lastOutside(name, text string) int {
	last := -1
	for i := 0; i < len(name); {
		switch {
		case name[i] == '[':
			i += bracketLength(name[i:])
		case strings.HasPrefix(name[i:], text):
			last = i
			i += len(text)
		default:
			i++
		}
	}
	return last
}

// elementLength is the length of the first element of the rest of a name, at least 1.
func elementLength(s string) int {
	switch {
	case s[0] == '[':
		return bracketLength(s)
	case strings.HasPrefix(s, anyOf):
		return len(anyOf)
	case strings.HasPrefix(s, graph) && (len(s) == len(graph) || strings.IndexByte(" <", s[len(graph)]) >= 0):
		return len(s) // nodes of a graph
	}
	if isFrame(s) {
		if i := strings.Index(s, local); i > 0 {
			return i + len(local) - 1
		}
	}
	for i := 1; i < len(s); i++ {
		switch {
		case strings.HasPrefix(s[i:], ".."): // self.head_1..head_240
			i++
		case strings.IndexByte(".[ ", s[i]) >= 0 || strings.HasPrefix(s[i:], anyOf):
			return i
		}
	}
	return len(s)
}

// bracketLength is the length of what is in brackets, with them; all of it where they are not closed.
func bracketLength(s string) int {
	depth := 0
	quote := byte(0)
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case quote != 0 && c == '\\':
			i++
		case quote != 0:
			if c == quote {
				quote = 0
			}
		case c == '\'' || c == '"':
			quote = c
		case c == '[':
			depth++
		case c == ']':
			if depth--; depth == 0 {
				return i + 1
			}
		}
	}
	return len(s)
}

// kind is what an element has in common with those that stand for other elements of the same containers.
func kind(element string) string {
	switch {
	case element[0] == '[':
		return "[]"
	case strings.HasPrefix(element, graph):
		return graph
	case isFrame(element):
		return whereKey(element)
	case element[0] != '.' || element == anyName:
		return element
	}
	first, _, _ := strings.Cut(element[1:], "..")
	stem := strings.TrimRight(strings.TrimSuffix(first, "*"), "0123456789")
	if stem == "" || stem == first || strings.IndexFunc(stem, notInWord) >= 0 {
		return element
	}
	return "." + stem + "#"
}

// stem is what an attribute has in common with its siblings: ".lora_*" of ".lora_A" and ".lora_B". Others are their own stem.
func stem(element string) string {
	if i := strings.LastIndexByte(element, '_'); i > len("._") && element[0] == '.' {
		return element[:i+1] + "*"
	}
	return element
}

// notInWord reports whether a character is none of an identifier.
func notInWord(c rune) bool { return c != '_' && !unicode.IsLetter(c) && !unicode.IsDigit(c) }

// Key is the same for two readings of one container: a name without the ranges of its elements, and without the line at which a function
// just was.
func Key(name string) string {
	p := Parse(name)
	p.Where = whereKey(p.Where)
	for i, e := range p.Elements {
		p.Elements[i] = kind(e)
	}
	return p.String()
}

// whereKey is a frame without its line.
func whereKey(where string) string {
	words := strings.Split(where, " ")
	for i, w := range words {
		if file, line, ok := strings.Cut(w, ":"); ok && line != "" && strings.Trim(line, "0123456789") == "" {
			words[i] = file
		}
	}
	return strings.Join(words, " ")
}

// Loose is a name without the positions of its elements, which a container has more of than when it was read: "losses[*]" of
// "losses[0..24]". Keys that are texts stay.
func Loose(name string) string {
	p := Parse(name)
	for i, e := range p.Elements {
		if e[0] == '[' && len(e) > 1 && (e[1] == '-' || unicode.IsDigit(rune(e[1]))) && !strings.Contains(e, " keys") {
			p.Elements[i] = "[*]"
		}
	}
	return p.String()
}

// Root is the part of a name's Key before the first element of a container: the variable and its attributes.
func Root(name string) string {
	p := Parse(name)
	p.Where = whereKey(p.Where)
	for i, e := range p.Elements {
		if e[0] == '[' || e == anyOf {
			p.Elements = p.Elements[:i]
			break
		}
		p.Elements[i] = kind(e)
	}
	return p.String()
}

// IsLocal reports whether a name is a local variable of a function itself, not what it leads to: "train.py:9 epoch() local x".
func IsLocal(name string) bool {
	where, variable, ok := strings.Cut(name, local)
	return ok && !strings.HasSuffix(where, "<module>()") && !strings.ContainsAny(variable, ".[]{} ")
}

// Within reports whether a name is of what a container holds, or of the container itself, as two readings may name them. An empty name
// is not known.
func Within(name, container string) bool {
	if name == "" || container == "" {
		return false
	}
	n, c := Parse(name), Parse(container)
	if whereKey(n.Where) != whereKey(c.Where) {
		return false
	}
	return begins(n.Elements, c.Elements)
}

// Same reports whether two readings name the same thing: "losses[0..24]" grows to "losses[0..99]".
func Same(x, y string) bool { return Root(x) == Root(y) || Within(x, y) || Within(y, x) }

// begins reports whether elements begin with those of a container.
func begins(name, container []string) bool {
	for i, e := range container {
		switch {
		case e == anyOf:
			for skip := range name[min(i, len(name)):] {
				if begins(name[i+skip:], container[i+1:]) {
					return true
				}
			}
			return false
		case i >= len(name):
			return false
		case e == anyName && name[i] != anyOf && name[i][0] == '.':
		case strings.HasSuffix(e, "_*") && stem(name[i]) == e:
		case kind(e) != kind(name[i]):
			return false
		}
	}
	return true
}
