// SPDX-License-Identifier: Apache-2.0

// Package advice has rules that recognise why memory grows, each with a sentence that says how to end it. A rule applies only if
// its proof was read: the holder of the blocks, the call that allocated them, and their kind. Without proof there is no advice.
package advice

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/allocator"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/internal/varpath"
)

// Evidence is what is known of memory that grows.
type Evidence struct {
	Layer event.Layer
	// Allocator is the framework's allocator. Advice that needs a function of PyTorch is for its own blocks only.
	Allocator allocator.Allocator
	Holder    string         // as holders.Index.Owner; empty: not known
	Facts     Facts          // facts that the holder scan found beside its name
	Signs     Signs          // signs of the stacks that allocated it
	Together  Signs          // signs of all growth beside it that no other variable holds
	Nodes     bool           // autograd nodes save most of it, and no variable is known to lead to them
	Calls     bool           // it is a call of a module, most of whose blocks stay
	Outside   bool           // PyTorch allocates in the same process, and this is not its memory
	Grew      varpath.Growth // the container that has more elements than at an earlier reading; the zero value: not known
	Unfit     bool           // its containers have a bound, and do not fit on the device when they are full
	Longer    bool           // the number of its blocks stays the same: each is replaced by a longer one
	Block     float64
	// TensorKeys means that the dictionary which gets new keys has tensors as keys.
	TensorKeys bool
	// Inference means that no backward pass or optimizer ran while it grew.
	Inference bool
	Phase     phases.Phase // phase of its allocation; empty: not known
	UsualEnd  phases.Phase // phase in which blocks of the same sites are usually freed; empty: not known, or the same
}

// Facts are facts that a holder scan found beside the name of a holder.
type Facts = figures.HolderFacts

// Rule is a pattern that is recognised, with the advice for it.
type Rule struct {
	Name  string
	Needs func(e *Evidence) bool
	Says  func(e *Evidence) string
}

// longer is the name of the only rule for growth by longer blocks; the others explain an increase in their number.
const longer = "longer"

// Of returns the first rule that is proved; nil if none is.
func Of(e *Evidence) *Rule {
	for i := range rules {
		if (rules[i].Name == longer) == e.Longer && rules[i].Needs(e) {
			return &rules[i]
		}
	}
	return nil
}

// Text returns the sentence of the rule that applies; empty if none does.
func Text(e *Evidence) string {
	if r := Of(e); r != nil {
		return r.Says(e)
	}
	return ""
}

const (
	// scalarBytes is the size of the largest single number.
	scalarBytes = 8
	// leastChain is the number of autograd nodes in a row that make a chain, and leastHooks a number of hooks on one
	// object that no program needs.
	leastChain = 64
	leastHooks = 8
	// leastThreads is a number of threads that run one function at once with which a program seldom begins.
	leastThreads = 8
	// leastLinked is the number of objects of one class in a row, each an attribute of the one before, that make a chain.
	leastLinked = 16
)

