// SPDX-License-Identifier: Apache-2.0

package holders

import (
	"fmt"
	"slices"
	"strings"

	scan "github.com/gputrace/gputrace/inspect/holders"
)

// Folding: the blocks that a user would call one thing are one group. Their paths are the same but for
//
//	numbers        kept[0], kept[1], ...                    kept[0..11]
//	keys           opt.state[model.head.weight]['exp_avg']  opt.state[*]['exp_avg']
//	modules        model.blocks[3].mlp[0].weight            model.*
//	graph nodes    losses[4].grad_fn<...> ... saved by ...  losses[0..99].grad_fn …
//
// A path is rendered with a number in place of each part that may differ; numbers that nobody would use are put in, so that
// they can be found in the text again.
const (
	// firstPlaceholder stands for the first part that differs, the next number for the second, and so on.
	firstPlaceholder = 8_207_316_450_000_000_000
	maxPlaceholders  = 64
	// maxNamedKeys is how many different string keys at one place are shown one by one.
	maxNamedKeys = 8

	anyKey    = "*"
	anyModule = "*"
	graphTail = " …"
)

// template is a path with placeholders.
type template struct {
	text         string // placeholders are the numbers from firstPlaceholder on
	placeholders []placeholder
}

// placeholder is what a path has in one place.
type placeholder struct {
	number int64
	key    string // quoted; empty: number counts
	object bool   // a key that is neither a number nor a string
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
		nameGroup(templates, of, out)
	}
	count := map[string]int{}
	for _, name := range out {
		count[name]++
	}
	for i := range out {
		if count[out[i]] == 1 { // nothing is folded
			out[i] = blocks[i].Name()
		}
	}
	return out
}

// nameGroup names blocks of one template. Few different keys keep their names, and make a group each.
func nameGroup(templates []template, of []int, out []string) {
	spots := map[int]bool{}
	for n := range templates[of[0]].placeholders {
		keys := map[string]bool{}
		for _, i := range of {
			keys[templates[i].placeholders[n].key] = true
		}
		spots[n] = len(keys) <= maxNamedKeys && !keys[""]
	}
	parts := map[string][]int{}
	for _, i := range of {
		var names []string
		for n, h := range templates[i].placeholders {
			if spots[n] {
				names = append(names, h.key)
			}
		}
		id := strings.Join(names, "\x00")
		parts[id] = append(parts[id], i)
	}
	for _, part := range parts {
		name := filled(templates, part)
		for _, i := range part {
			out[i] = name
		}
	}
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
		out.WriteString(before + "[" + spanText(templates, of, n) + "]")
		rest = after
	}
	return out.String() + rest
}

// placeholderText is how a placeholder is rendered.
func placeholderText(n int) string { return fmt.Sprintf("[%d]", firstPlaceholder+n) }

// spanText is the text for a placeholder: the number or key that all have, the numbers from the first to the last when none is
// missing, or "*".
func spanText(templates []template, of []int, n int) string {
	first := templates[of[0]].placeholders[n]
	same, numbers := true, map[int64]bool{}
	low, high := first.number, first.number
	for _, i := range of {
		h := templates[i].placeholders[n]
		same = same && h == first
		if h.object || h.key != "" {
			low, high = 0, -1 // no numbers
		}
		numbers[h.number] = true
		if low <= high {
			low, high = min(low, h.number), max(high, h.number)
		}
	}
	switch {
	case first.object:
		return anyKey
	case same && first.key != "":
		return first.key
	case same:
		return fmt.Sprint(first.number)
	case high-low == int64(len(numbers))-1:
		return fmt.Sprintf("%d..%d", low, high)
	}
	return anyKey
}

func newTemplate(b *scan.Block) template {
	if len(b.Path) == 0 {
		return template{text: b.Name()}
	}
	var t template
	var p scan.Path
	inModules := false
	for i := 0; i < len(b.Path); i++ {
		s := b.Path[i]
		switch s.Kind {
		case scan.StepGradFn:
			return t.of(p, ".grad_fn"+graphTail)
		case scan.StepNext, scan.StepSaved:
			return t.of(p, graphTail)
		}
		n := moduleSteps(b.Path[i:])
		switch {
		case n > 0 && !inModules:
			p = append(p, scan.Step{Kind: scan.StepAttribute, Name: anyModule})
		case n == 0 && i > 0 && b.Path[i-1].Kind == scan.StepDict: // an attribute
			p = append(p, s)
		case n == 0:
			p = append(p, t.hide(s))
		}
		inModules = n > 0
		i += max(n-1, 0)
	}
	return t.of(p, "")
}

func (t template) of(p scan.Path, tail string) template {
	t.text = p.String() + tail
	return t
}

// partNames are the attributes in which an nn.Module keeps its parts (torch/nn/modules/module.py).
var partNames = []string{"_modules", "_parameters", "_buffers"}

// moduleSteps is how many steps lead from a module to one of its parts; 0: the path goes elsewhere.
func moduleSteps(p scan.Path) int {
	n := 0
	if len(p) > 0 && p[0].Kind == scan.StepDict {
		n = 1
	}
	switch {
	case len(p) < n+2 || !slices.Contains(partNames, p[n].Name) || p[n+1].Kind != scan.StepKey:
		return 0
	case p[n].Kind == scan.StepAttribute || p[n].Kind == scan.StepKey:
		return n + 2
	}
	return 0
}

// hide puts a placeholder where a step has something that may differ.
func (t *template) hide(s scan.Step) scan.Step {
	n := len(t.placeholders)
	if n == maxPlaceholders || s.Name != "" && s.Kind == scan.StepIndex { // a field of a named tuple
		return s
	}
	switch {
	case s.Kind == scan.StepSlot && s.KeyText != "": // an entry of a cache
		s.KeyText = fmt.Sprint(firstPlaceholder + n)
		t.placeholders = append(t.placeholders, placeholder{object: true})
		return s
	case s.Kind == scan.StepIndex:
		t.placeholders = append(t.placeholders, placeholder{number: s.Index})
	case s.Kind != scan.StepKey:
		return s
	case s.KeyKind == scan.KeyInt:
		t.placeholders = append(t.placeholders, placeholder{number: s.Index})
	case s.KeyKind == scan.KeyString:
		text := scan.Path{s}.String() // in brackets
		t.placeholders = append(t.placeholders, placeholder{key: strings.TrimSuffix(strings.TrimPrefix(text, "["), "]")})
	default:
		t.placeholders = append(t.placeholders, placeholder{object: true})
	}
	s.Index, s.KeyKind, s.Name, s.KeyText, s.KeyPath = int64(firstPlaceholder+n), scan.KeyInt, "", "", nil
	return s
}
