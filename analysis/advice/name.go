// SPDX-License-Identifier: Apache-2.0

package advice

import (
	"cmp"
	"regexp"
	"strings"

	"github.com/gputrace/gputrace/internal/varpath"
)

// The parts of a holder's name (holders.Path, and the folding of analysis/holders).
const (
	nativeRoot  = "C++ "
	garbageRoot = "garbage "
	hookRoot    = "hook "
	graphPart   = ".grad_fn"
	statePart   = ".state["
	groupsPart  = ".param_groups["
	contextPart = " ctx."
	waiting     = " suspended "
)

// frames matches the prefix of a name that is a variable of a function, a closure or a default.
var frames = regexp.MustCompile(`^.*(?: local | closure | default )`)

// position matches a key or an index in brackets.
var position = regexp.MustCompile(`\[(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^\[\]'"])*\]`)

// varying matches several keys, or several positions.
var varying = regexp.MustCompile(`^\[(\*|.*\.\..*|\d+ keys.*|\d+ of .*|-?\d+(, -?\d+)+|'.*', '.*|'.*\*')\]$`)

// SuspendedCalls returns the part of a name that ends with suspended calls, whose variables lead to the blocks; empty: none do.
func SuspendedCalls(holder string) string {
	calls, _, ok := strings.Cut(holder, waiting)
	if !ok {
		return ""
	}
	return calls
}

// Named reports whether a name is a variable of the program, which Python code can reach.
func Named(holder string) bool {
	if holder == "" || strings.HasPrefix(holder, nativeRoot) || IsGarbage(holder) || IsOwnHook(holder) {
		return false
	}
	return holder[0] != '[' && holder[0] != '<'
}

// varies reports whether a name covers several elements of one container.
func varies(holder string) bool {
	for _, p := range position.FindAllString(holder, -1) {
		if varying.MatchString(p) {
			return true
		}
	}
	return strings.HasSuffix(holder, ".*") || strings.Contains(holder, ".*.")
}

// keysVary reports whether the keys of one dictionary, too many to list, are the only varying part of a name.
func keysVary(holder string) bool {
	keys := 0
	for _, p := range position.FindAllString(holder, -1) {
		switch {
		case !varying.MatchString(p):
		case strings.Contains(p, " keys") || strings.Contains(p, "'..'") || strings.HasSuffix(p, "*']"):
			keys++
		default:
			return false
		}
	}
	return keys == 1 && Named(holder) && !holdsGraph(holder)
}

// variable returns the variable whose elements a name covers, without its frame: "made" for "train() local made[0..9].state[*]".
func variable(e *Evidence) string { return variableOf(e.Holder) }

// short returns a name without its frame, closure or default. Of the variables of frames that wait, it returns where these frames are kept.
func short(name string) string {
	if kept, _, ok := strings.Cut(name, waiting); ok && varies(kept) {
		name = kept
	}
	return strings.TrimSpace(frames.ReplaceAllString(name, ""))
}

func variableOf(holder string) string {
	name := short(graphOf(holder))
	name = name[strings.LastIndexByte(name, ')')+1:]
	for _, at := range position.FindAllStringIndex(name, -1) {
		if varying.MatchString(name[at[0]:at[1]]) {
			return strings.TrimSpace(name[:at[0]])
		}
	}
	name, _, _ = strings.Cut(name, ".*")
	return strings.TrimSpace(name)
}

// graphOf returns the part of a name before the graph of a tensor.
func graphOf(holder string) string {
	holder, _, _ = strings.Cut(holder, graphPart)
	return holder
}

func holdsGraph(holder string) bool { return varpath.HoldsGraph(holder) }

// keepers returns what keeps a graph: "total", or "each tensor in losses".
func keepers(e *Evidence) string {
	if kept := graphOf(e.Holder); varies(kept) {
		return "each tensor in " + variableOf(kept)
	}
	return variableOf(e.Holder)
}

// IsGarbage reports whether a name is that of garbage in a reference cycle.
func IsGarbage(holder string) bool { return garbage(holder) != "" }

// IsOwnHook reports whether a name begins with a hook that keeps its own graph.
func IsOwnHook(holder string) bool { return strings.HasPrefix(holder, hookRoot) }

// ownHook matches the hook of such a name, with the file and line of its code.
var ownHook = regexp.MustCompile(`^hook (?:(\S*:\d+) )?([^ .\[]+)`)

// hookAndTensor returns where a hook is, or its class, and the tensor to which it refers, from its way to the tensor.
func hookAndTensor(cycle string) (hook, tensor string) {
	at := ownHook.FindStringSubmatch(cycle)
	if at == nil {
		return "", ""
	}
	rest := short(graphOf(cycle[len(at[0]):]))
	if i := strings.LastIndex(rest, "__self__."); i >= 0 { // of a method
		rest = "self." + rest[i+len("__self__."):]
	}
	return cmp.Or(at[1], at[2]), strings.TrimPrefix(rest, ".")
}

