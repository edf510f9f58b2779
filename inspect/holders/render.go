// SPDX-License-Identifier: Apache-2.0

package holders

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/gputrace/gputrace/inspect/holders/internal/text"
)

const (
	maxShownNodes = 3 // of a chain of graph nodes: of a longer one, the first and the last
	maxKeyDepth   = 2 // paths of keys within paths
)

// moduleParts are the attributes of an nn.Module in which it keeps what Python shows as attributes of its own.
var moduleParts = map[string]bool{"_modules": true, "_parameters": true, "_buffers": true}

// renderer writes a path step by step.
type renderer struct {
	out   strings.Builder
	last  StepKind
	part  bool // the last step led to a dictionary of an nn.Module
	named bool // it led to a function's closure or defaults
	// linked: objects in a row were left out, see StepElided.
	linked bool
	nodes  []string
	more   int // further nodes, not listed
	depth  int
}

func render(p Path) string { return renderAt(p, 0) }

// renderAt writes a path; depth counts the paths of keys that it is in.
func renderAt(p Path, depth int) string {
	r := renderer{depth: depth}
	for i := range p {
		r.step(&p[i])
		r.last, r.linked = p[i].Kind, p[i].Kind == StepElided && p[i].Name != "" || r.linked && p[i].Kind == StepDict
	}
	r.flushNodes()
	return r.out.String()
}

func (r *renderer) step(s *Step) {
	if s.Kind != StepNext && s.Kind != StepSaved && (s.Kind != StepElided || len(r.nodes) == 0) {
		r.flushNodes()
	}
	part, named := r.part, r.named
	r.part, r.named = false, false
	switch s.Kind {
	case StepModule:
		if s.Name != "__main__" {
			r.out.WriteString(text.Plain(s.Name))
		}
	case StepFrame, StepSuspended, StepFrameObject:
		r.frame(s)
	case StepLocal:
		r.local(s)
	case StepAttribute:
		r.attribute(s.Name)
	case StepKey:
		r.key(s, part, named)
	case StepIndex:
		r.index(s, named)
	case StepDict, StepCell: // read as what they lead to
	case StepGradFn:
		r.out.WriteString(".grad_fn")
		r.nodes = append(r.nodes, s.Name)
	case StepNext:
		r.nodes = append(r.nodes, s.Name)
	case StepSaved:
		r.saved(s)
	case StepElided:
		if s.Name != "" {
			r.out.WriteString("…")
		} else if len(r.nodes) > 0 {
			r.more += int(s.Index)
		} else {
			fmt.Fprintf(&r.out, " .. %d steps ..", s.Index)
		}
	default:
		r.out.WriteString(r.other(s))
	}
}

// other are the steps that read alike wherever they stand.
func (r *renderer) other(s *Step) string {
	switch s.Kind {
	case StepException:
		return fmt.Sprintf("exception handled by thread %d", s.thread())
	case StepThreadState:
		if s.Name != "" {
			return fmt.Sprintf("thread %d %s", s.thread(), text.Plain(s.Name))
		}
		return fmt.Sprintf("thread %d locals", s.thread())
	case StepGarbage:
		return "garbage " + text.Plain(s.Name)
	case StepNative:
		return "C++ " + text.Plain(s.Name)
	case StepOwnHook:
		return "hook " + s.code() + text.Plain(text.After(s.Name, "<locals>."))
	case StepTemporary:
		return " temporary " + strconv.FormatInt(s.Index, 10)
	case StepKeyItself:
		return "{" + text.Plain(s.Type) + "}"
	case StepSlot:
		if s.KeyText != "" {
			return "." + text.Plain(s.Name) + "[" + text.Plain(s.KeyText) + "]"
		}
		return "." + text.Plain(s.Name)
	case StepGrad:
		return ".grad"
	case StepVariable:
		return ".variable"
	case StepBase:
		return "._base"
	case StepHook:
		return " hook"
	case StepContext:
		return " ctx"
	case StepNode:
		return "<" + text.Plain(s.Name) + ">"
	case StepStorage:
		return " storage"
	}
	return fmt.Sprintf(" step(%d)", s.Kind)
}

// code is where a function is written, with a space behind it.
func (s *Step) code() string {
	if s.Frame == nil {
		return ""
	}
	return fmt.Sprintf("%s:%d ", text.Plain(path.Base(s.Frame.File)), s.Frame.Line)
}

func (s *Step) thread() uint64 {
	if s.Frame == nil {
		return 0
	}
	return s.Frame.Thread
}

func (r *renderer) frame(s *Step) {
	f := s.Frame
	if f == nil || s.Kind == StepFrame && r.depth > 0 { // a key's path begins where its dictionary's does, mostly
		return
	}
	if r.out.Len() > 0 {
		r.out.WriteByte(' ')
	}
	if s.Kind == StepSuspended {
		r.out.WriteString("suspended ")
	}
	r.out.WriteString(s.code() + text.Plain(f.Function) + "()")
}

