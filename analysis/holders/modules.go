// SPDX-License-Identifier: Apache-2.0

package holders

import (
	"slices"
	"strings"

	scan "github.com/gputrace/gputrace/inspect/holders"
)

// moduleChain is the part of a path that goes from an nn.Module through its modules to one of them, or to a parameter or buffer.
type moduleChain struct {
	links  []moduleLink
	steps  int  // of the path; 0: there is no chain
	tensor bool // it ends in a parameter or buffer
}

// moduleLink is a module, parameter or buffer within another module.
type moduleLink struct {
	name string
	in   string // type of the module that it is part of; empty: not known
}

// partNames are the attributes in which an nn.Module keeps its parts (torch/nn/modules/module.py).
var partNames = []string{"_modules", "_parameters", "_buffers"}

// newModuleChain finds the chain that begins at a step of a path.
func newModuleChain(p scan.Path, at int) moduleChain {
	var c moduleChain
	for {
		from := at + c.steps
		n := moduleSteps(p[from:])
		if n == 0 {
			return c
		}
		in := ""
		if from > 0 {
			in = p[from-1].Type
		}
		c.links = append(c.links, moduleLink{p[from+n-1].Name, in})
		c.steps, c.tensor = c.steps+n, p[from+n-2].Name != partNames[0]
	}
}

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

// containers end the names of the types of modules whose parts are elements: nn.ModuleList, nn.ParameterDict, nn.Sequential, and what
// programs and libraries derive from them.
var containers = []string{"List", "Dict", "Sequential"}

// isElement reports whether a link is an element of a container.
func (l *moduleLink) isElement() bool {
	return isDigits(l.name) || slices.ContainsFunc(containers, func(end string) bool { return strings.HasSuffix(l.in, end) })
}

// isNumbered reports whether the name of a link ends in a number that others like it have too, as do parts that a program adds in a loop.
func (l *moduleLink) isNumbered() bool {
	stem, digits := splitDigits(l.name)
	return stem != "" && digits != ""
}

// modules are the steps of a chain. The names of containers stay, and what they lie in; the layers of a model that are in no container, or
// below one, are put together, but only where the path ends in what layers consist of.
func (t *template) modules(c moduleChain) []scan.Step {
	if !c.tensor {
		var out []scan.Step
		for i := range c.links {
			out = append(out, t.link(&c.links[i]))
		}
		return out
	}
	first := slices.IndexFunc(c.links, func(l moduleLink) bool { return l.isElement() || l.isNumbered() })
	var out []scan.Step
	for i := 0; i <= first; i++ {
		if i < first {
			out = append(out, nameStep(c.links[i].name))
		} else {
			out = append(out, t.link(&c.links[i]))
		}
	}
	return append(out, t.below(c.links[first+1:])...)
}

// below are the steps of links that follow an element, or of all where there is none.
func (t *template) below(links []moduleLink) []scan.Step {
	var out []scan.Step
	for {
		next := slices.IndexFunc(links, func(l moduleLink) bool { return l.isElement() })
		if next < 0 {
			return append(out, t.names(links)...)
		}
		if next > 0 {
			out = append(out, t.names(links[:next-1])...)
			out = append(out, nameStep(links[next-1].name))
		}
		out = append(out, t.link(&links[next]))
		links = links[next+1:]
	}
}

func nameStep(name string) scan.Step { return scan.Step{Kind: scan.StepAttribute, Name: name} }

// link is the step of one link, with a placeholder where it is one of several.
func (t *template) link(l *moduleLink) scan.Step {
	s := scan.Step{Kind: scan.StepKey, KeyKind: scan.KeyString, Name: l.name}
	switch {
	case isDigits(l.name):
		s.KeyKind, s.Index, s.Name = scan.KeyInt, value(l.name), ""
		return t.hide(s)
	case l.isElement():
		return t.hide(s)
	}
	return t.attribute(nameStep(l.name))
}

// names is one placeholder for names of modules and of what they consist of.
func (t *template) names(links []moduleLink) []scan.Step {
	var text strings.Builder
	for i := range links {
		text.WriteString("." + links[i].name)
	}
	n, ok := t.put(placeholder{kind: namesPart, text: text.String()})
	if !ok {
		return nil
	}
	return []scan.Step{nameStep(placeholderText(int(n - firstPlaceholder)))}
}