// rules are the patterns. A specific rule comes before a general one that would also apply.
var rules = []Rule{
	{longer, func(e *Evidence) bool { return e.framework() && Named(e.Holder) && e.Signs.Has(Python) }, sayLonger},
	{"outside", isOutside, constant("PyTorch's allocator knows nothing of this memory: it stays until the program frees it, as with " +
		"cudaFree")},
	{"pinned", isPinned, constant("this line pins new host memory in each step and keeps it: pin one buffer and reuse it")},
	{"autocast", isAutocast, constant("autocast keeps each copy that it casts until its outermost context ends: " +
		"leave the context after each step")},
	{"create_graph", hasGradientGraph, constant("backward(create_graph=True) ties each gradient to its tensor in a cycle: use " +
		"torch.autograd.grad, or set .grad = None")},
	{"ctx", isContext, says("%s stays because its ctx keeps an output of the function, a cycle: hand tensors to "+
		"ctx.save_for_backward()", contextAttribute)},
	{"cycle", isGarbage, sayCycle},
	{"own_hook", func(e *Evidence) bool { return e.torch() && IsOwnHook(e.Holder) }, sayOwnHook},
	{"hooks", isHook, says("a hook is registered on %s again and again: register it once, or call remove() on its handle", hooked)},
	{"timers", isTimer, constant("timers of the event loop (call_later) keep their arguments until they fire: " +
		"cancel() those that nobody needs, or pass no tensor")},
	{"bounded", isBounded, says("%s does not fit on the device when it is full: give it a smaller bound, or keep it on the CPU", variable)},
	{"lru_cache", func(e *Evidence) bool { return e.Facts.Cache }, sayCached},
	{"traceback", keepsTraceback, sayTraceback},
	{"finalize", isFinalizer, constant("weakref.finalize() keeps the object by its callback, a method of it: " +
		"pass a function that does not refer to it")},
	{"tee", func(e *Evidence) bool { return e.framework() && beforeTee(e) != "" },
		says("%s is an iterator of itertools.tee(), which keeps what "+
			"it has not read yet: read from both, or drop it", beforeTee)},
	{"lazy_state", isLazyState, sayLazyState},
	{"optimizers", isOptimizers, says("%s keeps every optimizer, each with state of its own: reuse one, or drop the old ones", variable)},
	{"parameters", isParameters, says("%s gets new parameters again and again: make them once, or remove the old ones", owner)},
	{"metric", func(e *Evidence) bool { return e.Facts.Reset != "" && varies(e.Holder) }, says("%s was not emptied in this time: "+
		"call its reset() after each epoch or, if that is done, let reset() begin new lists",
		func(e *Evidence) string { return short(e.Facts.Reset) })},
	{"linked", isLinked, sayLinked},
	{"gradient", isGradientChain, constant("backward(create_graph=True) gives each .grad a graph that goes on through all steps: " +
		"set .grad = None after each step")},
	{"written", func(e *Evidence) bool { return e.Facts.Written && isChain(e) }, says("%s keeps the graph of every tensor that was "+
		"written into it: write x.detach() in place of x", variable)},
	{"inference", func(e *Evidence) bool { return e.Inference && (isChain(e) || byNodes(e)) }, sayInference},
	{"chain", isChain, sayChain},
	{"state", isState, constant("a graph goes on through all steps before: call .detach() on the state that each step hands to the next")},
	{"nodes", func(e *Evidence) bool { return e.torch() && e.Nodes },
		constant("the graph of each step is kept: call .detach() on what one step hands to the next, or keep .item() of it")},
	{"thread", isThread, constant("the graph of this thread's forward pass is kept: torch.no_grad() does not carry over to other threads, " +
		"enter it on this thread")},
	{"forward", isForward, constant("the graph of this forward pass is kept: use torch.no_grad(), or keep .detach() of its result")},
	{"slice", isSlice, says("%s keeps slices, and each keeps the whole tensor that it is a part of: keep .clone() of the slice", variable)},
	{"scalars", isScalar, sayScalar},
	{"activation", isActivation, constant("a tensor of the forward pass is kept: keep a copy of what is needed of it, .detach().cpu() or " +
		".item()")},
	{"graph", isGraph, says("%s keeps the graph of its step: keep .item() or .detach() of it", keepers)},
	{"threads", isThreads, sayThreads},
	{"weak", func(e *Evidence) bool { return e.framework() && e.Facts.Weak && varies(e.Holder) }, says("%s is a WeakKeyDictionary "+
		"that loses no key: a value that refers to its key keeps it, so refer to the key weakly", weakDictionary)},
	{"suspended", func(e *Evidence) bool { return e.framework() && suspended(e) != "" },
		says("%s keeps suspended calls, with the variables of "+
			"their frames: close() or cancel() those that nobody waits for", suspended)},
	{"tensor_keys", func(e *Evidence) bool { return e.TensorKeys && isCache(e) }, says("%s has tensors as keys, and a tensor equals only "+
		"itself: use a number or a text as the key", variable)},
	{"objects", func(e *Evidence) bool { return e.framework() && keeper(e) != "" }, says("%s keeps its keys or elements, and they hold this "+
		"memory: delete what nobody needs, or refer to them weakly (weakref)", keeper)},
	{"cache", isCache, says("%s gets more keys than it loses: give it a limit, or delete what is no longer needed", variable)},
	{"container", func(e *Evidence) bool {
		return e.framework() && e.Grew.To > e.Grew.From && !e.Facts.Full && (e.Facts.Most == 0 || e.Facts.State) && !holdsGraph(e.Holder)
	}, sayGrew},
}

func constant(text string) func(*Evidence) string { return func(*Evidence) string { return text } }

// says fills a name into a sentence.
func says(format string, name func(*Evidence) string) func(*Evidence) string {
	return func(e *Evidence) string { return fmt.Sprintf(format, name(e)) }
}

// framework reports whether a framework's allocator made the blocks, and torch whether PyTorch's did.
func (e *Evidence) framework() bool { return e.Layer == event.LayerAllocator }
func (e *Evidence) torch() bool     { return e.framework() && e.Allocator == allocator.Torch }

func isPinned(e *Evidence) bool { return e.Layer == event.LayerHost && e.Signs.Has(Python) }