func (r *renderer) local(s *Step) {
	if r.out.Len() > 0 && (r.last == StepFrame || r.last == StepSuspended || r.last == StepFrameObject) {
		r.out.WriteString(" local ")
	} else if r.out.Len() > 0 {
		r.out.WriteByte('.')
	}
	r.out.WriteString(text.Plain(s.Name))
}

func (r *renderer) attribute(name string) {
	switch {
	case moduleParts[name]:
		r.part = true
	case name == "__closure__":
		r.out.WriteString(" closure")
		r.named = true
	case name == "__defaults__", name == "__kwdefaults__":
		r.out.WriteString(" default")
		r.named = true
	default:
		if r.out.Len() > 0 && !r.linked {
			r.out.WriteByte('.')
		}
		r.out.WriteString(text.Plain(name))
	}
}

func (r *renderer) index(s *Step, named bool) {
	switch {
	case named && s.Name != "":
		r.out.WriteString(" " + text.Plain(s.Name))
	case s.Name != "":
		r.out.WriteString("." + text.Plain(s.Name))
	default:
		r.out.WriteString("[" + strconv.FormatInt(s.Index, 10) + "]")
	}
}

func (r *renderer) key(s *Step, part, named bool) {
	switch {
	case s.KeyKind == KeyString && named:
		r.out.WriteString(" " + text.Plain(s.Name))
	case s.KeyKind == KeyString && r.last == StepDict:
		r.attribute(s.Name)
	case s.KeyKind == KeyString && part && !text.IsDigits(s.Name):
		r.attribute(s.Name)
	case s.KeyKind == KeyString && part:
		r.out.WriteString("[" + s.Name + "]")
	case s.KeyKind == KeyString:
		r.out.WriteString("[" + text.Quote(s.Name) + "]")
	case s.KeyText != "":
		r.out.WriteString("[" + text.Plain(s.KeyText) + "]")
	case s.KeyKind == KeyInt:
		r.out.WriteString("[" + strconv.FormatInt(s.Index, 10) + "]")
	case len(s.KeyPath) > 0 && r.depth < maxKeyDepth:
		r.out.WriteString("[" + renderAt(s.KeyPath, r.depth+1) + "]")
	default:
		r.out.WriteString("[<" + text.Plain(s.KeyType) + ">]")
	}
}

// saved writes the tensor of a node: the node that saved it is the last of the chain before.
func (r *renderer) saved(s *Step) {
	by := ""
	if n := len(r.nodes); n > 0 {
		by, r.nodes = " by "+text.Plain(r.nodes[n-1]), r.nodes[:n-1]
	}
	r.flushNodes()
	r.out.WriteString(" saved" + by)
	if s.Name != "" {
		r.out.WriteString(" as " + text.Plain(s.Name))
	}
	if s.Index >= 0 {
		r.out.WriteString("[" + strconv.FormatInt(s.Index, 10) + "]")
	}
}

// flushNodes writes a chain of graph nodes: the first and the last, and how many lie between.
func (r *renderer) flushNodes() {
	n := len(r.nodes) + r.more
	for i, name := range r.nodes {
		switch {
		case i == 0:
			r.out.WriteString("<" + text.Plain(name) + ">")
		case n <= maxShownNodes || i == len(r.nodes)-1:
			r.out.WriteString(" > " + text.Plain(name))
		case i == 1:
			fmt.Fprintf(&r.out, " .. %d nodes ..", n-2)
		}
	}
	r.nodes, r.more = r.nodes[:0], 0
}

// moduleOf splits a path to a parameter or buffer: what leads to the outermost module, and the names of the modules in it.
func moduleOf(p Path) (root, name string, ok bool) {
	at := len(p) - 2 // of the step into the dictionary that holds it
	if at < 1 || !p[at+1].isKey() || !p[at].partOfModule() || p[at].part() == "_modules" {
		return "", "", false
	}
	var names []string
	for {
		if p[at-1].Kind == StepDict {
			at--
		}
		if at < 3 || !p[at-1].isKey() || p[at-2].part() != "_modules" {
			break
		}
		names = append(names, p[at-1].Name)
		at -= 2
	}
	slices.Reverse(names)
	return render(p[:at]), strings.Join(names, "."), true
}

// partOfModule tells the step into a dictionary in which an nn.Module keeps its parts: an attribute, or a key of __dict__.
func (s *Step) partOfModule() bool { return moduleParts[s.part()] }

func (s *Step) part() string {
	if s.Kind == StepAttribute || s.isKey() {
		return s.Name
	}
	return ""
}

func (s *Step) isKey() bool { return s.Kind == StepKey && s.KeyKind == KeyString }
