// SPDX-License-Identifier: Apache-2.0

package holders

import (
	"fmt"
	"strings"

	scan "github.com/gputrace/gputrace/inspect/holders"
)

// Folding: the blocks of one container are one group. A group keeps every attribute at which its paths differ from those of others, and
// shows how many elements there are:
//
//	positions      kept[0], kept[1], ...                    kept[0..11]
//	keys           attn[4]['block2'][7]                     attn[0..7]['block0'..'block5'][0..49]
//	attributes     self.head_3                              self.head_1..head_240
//	modules        model.blocks[3].mlp.fc.weight            model.blocks[0..11].*
//	               net.heads['task7'].weight                net.heads['task1'..'task240'].weight
//	               layers[2].q.lora_A['eu'].weight          layers[0..31]…lora_A[12 keys].weight
//	graph nodes    losses[4].grad_fn<...> ... saved by ...  losses[0..99].grad_fn …
//
// Which group a block belongs to follows from its own path alone: the same container is the same group in every reading, however many
// elements it has; only a key that has nearly all elements of a group is named alone.
// A path is rendered with a number in place of each part that may differ; numbers that nobody would use are put in, so
// that they can be found in the text again.
const (
	// firstPlaceholder stands for the first part that differs, the next number for the second, and so on.
	firstPlaceholder = 8_207_316_450_000_000_000
	maxPlaceholders  = 64

	graphTail = " …"
)

// template is a path with placeholders.
type template struct {
	text         string // placeholders are the numbers from firstPlaceholder on
	placeholders []placeholder
	graph        bool // it ends in a graph, of which the nodes are left out
}

// ownerNames names the group of each block.
func ownerNames(blocks []scan.Block) []string {
	templates := make([]template, len(blocks))
	groups := map[string][]int{}
	for i := range blocks {
		templates[i] = newTemplate(&blocks[i])
		groups[templates[i].text] = append(groups[templates[i].text], i)
	}
	out := make([]string, len(blocks))
	for _, of := range groups {
		if i := of[0]; len(of) == 1 && templates[i].graph { // one block can name its node
			out[i] = blocks[i].Name()
			continue
		}
		for _, part := range withoutLongest(templates, of) {
			name := filled(templates, part)
			for _, i := range part {
				out[i] = name
			}
		}
	}
	return out
}

const (
	// longestShare is the least share of a group's elements that one key has which is named alone, and longestLeast their least number:
	// of a dictionary of lists that are emptied, but for one, it is the one that matters.
	longestShare = 0.8
	longestLeast = 64
)

// withoutLongest divides a group in two where nearly all its elements are below one of several keys that are strings.
func withoutLongest(templates []template, of []int) [][]int {
	if len(of) < longestLeast {
		return [][]int{of}
	}
	for n := range templates[of[0]].placeholders {
		sums := map[placeholder]int{}
		for _, i := range of {
			sums[templates[i].placeholders[n]]++
		}
		for h, sum := range sums {
			if h.kind != keyPart || len(sums) == 1 || sum < longestLeast || float64(sum) < longestShare*float64(len(of)) {
				continue
			}
			var longest, rest []int
			for _, i := range of {
				if templates[i].placeholders[n] == h {
					longest = append(longest, i)
				} else {
					rest = append(rest, i)
				}
			}
			return [][]int{longest, rest}
		}
	}
	return [][]int{of}
}

// filled is the text of a template with what its blocks have in place of the placeholders, which come in their order.
func filled(templates []template, of []int) string {
	t := &templates[of[0]]
	var out strings.Builder
	rest := t.text
	for n := range t.placeholders {
		before, after, found := strings.Cut(rest, placeholderText(n))
		if !found {
			break
		}
		span := spanText(templates, of, n)
		if t.placeholders[n].kind == namesPart { // with its dots
			before = strings.TrimSuffix(before, ".")
			if strings.HasSuffix(span, between) {
				after = strings.TrimPrefix(after, ".")
			}
		}
		out.WriteString(before + span)
		rest = after
	}
	return out.String() + rest
}

// placeholderText is how a placeholder is rendered.
func placeholderText(n int) string { return fmt.Sprint(firstPlaceholder + n) }

func newTemplate(b *scan.Block) template {
	if len(b.Path) == 0 {
		return template{text: b.Name()}
	}
	var t template
	var p scan.Path
	for i := 0; i < len(b.Path); i++ {
		s := b.Path[i]
		switch s.Kind {
		case scan.StepGradFn:
			return t.of(p, ".grad_fn"+graphTail)
		case scan.StepNext, scan.StepSaved:
			return t.of(p, graphTail)
		}
		c := newModuleChain(b.Path, i)
		switch {
		case c.steps > 0:
			p = append(p, t.modules(c)...)
			i += c.steps - 1
		case i > 1 && s.Kind == scan.StepAttribute, i > 0 && b.Path[i-1].Kind == scan.StepDict:
			p = append(p, t.attribute(s))
		default:
			p = append(p, t.hide(s))
		}
	}
	return t.of(p, "")
}

func (t template) of(p scan.Path, tail string) template {
	t.text, t.graph = p.String()+tail, tail != ""
	return t
}

// hide puts a placeholder where a step has something that may differ.
func (t *template) hide(s scan.Step) scan.Step {
	if s.Name != "" && s.Kind == scan.StepIndex { // a field of a named tuple
		return s
	}
	switch {
	case s.Kind == scan.StepSlot && s.KeyText != "": // an entry of a cache
		if n, ok := t.put(placeholder{kind: objectPart, text: s.KeyText}); ok {
			s.KeyText = fmt.Sprint(n)
		}
		return s
	case s.Kind == scan.StepIndex:
		return t.element(s, placeholder{kind: numberPart, number: s.Index})
	case s.Kind != scan.StepKey:
		return s
	case s.KeyKind == scan.KeyInt:
		return t.element(s, placeholder{kind: numberPart, number: s.Index})
	}
	text := scan.Path{s}.String() // in brackets
	text = strings.TrimSuffix(strings.TrimPrefix(text, "["), "]")
	if s.KeyKind == scan.KeyString {
		return t.element(s, placeholder{kind: keyPart, text: text, key: s.Name})
	}
	h := placeholder{kind: objectPart, text: text}
	if s.KeyText == "" {
		h.number = int64(s.KeyAddr)
	}
	return t.element(s, h)
}

// element puts a placeholder in brackets.
func (t *template) element(s scan.Step, h placeholder) scan.Step {
	n, ok := t.put(h)
	if !ok {
		return s
	}
	return scan.Step{Kind: scan.StepKey, KeyKind: scan.KeyInt, Index: n}
}

// attribute puts a placeholder in place of the digits with which the name of an attribute ends.
func (t *template) attribute(s scan.Step) scan.Step {
	stem, digits := splitDigits(s.Name)
	if stem == "" || digits == "" {
		return s
	}
	if n, ok := t.put(placeholder{kind: suffixPart, text: digits, stem: stem}); ok {
		s.Name = stem + fmt.Sprint(n)
	}
	return s
}

// put adds a placeholder, and reports its number and whether there was room for it.
func (t *template) put(h placeholder) (int64, bool) {
	n := len(t.placeholders)
	if n == maxPlaceholders {
		return 0, false
	}
	t.placeholders = append(t.placeholders, h)
	return int64(firstPlaceholder + n), true
}