// isAutocast recognises copies made by autocast that stay without a variable that holds them. The weights and gradients
// that they lead to stay with them.
func isAutocast(e *Evidence) bool {
	return e.torch() && !Named(e.Holder) && (e.Signs.Has(CachedCast) || e.Together.Has(CachedCast) && castHolds(e.Holder))
}

// hasGradientGraph recognises a gradient with a graph, which only create_graph=True creates, without a variable that leads to
// it. If the gradient is never cleared, its graph continues through all steps and saves what the backward pass allocates.
func hasGradientGraph(e *Evidence) bool {
	if e.Phase == phases.Backward && (isState(e) || e.torch() && e.Nodes) {
		return true
	}
	return e.torch() && gradientGraph(e.Holder) && (e.Signs.Has(Gradient) || e.Together.Has(Gradient))
}

// isContext recognises the node of a custom function that stays because its ctx leads back to it.
func isContext(e *Evidence) bool {
	return e.torch() && strings.HasPrefix(e.Holder, varpath.SelfKept) && contextAttribute(e) != ""
}

func isGarbage(e *Evidence) bool { return e.framework() && garbage(e.Holder) != "" }

func sayCycle(e *Evidence) string {
	class := garbage(e.Holder)
	if e.Facts.Cycle == "" || utf8.RuneCountInString(e.Facts.Cycle) > longestCycle {
		return fmt.Sprintf("%s is garbage in a cycle of references: call gc.collect(), or break the cycle", class)
	}
	return fmt.Sprintf("%s leads back to its %s: call gc.collect(), or break this cycle", e.Facts.Cycle, class)
}

// longestCycle is the maximum length of a cycle in a sentence, runes.
const longestCycle = 70

func sayOwnHook(e *Evidence) string {
	const repair = "%s, whose graph keeps the hook: use its argument or a .detach() made before, or remove() its handle"
	hook, tensor := hookAndTensor(e.Facts.Cycle)
	if tensor == "" || utf8.RuneCountInString(hook+tensor) > longestHook {
		return fmt.Sprintf("the hook refers to "+repair, "a tensor")
	}
	return fmt.Sprintf("the hook %s refers to "+repair, hook, tensor)
}

// longestHook is the maximum length of the names of a hook and its tensor in a sentence, runes.
const longestHook = 36

// isLinked recognises objects of one class that keep each other in a row.
func isLinked(e *Evidence) bool {
	_, rest, _ := strings.Cut(graphOf(e.Holder), "…")
	return e.framework() && Named(e.Holder) && e.Facts.Links >= leastLinked && e.Facts.Link != "" && beforeLinks(e) != "" && !growsInside(rest)
}

func sayLinked(e *Evidence) string {
	if next, back, ok := strings.Cut(e.Facts.Link, "/"); ok {
		return fmt.Sprintf("%s leads to objects in a row, by .%s and back by .%s: take those out of it that are no longer needed",
			beforeLinks(e), next, back)
	}
	return fmt.Sprintf("%[1]s leads to %[2]d objects in a row by .%[3]s: cut the chain, x.%[3]s = None, where the rest is no longer needed",
		beforeLinks(e), e.Facts.Links, e.Facts.Link)
}

func sayLonger(e *Evidence) string {
	const again = " again and again: keep only the part that is needed"
	if varies(e.Holder) {
		return "tensors of " + variable(e) + " are replaced by longer ones" + again
	}
	return variable(e) + " is replaced by a longer tensor" + again
}

func sayGrew(e *Evidence) string {
	of, what := "elements", "delete what is no longer needed, or keep it on the CPU"
	if e.Facts.Queue && e.Grew.IsQueue() {
		what = "give the queue a maxsize for which there is room, or keep its elements on the CPU"
	}
	if strings.HasSuffix(e.Grew.Container, ".param_groups") || strings.HasSuffix(e.Grew.Container, "_hooks") {
		what = "delete what is no longer needed" // these are used where they are
	}
	if e.Grew.Keys {
		of = "keys"
	}
	name := short(e.Grew.Container)
	if e.Grew.From == 0 {
		return fmt.Sprintf("%s has %d %s and gets more: %s", name, e.Grew.To, of, what)
	}
	return fmt.Sprintf("%s grew from %d to %d %s: %s", name, e.Grew.From, e.Grew.To, of, what)
}

// sayCached advises on a functools cache, which keeps the results of calls and their arguments.
func sayCached(e *Evidence) string {
	name, arguments := cached(e), ""
	if strings.Contains(e.Holder, ".cache{") {
		arguments = ", with their arguments"
	}
	if e.Facts.Most > 0 {
		return fmt.Sprintf("the cache of %s() keeps up to %d calls%s: give functools.lru_cache a smaller maxsize", name, e.Facts.Most, arguments)
	}
	return fmt.Sprintf("the cache of %s() keeps every call so far%s: give functools.lru_cache a smaller maxsize", name, arguments)
}