// beforeLinks returns what leads to the first of the objects that a name leaves out; empty: it leaves out none.
func beforeLinks(e *Evidence) string {
	before, _, ok := strings.Cut(graphOf(e.Holder), "…")
	switch {
	case !ok:
		return ""
	case strings.Contains(e.Facts.Link, "/"): // the first link is left out, too
		return short(before)
	}
	p := varpath.Parse(before)
	n := len(p.Elements)
	for n > 1 && p.Elements[n-1][0] == '[' {
		n--
	}
	return short(varpath.Path{Elements: p.Elements[:max(n-1, 1)]}.String())
}

// raised returns the container of exceptions or tracebacks that lead to the blocks; empty: none.
func raised(e *Evidence) string {
	traceback, ok := varpath.Raised(e.Holder)
	if !ok || !Named(e.Holder) || !varies(traceback) {
		return ""
	}
	return variableOf(traceback)
}

// garbage returns the class of a garbage object; empty: not garbage.
func garbage(holder string) string {
	name, ok := strings.CutPrefix(holder, garbageRoot)
	if !ok {
		return ""
	}
	if i := strings.IndexAny(name, ".[ "); i > 0 {
		name = name[:i]
	}
	return name
}

// beforeState returns the part of a name before the state or the groups of an optimizer; ok: the name has such a part.
func beforeState(holder string) (before string, ok bool) {
	before, _, ok = strings.Cut(holder, statePart)
	if !ok {
		before, _, ok = strings.Cut(holder, groupsPart)
	}
	return before, ok
}

// owner returns what gets new parameters: the optimizer, or the container of modules.
func owner(e *Evidence) string {
	if before, ok := beforeState(e.Holder); ok {
		return variableOf(before)
	}
	if grows := keyed(e.Holder); grows != "" {
		return grows
	}
	return variable(e)
}

// keyed returns the innermost dictionary whose keys vary in a name: "base[0..5].lora_A" for
// "base[0..5].lora_A['task0'..'task9'].weight"; empty: none.
func keyed(holder string) string {
	name := short(graphOf(holder))
	at := position.FindAllStringIndex(name, -1)
	for i := len(at) - 1; i >= 0; i-- {
		if p := name[at[i][0]:at[i][1]]; varying.MatchString(p) && strings.Contains(p, "'") {
			return strings.TrimSpace(name[:at[i][0]])
		}
	}
	return ""
}

// contextAttribute returns the attribute "ctx.y" at the end of a name, on the node of a custom function that nothing else holds.
func contextAttribute(e *Evidence) string {
	_, name, ok := strings.Cut(e.Holder, contextPart)
	if !ok {
		return ""
	}
	if i := strings.IndexAny(name, ".[ "); i >= 0 {
		name = name[:i]
	}
	return "ctx." + name
}

// gradientGraphs are the first nodes of a gradient for which the backward pass created a graph: the copy of the
// gradient, or a derivative of a derivative.
var gradientGraphs = []string{"CopyBackwards", "CloneBackward0", "BackwardBackward0"}

// gradientGraph reports whether a name is a graph of a gradient that no variable leads to.
func gradientGraph(holder string) bool {
	if !strings.HasPrefix(holder, nativeRoot) {
		return false
	}
	for _, g := range gradientGraphs {
		if strings.Contains(holder, g) {
			return true
		}
	}
	return false
}

// castNode is the node of a copy to another dtype.
const castNode = "ToCopyBackward0"

// castHolds reports whether the cache of autocast can lead to a name.
func castHolds(holder string) bool {
	return !Named(holder) && (holder == "" || strings.Contains(holder, castNode) || strings.Contains(holder, "autocast"))
}

// hooks matches the dictionary of hooks of a module, tensor or optimizer, with the numbers of its handles.
var hooks = regexp.MustCompile(`\._(?:forward|backward|full_backward|forward_pre|backward_pre|state_dict|load_state_dict_pre|load_state_dict_post|` +
	`optimizer_step_pre|optimizer_step_post)_?(?:pre_)?hooks(\[[^\]]*\])` +
	"|" + tensorHook + `(\[[^\]]*\])`)

// tensorHook is the step to a hook of a tensor, as package inspect/holders writes it.
const tensorHook = " hook"

// hooked returns the object with a growing number of hooks; empty: none. Hooks that are registered once on many modules
// also have different numbers, but there the modules differ.
func hooked(e *Evidence) string {
	at := hooks.FindStringSubmatchIndex(e.Holder)
	if at == nil {
		return ""
	}
	before, number := e.Holder[:at[0]], e.Holder[max(at[2], at[4]):max(at[3], at[5])]
	again := e.Facts.Hooks >= leastHooks || strings.HasSuffix(e.Grew.Container, tensorHook)
	if !varying.MatchString(number) || !again && (varies(before) || strings.Contains(before, "..")) {
		return ""
	}
	return short(before)
}

// cached returns the function of a functools.lru_cache.
func cached(e *Evidence) string {
	name := short(e.Holder)
	for _, part := range []string{".cache[", ".cache{"} { // a result, or something in the arguments
		name, _, _ = strings.Cut(name, part)
	}
	return strings.TrimSuffix(name, ".cache")
}