// isFinalizer: a callback that weakref.finalize keeps until its object is freed is a method of an object.
func isFinalizer(e *Evidence) bool {
	return strings.Contains(e.Holder, "weakref.finalize._registry") && strings.Contains(e.Holder, ".func.__self__")
}

// isTimer recognises arguments of asyncio's timers: TimerHandle._args, in the list _scheduled of the loop (Lib/asyncio/base_events.py).
func isTimer(e *Evidence) bool {
	loop, timer, ok := strings.Cut(e.Holder, "._scheduled[")
	_, argument, args := strings.Cut(timer, "._args")
	return e.framework() && ok && args && strings.Contains(loop, "loop") && !growsInside(argument)
}

// mostInside is a number of elements that objects usually have inside, such as the layers of a cache.
const mostInside = 8

// growsInside reports whether a container in a part of a name has more than mostInside elements, so that it may be the one that grows.
func growsInside(part string) bool {
	return slices.ContainsFunc(position.FindAllString(part, -1), func(p string) bool { return varpath.Count(p) > mostInside })
}

// suspended returns the container of generators or coroutines whose frames lead to the blocks; empty: none.
func suspended(e *Evidence) string {
	kept, rest, ok := strings.Cut(e.Holder, waiting)
	set, _, isSet := strings.Cut(kept, "{") // of asyncio's tasks
	if !ok || !Named(e.Holder) || !isSet && !varies(kept) || holdsGraph(e.Holder) || growsInside(rest) {
		return ""
	}
	return variableOf(set)
}

// keeper returns the dictionary or set that keeps the objects which lead to the blocks as its keys or elements; empty: none.
func keeper(e *Evidence) string {
	kept, rest, ok := strings.Cut(e.Holder, "{")
	if !ok || !Named(e.Holder) || varies(kept) || holdsGraph(e.Holder) {
		return ""
	}
	if growsInside(rest) || strings.HasPrefix(rest, "Tensor}") || strings.HasSuffix(kept, ".cache") { // arguments of functools.lru_cache
		return ""
	}
	return variableOf(kept)
}

// beforeTee returns the iterator of itertools.tee() that leads to the blocks; empty: none does.
func beforeTee(e *Evidence) string {
	name, _, ok := strings.Cut(e.Holder, varpath.Tee)
	if !ok {
		return ""
	}
	return short(name)
}

// weakDictionary returns the WeakKeyDictionary whose dictionary leads to the blocks: its attribute data (Lib/weakref.py).
func weakDictionary(e *Evidence) string { return strings.TrimSuffix(variable(e), ".data") }

func isBounded(e *Evidence) bool {
	return e.framework() && e.Unfit && !e.Facts.Cache && !holdsGraph(e.Holder)
}

func isHook(e *Evidence) bool { return e.torch() && hooked(e) != "" }

// keepsTraceback recognises exceptions in a container, which keep the frames in which they were raised.
// sayTraceback also covers tracebacks without their exception, as in the exc_info of a log record.
func sayTraceback(e *Evidence) string {
	if traceback, _ := varpath.Raised(e.Holder); !strings.HasSuffix(traceback, varpath.Traceback) {
		return raised(e) + " keeps tracebacks (exc_info), and they keep the variables of their frames: keep traceback.format_exc()"
	}
	return raised(e) + " keeps exceptions, and their tracebacks keep the variables of their frames: keep str(error), or " +
		"error.with_traceback(None)"
}

func keepsTraceback(e *Evidence) bool { return e.framework() && raised(e) != "" }

// isLazyState recognises the state of an optimizer that does not have it for all of its parameters.
func isLazyState(e *Evidence) bool {
	before, _, ok := strings.Cut(e.Holder, statePart)
	return e.torch() && ok && !varies(before) && e.Signs.Has(Optimizer) && e.Facts.State && !e.Facts.Moved &&
		e.Facts.Length < e.Facts.Most
}

func sayLazyState(e *Evidence) string {
	return fmt.Sprintf("%s makes the state of a parameter in its first step with a gradient: %d of its %d parameters had one",
		owner(e), e.Facts.Length, e.Facts.Most)
}

// isOptimizers recognises growing state of several optimizers.
func isOptimizers(e *Evidence) bool {
	before, ok := beforeState(e.Holder)
	return e.torch() && ok && varies(before) && e.Signs.Has(Optimizer)
}

// isParameters recognises growing state of one optimizer, or growing parameters.
func isParameters(e *Evidence) bool {
	before, state := beforeState(e.Holder)
	switch {
	case !e.torch() || !varies(e.Holder):
		return false
	case state:
		return !varies(before) && e.Signs.Has(Optimizer)
	}
	return e.Facts.Category == string(phases.Parameters)
}

// isChain recognises one variable that leads to an increasing number of blocks, so its graph gets longer.
func isChain(e *Evidence) bool {
	return e.torch() && Named(e.Holder) && holdsGraph(e.Holder) && !varies(graphOf(e.Holder))
}

// isGradientChain recognises graphs of gradients that are never cleared: each backward pass adds to them.
func isGradientChain(e *Evidence) bool {
	return e.torch() && Named(e.Holder) && holdsGraph(e.Holder) && strings.HasSuffix(graphOf(e.Holder), ".grad")
}

// byNodes recognises a graph that no variable is known to lead to.
func byNodes(e *Evidence) bool {
	return e.torch() && (e.Nodes || strings.HasPrefix(e.Holder, nativeRoot) && strings.Contains(e.Holder, "Backward"))
}

func sayInference(e *Evidence) string {
	how := "run this under torch.no_grad()"
	if e.Signs.Has(Worker) {
		how = "enter torch.no_grad() on this thread"
	}
	if !isChain(e) {
		return "the graph of each forward pass is kept, but no backward pass was seen: " + how
	}
	return fmt.Sprintf("%s carries the graph of all steps before, but no backward pass was seen: %s, or .detach() it", variable(e), how)
}

// isThreads recognises a variable of a function that many threads run at once.
func isThreads(e *Evidence) bool {
	return e.framework() && e.Facts.Threads >= leastThreads && Named(e.Holder) && !varies(e.Holder) && varpath.Parse(e.Holder).Where != ""
}

func sayThreads(e *Evidence) string {
	_, function, _ := strings.Cut(varpath.Parse(e.Holder).Where, " ")
	return fmt.Sprintf("%d threads are in %s, each with its own %s: let them end, as by a timeout", e.Facts.Threads, function, variable(e))
}

func sayChain(e *Evidence) string {
	name := variable(e)
	if at := position.FindAllStringIndex(name, -1); len(at) > 0 && at[len(at)-1][1] == len(name) { // an element, of a tuple mostly
		return fmt.Sprintf("%s carries the graph of all steps before: call .detach() on each tensor of %s after each step",
			name, name[:at[len(at)-1][0]])
	}
	if utf8.RuneCountInString(name) > longestTwice {
		return fmt.Sprintf("%s carries the graph of all steps before: add up .item() or .detach() of what each step gives it", name)
	}
	return fmt.Sprintf("%[1]s carries the graph of all steps before: call %[1]s = %[1]s.detach() after each step, or add up .item()", name)
}

// longestTwice is the maximum length of a name that a sentence contains twice, runes.
const longestTwice = 16

// isState recognises the same for a variable that referred to another tensor by the time of the scan.
func isState(e *Evidence) bool {
	return e.torch() && strings.HasPrefix(e.Holder, nativeRoot) && e.Facts.Chain >= leastChain
}

func isThread(e *Evidence) bool {
	return e.torch() && e.Signs.Has(Worker) && holdsGraph(e.Holder) && e.UsualEnd != phases.Backward
}

// isForward recognises a call of a module most of whose blocks stay.
func isForward(e *Evidence) bool {
	return e.Allocator == allocator.Torch && e.Calls && (!Named(e.Holder) || holdsGraph(e.Holder) || e.Nodes)
}

func sayScalar(e *Evidence) string {
	if e.Allocator != allocator.Torch {
		return "each block is one number: keep float() of it in place of the array"
	}
	return "each block is one number: keep .item() of it in place of the tensor"
}

func isScalar(e *Evidence) bool { return e.Block > 0 && e.Block <= scalarBytes }

func isActivation(e *Evidence) bool {
	return e.torch() && e.UsualEnd == phases.Backward && e.Phase == phases.Forward
}

func isGraph(e *Evidence) bool { return e.torch() && Named(e.Holder) && holdsGraph(e.Holder) }

// isSlice recognises tensors that are a small part of the memory that they keep.
func isSlice(e *Evidence) bool { return e.torch() && e.Facts.Slice && varies(e.Holder) }

// isOutside recognises memory of the device that the program itself has allocated.
func isOutside(e *Evidence) bool {
	return e.Layer == event.LayerDevice && e.Outside && e.Signs.Has(Python)
}

func isCache(e *Evidence) bool { return e.framework() && keysVary(e.Holder) }
