// SPDX-License-Identifier: Apache-2.0

package advice

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/phases"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/event/allocator"
	"github.com/gputrace/gputrace/internal/eventtest"
	"github.com/gputrace/gputrace/internal/varpath"
)

// proofs has the evidence of each rule, and what nearly is it: each near miss lacks one thing that the rule needs.
var proofs = map[string]struct {
	is   Evidence
	says string
	not  map[string]Evidence
}{
	"longer": {
		is:   Evidence{Holder: "store['memory'].keys[0..3]", Signs: Python, Longer: true},
		says: "tensors of store['memory'].keys are replaced by longer ones again and again",
		not: map[string]Evidence{
			"more blocks":     {Holder: "store['memory'].keys[0..3]", Signs: Python},
			"no variable":     {Holder: "C++ AddBackward0 …", Signs: Python, Longer: true},
			"of another kind": {Layer: event.LayerDevice, Holder: "x", Signs: Python, Longer: true},
		},
	},
	"pinned": {
		is:   Evidence{Layer: event.LayerHost, Signs: Python},
		says: "pin one buffer",
		not:  map[string]Evidence{"of a C++ program": {Layer: event.LayerHost}, "on the device": {Layer: event.LayerDevice, Signs: Python}},
	},
	"autocast": {
		is:   Evidence{Signs: Python | CachedCast},
		says: "leave the context after each step",
		not: map[string]Evidence{
			"a variable holds the copy":   {Holder: "copies[0..9]", Signs: Python | CachedCast},
			"beside it, another graph":    {Holder: "C++ AddBackward0 …", Together: CachedCast},
			"a copy that nothing follows": {Holder: "C++ ToCopyBackward0 …", Signs: Python},
		},
	},
	"create_graph": {
		is:   Evidence{Holder: "C++ CopyBackwards …", Signs: Python, Together: Gradient},
		says: "torch.autograd.grad",
		not: map[string]Evidence{
			"no gradient grows":   {Holder: "C++ CopyBackwards …", Signs: Python},
			"a variable holds it": {Holder: "grads[0..9]", Signs: Gradient},
			"a gradient alone":    {Signs: Gradient},
			"of the forward pass": {Holder: "C++ AddBackward0 …", Facts: Facts{Chain: 200}, Phase: phases.Forward},
		},
	},
	"ctx": {
		is:   Evidence{Holder: "C++ self-kept KeepsOutputBackward ctx.y"},
		says: "ctx.y stays because its ctx keeps an output of the function, a cycle",
		not: map[string]Evidence{
			"a saved tensor":      {Holder: "C++ KeepsOutputBackward …"},
			"a variable leads to": {Holder: "losses[0].ctx.y"},
			"C++ keeps the graph": {Holder: "C++ KeepsInputBackward ctx.x"},
		},
	},
	"cycle": {
		is:   Evidence{Holder: "garbage Experiment.optimizer.state[3 keys]['exp_avg']", Signs: Optimizer},
		says: "Experiment is garbage in a cycle of references: call gc.collect()",
		not:  map[string]Evidence{"a variable": {Holder: "garbage_cans.data"}},
	},
	"hooks": {
		is:   Evidence{Holder: "job.net[0]._forward_hooks[0..410] default scale"},
		says: "a hook is registered on job.net[0] again and again",
		not: map[string]Evidence{
			"one hook":               {Holder: "net._forward_hooks[7] closure kept[0..99]"},
			"one hook of each layer": {Holder: "net[0..5]._forward_hooks[0..5] closure x"},
			"one of each weight":     {Holder: "net.fc1..fc3.weight hook[0..2] default m"},
		},
	},
	"own_hook": {
		is:   Evidence{Holder: "hook p02.py:18 <lambda> closure y.grad_fn …", Facts: Facts{Cycle: "hook p02.py:18 <lambda> closure y"}},
		says: "the hook p02.py:18 refers to y, whose graph keeps the hook: use its argument or a .detach()",
		not: map[string]Evidence{
			"a hook of a variable": {Holder: "y hook[0] closure x"},
			"a variable":           {Holder: "hook.y", Facts: Facts{Cycle: "hook p02.py:18 <lambda> closure y"}},
		},
	},
	"linked": {
		is:   Evidence{Holder: "main() local planner.root.parent…state", Facts: Facts{Links: 107, Link: "parent"}},
		says: "planner.root leads to 107 objects in a row by .parent: cut the chain, x.parent = None, where",
		not: map[string]Evidence{
			"their caches":       {Holder: "head.next…cache[0..513]", Facts: Facts{Links: 22, Link: "next"}},
			"a few":              {Holder: "planner.root.parent…state", Facts: Facts{Links: 15, Link: "parent"}},
			"by elements":        {Holder: "planner.root.children[0..3]…state", Facts: Facts{Links: 107}},
			"nothing is between": {Holder: "planner.root.parent.state", Facts: Facts{Links: 107, Link: "parent"}},
		},
	},
	"bounded": {
		is:   Evidence{Holder: "replay.items[0..317].state", Facts: Facts{Length: 356, Most: 1 << 20}, Unfit: true},
		says: "replay.items does not fit on the device when it is full",
		not: map[string]Evidence{
			"no bound":                  {Holder: "replay.items[0..317].state"},
			"full":                      {Holder: "replay.items[0..317].state", Facts: Facts{Length: 356, Most: 356}},
			"not known whether it fits": {Holder: "replay.items[0..317].state", Facts: Facts{Length: 356, Most: 1 << 20}},
		},
	},
	"timers": {
		is:   Evidence{Holder: "asyncio.events._event_loop_policy._local._loop._scheduled[221 items in 1..246]._args[1]"},
		says: "timers of the event loop (call_later)",
		not: map[string]Evidence{
			"another list": {Holder: "loop.waiting[0..9]._args[1]"},
			"a schedule":   {Holder: "trainer._scheduled[0..9].batch"},
			"of no loop":   {Holder: "sched._scheduled[0..99]._args[0]"},
			"a history":    {Holder: "main() local loop._scheduled[0..7]._args[0].history[0..405]"},
		},
	},
	"suspended": {
		is:   Evidence{Holder: "a.py:83 main() local endpoint.running[83 keys 'req-*'] suspended a.py:45 Endpoint._tokens() local kv"},
		says: "endpoint.running keeps suspended calls",
		not: map[string]Evidence{
			"states of calls":  {Holder: "main() local decoders[0..7] suspended a.py:4 decode() local states[0..405]"},
			"one call":         {Holder: "a.py:190 run() local main suspended a.py:90 main() local outs"},
			"garbage":          {Holder: "garbage Job.calls[0..9] suspended a.py:45 f() local kv"},
			"a graph in there": {Holder: "running[0..9] suspended a.py:45 f() local loss.grad_fn …"},
		},
	},
	"tensor_keys": {
		is:   Evidence{Holder: "self.bank.proto[436 keys]", TensorKeys: true},
		says: "self.bank.proto has tensors as keys",
		not: map[string]Evidence{
			"other keys": {Holder: "self.bank.proto[436 keys]"},
			"no keys":    {Holder: "self.bank.proto[0..9]", TensorKeys: true},
		},
	},
	"objects": {
		is:   Evidence{Holder: "SubGraph.norm.values{SubGraph}.x"},
		says: "SubGraph.norm.values keeps its keys or elements",
		not: map[string]Evidence{
			"a value":                          {Holder: "SubGraph.norm.values[9 keys].x"},
			"tensors":                          {Holder: "bank.proto{Tensor}"},
			"garbage":                          {Holder: "garbage Job.values{SubGraph}.x"},
			"arguments of functools.lru_cache": {Holder: "step closure mask.cache{_HashedSeq}[0]"},
		},
	},
	"lru_cache": {
		is:   Evidence{Holder: "step closure mask.cache[281 keys]", Facts: Facts{Cache: true}},
		says: "the cache of mask() keeps every call so far: give",
		not:  map[string]Evidence{"an attribute": {Holder: "model.cache[0..9]"}},
	},
	"traceback": {
		is:   Evidence{Holder: "a.py:9 main() local failures[0..61].__traceback__.tb_next.tb_frame a.py:2 fit() local output"},
		says: "failures keeps exceptions, and their tracebacks keep the variables of their frames: keep str(error), or",
		not:  map[string]Evidence{"one exception": {Holder: "error.__traceback__.tb_frame a.py:2 fit() local outputs[0..9]"}},
	},
	"lazy_state": {
		is: Evidence{Holder: "main() local opt.state[109 keys]['exp_avg']", Signs: Python | Optimizer,
			Facts: Facts{Length: 109, Most: 165, State: true}},
		says: "opt makes the state of a parameter in its first step with a gradient: 109 of its 165 parameters had one",
		not: map[string]Evidence{
			"all have one": {Holder: "opt.state[9 keys]['exp_avg']", Signs: Python | Optimizer, Facts: Facts{Length: 9, Most: 9, State: true}},
			"more come": {Holder: "opt.state[9 keys]['exp_avg']", Signs: Python | Optimizer,
				Facts: Facts{Length: 9, Most: 19, State: true, Moved: true}},
			"several": {Holder: "made[0..9].state[4 keys]['exp_avg']", Signs: Python | Optimizer, Facts: Facts{Length: 3, Most: 9}},
		},
	},
	"optimizers": {
		is:   Evidence{Holder: "train() local made[0..9].state[4 keys]['exp_avg', 'exp_avg_sq']", Signs: Python | Optimizer},
		says: "made keeps every optimizer",
		not:  map[string]Evidence{"no optimizer of PyTorch's": {Holder: "made[0..9].state['x']", Signs: Python}},
	},
	"parameters": {
		is:   Evidence{Holder: "main() local opt.state[240 keys]['exp_avg']", Signs: Python | Optimizer},
		says: "opt gets new parameters again and again",
		not: map[string]Evidence{
			"one parameter": {Holder: "opt.state[w]['exp_avg']", Signs: Python | Optimizer},
			"plain tensors": {Holder: "net.heads[0..9]", Facts: Facts{Category: string(phases.Activations)}},
		},
	},
	"metric": {
		is:   Evidence{Holder: "main() local task.quality.preds[0..229]", Facts: Facts{Reset: "main() local task.quality"}},
		says: "task.quality was not emptied in this time: call its reset() after each epoch or, if that is done, let reset() begin new lists",
		not: map[string]Evidence{
			"no reset":    {Holder: "task.quality.preds[0..229]"},
			"one element": {Holder: "task.quality.total", Facts: Facts{Reset: "task.quality"}},
		},
	},
	"weak": {
		is:   Evidence{Holder: "t.encodings.data[390 keys].vectors", Facts: Facts{Weak: true}},
		says: "t.encodings is a WeakKeyDictionary that loses no key",
		not: map[string]Evidence{
			"another dictionary": {Holder: "t.encodings.data[390 keys].vectors"},
			"one key":            {Holder: "t.encodings.data['a'].vectors", Facts: Facts{Weak: true}},
		},
	},
	"tee": {
		is:   Evidence{Holder: "main() local pipeline.calibration.<_tee+16>"},
		says: "pipeline.calibration is an iterator of itertools.tee(), which keeps what it has not read yet",
		not: map[string]Evidence{
			"another object of C": {Holder: "pipeline.calibration.<_grouper+16>"},
			"a list":              {Holder: "pipeline.calibration[0..9]"},
		},
	},
	"finalize": {
		is:   Evidence{Holder: "weakref.finalize._registry[105 keys].func.__self__.kv[0..1]"},
		says: "pass a function that does not refer to it",
		not: map[string]Evidence{
			"an argument":      {Holder: "weakref.finalize._registry[105 keys].args[0]"},
			"another registry": {Holder: "bus._registry[105 keys].func.__self__.kv"},
		},
	},
	"gradient": {
		is:   Evidence{Holder: "main() local scale.grad.grad_fn …"},
		says: "set .grad = None after each step",
		not: map[string]Evidence{
			"no graph":       {Holder: "scale.grad"},
			"another ending": {Holder: "upgrade.grad_fn …"},
		},
	},
	"inference": {
		is:   Evidence{Holder: "step closure h.grad_fn …", Inference: true},
		says: "no backward pass was seen: run this under torch.no_grad()",
		not: map[string]Evidence{
			"a backward pass": {Holder: "step closure h.grad_fn …"},
			"a list":          {Holder: "losses[0..9].grad_fn …", Inference: true},
		},
	},
	"threads": {
		is:   Evidence{Holder: "a.py:63 Uploader._publish() local clip", Facts: Facts{Threads: 43}},
		says: "43 threads are in Uploader._publish(), each with its own clip: let them end",
		not: map[string]Evidence{
			"a few":      {Holder: "a.py:63 Uploader._publish() local clip", Facts: Facts{Threads: 7}},
			"their list": {Holder: "a.py:63 Uploader._publish() local clips[0..9]", Facts: Facts{Threads: 43}},
			"a global":   {Holder: "clip", Facts: Facts{Threads: 43}},
		},
	},
	"written": {
		is:   Evidence{Holder: "main() local exp.lstm_h.grad_fn …", Facts: Facts{Written: true, Chain: 99}},
		says: "exp.lstm_h keeps the graph of every tensor that was written into it: write x.detach() in place of x",
		not:  map[string]Evidence{"another graph": {Holder: "h.grad_fn …"}, "no graph": {Holder: "h", Facts: Facts{Written: true}}},
	},
	"chain": {
		is:   Evidence{Holder: "step closure h.grad_fn …"},
		says: "call h = h.detach() after each step",
		not: map[string]Evidence{
			"no graph": {Holder: "h", Facts: Facts{Chain: 523}},
			"a list":   {Holder: "losses[0..9].grad_fn …", Facts: Facts{Chain: 523}},
		},
	},
	"state": {
		is:   Evidence{Holder: "C++ ThnnFusedGruCellBackward0 …", Facts: Facts{Chain: 523}},
		says: "call .detach() on the state",
		not:  map[string]Evidence{"a graph of one step": {Holder: "C++ ThnnFusedGruCellBackward0 …", Facts: Facts{Chain: 7}}},
	},
	"nodes": {
		is:   Evidence{Nodes: true},
		says: "call .detach() on what one step hands to the next",
		not:  map[string]Evidence{"on the host": {Layer: event.LayerHost, Nodes: true}},
	},
	"thread": {
		is:   Evidence{Holder: "scores[0..178].grad_fn …", Signs: Python | Worker},
		says: "enter it on this thread",
		not:  map[string]Evidence{"no graph": {Holder: "scores[0..178]", Signs: Python | Worker}},
	},
	"forward": {
		is:   Evidence{Calls: true, Block: 1 << 20},
		says: "use torch.no_grad()",
		not:  map[string]Evidence{"single outputs": {Block: 1 << 20}},
	},
	"outside": {
		is:   Evidence{Layer: event.LayerDevice, Outside: true, Signs: Python},
		says: "PyTorch's allocator knows nothing of this memory",
		not: map[string]Evidence{
			"without PyTorch":     {Layer: event.LayerDevice, Signs: Python},
			"of a native library": {Layer: event.LayerDevice, Outside: true},
			"PyTorch's":           {Outside: true, Signs: Python},
		},
	},
	"slice": {
		is:   Evidence{Holder: "main() local logs['z'][0..99]", Facts: Facts{Slice: true}},
		says: "logs['z'] keeps slices",
		not: map[string]Evidence{
			"all of each": {Holder: "logs['z'][0..99]"},
			"one tensor":  {Holder: "logs['z']", Facts: Facts{Slice: true}},
		},
	},
	"scalars": {
		is:   Evidence{Holder: "losses[0..222]", Block: 4},
		says: "keep .item()",
		not:  map[string]Evidence{"three numbers": {Holder: "losses[0..222]", Block: 12}, "not known": {Holder: "losses[0..222]"}},
	},
	"activation": {
		is:   Evidence{Holder: "kept[0..9]", Phase: phases.Forward, UsualEnd: phases.Backward},
		says: ".detach().cpu()",
		not:  map[string]Evidence{"of the backward pass": {Holder: "kept[0..9]", Phase: phases.Backward, UsualEnd: phases.Backward}},
	},
	"graph": {
		is:   Evidence{Holder: "main() local losses[0..99].grad_fn …"},
		says: "each tensor in losses keeps the graph of its step",
		not:  map[string]Evidence{"an attribute of that name": {Holder: "losses[0..99].grad"}},
	},
	"container": {
		is: Evidence{Holder: "main() local sessions[216 keys].cache[0..4]", Grew: varpath.Growth{Container: "sessions", From: 144, To: 216,
			Keys: true}},
		says: "sessions grew from 144 to 216 keys: delete what is no longer needed",
		not: map[string]Evidence{
			"not known": {Holder: "main() local sessions[216 keys].cache[0..4]"},
			"graphs":    {Holder: "losses[0..9].grad_fn …", Grew: varpath.Growth{Container: "losses", From: 4, To: 10}},
			"full":      {Holder: "kept[0..9]", Grew: varpath.Growth{Container: "kept", From: 4, To: 10}, Facts: Facts{Full: true}},
			"a bound":   {Holder: "q.queue[0..9]", Grew: varpath.Growth{Container: "q.queue", To: 10}, Facts: Facts{Length: 10, Most: 12}},
		},
	},
	"cache": {
		is:   Evidence{Holder: "step closure table['seq0'..'seq229']"},
		says: "table gets more keys than it loses",
		not: map[string]Evidence{
			"a list":         {Holder: "kept[0..229]"},
			"two fixed keys": {Holder: "kept['loss', 'score']"},
			"lists by key":   {Holder: "kept['a'..'f'][0..99]"},
		},
	},
}

// TestRules: each rule has a pattern of its own that gets its sentence, and near misses that do not.
func TestRules(t *testing.T) {
	for i := range rules {
		name := rules[i].Name
		p, ok := proofs[name]
		require.True(t, ok, name)
		require.NotEmpty(t, p.not, name)
		p.is.Layer = orTorch(p.is.Layer)
		r := Of(&p.is)
		require.NotNil(t, r, name)
		require.Equal(t, name, r.Name)
		text := Text(&p.is)
		require.Contains(t, text, p.says, name)
		require.LessOrEqual(t, utf8.RuneCountInString(text), 140, "two lines of a screen: %s", text)
		for what, e := range p.not {
			e.Layer = orTorch(e.Layer)
			if r := Of(&e); r != nil {
				require.NotEqual(t, name, r.Name, what)
			}
		}
	}
	require.Len(t, proofs, len(rules))
}

func orTorch(l event.Layer) event.Layer {
	if l == 0 {
		return event.LayerAllocator
	}
	return l
}

// TestGraphOfInference: nodes of autograd that no variable leads to get the advice for inference if no backward pass was seen.
func TestGraphOfInference(t *testing.T) {
	const says = "the graph of each forward pass is kept, but no backward pass was seen: run this under torch.no_grad()"
	e := Evidence{Layer: event.LayerAllocator, Holder: "C++ ReluOpsBackward ", Inference: true}
	require.Equal(t, says, Text(&e))
	e.Inference = false
	require.NotEqual(t, says, Text(&e))
	require.Equal(t, says, Text(&Evidence{Layer: event.LayerAllocator, Nodes: true, Inference: true}))
	require.NotEqual(t, says, Text(&Evidence{Layer: event.LayerAllocator, Holder: "C++ std::vector ", Inference: true}))
}

// TestNothing: memory of which only the line and the list are known gets no advice.
func TestNothing(t *testing.T) {
	for _, e := range []Evidence{
		{}, {Layer: event.LayerAllocator}, {Layer: event.LayerAllocator, Holder: "kept[0..99]", Signs: Python, Block: 1 << 20},
		{Layer: event.LayerAllocator, Holder: "[holder not known]"}, {Layer: event.LayerAllocator, Holder: "<held by C++ only>", Signs: Python},
		{Layer: event.LayerDevice, Holder: "", Signs: Python},
	} {
		require.Empty(t, Text(&e), "%+v", e)
	}
}

// TestOtherFrameworks: blocks of another framework's allocator get no advice that needs PyTorch's functions.
func TestOtherFrameworks(t *testing.T) {
	for name, p := range proofs {
		e := p.is
		e.Layer, e.Allocator = orTorch(e.Layer), allocator.BFC
		if e.Layer == event.LayerAllocator {
			require.NotRegexp(t, `torch|\.detach|\.item\(|\.clone|grad|hook|autocast|parameter|optimizer`, Text(&e), name)
		}
	}
	require.Contains(t, Text(&Evidence{Layer: event.LayerAllocator, Allocator: allocator.CuPy, Holder: "losses[0..9]", Block: 4}),
		"keep float() of it")
	require.Contains(t, Text(&Evidence{Layer: event.LayerAllocator, Allocator: allocator.CuPy, Holder: "cache['a'..'z']"}), "give it a limit")
}

// TestSentences: names are filled in as a reader would call the variable.
func TestSentences(t *testing.T) {
	const gradients = "backward(create_graph=True) gives each .grad a graph that goes on through all steps: " +
		"set .grad = None after each step"
	for holder, want := range map[string]string{
		"total.grad_fn …": "total carries the graph of all steps before: call total = total.detach() after each step, or add up .item()",
		"train.py:36 train() local history[0..10]['val'].grad_fn …": "each tensor in history keeps the graph of its step: keep .item() or " +
			".detach() of it",
		"self.callback.log[3 keys]['a b'].grad_fn …": "each tensor in self.callback.log keeps the graph of its step: keep .item() or " +
			".detach() of it",

		"scale.grad.grad_fn …":             gradients,
		"net.weights[0..9].grad.grad_fn …": gradients,
	} {
		require.Equal(t, want, Text(&Evidence{Layer: event.LayerAllocator, Holder: holder}))
	}
	cycle := Evidence{Layer: event.LayerAllocator, Holder: "garbage Experiment.data", Facts: Facts{Cycle: "Experiment.again closure self"}}
	require.Equal(t, "Experiment.again closure self leads back to its Experiment: call gc.collect(), or break this cycle", Text(&cycle))
	cycle.Facts.Cycle = strings.Repeat("Experiment.again.", 9)
	require.Equal(t, "Experiment is garbage in a cycle of references: call gc.collect(), or break the cycle", Text(&cycle))
}

// TestTensorHooks: hooks of several tensors are registered again and again if there are more than at an earlier reading.
func TestTensorHooks(t *testing.T) {
	e := &Evidence{Layer: event.LayerAllocator, Holder: "a.py:9 main() local net.fc1..fc3.weight hook[0..110] default m"}
	require.NotEqual(t, "hooks", Of(e).name())
	e.Grew = varpath.Growth{Container: "net.fc1..fc3.weight hook", From: 66, To: 111}
	require.Equal(t, "a hook is registered on net.fc1..fc3.weight again and again: register it once, or call remove() on its handle", Text(e))
	e.Holder, e.Grew = "w hook[0..40] closure mask", varpath.Growth{}
	require.Equal(t, "hooks", Of(e).name())
	e.Holder = "w hook[3] closure masks[0..40]"
	require.NotEqual(t, "hooks", Of(e).name())
}

// TestOwnHook: the tensor to which a hook refers is said as the program has it.
func TestOwnHook(t *testing.T) {
	const rest = ", whose graph keeps the hook: use its argument or a .detach() made before, or remove() its handle"
	for cycle, want := range map[string]string{
		"hook a.py:9 <lambda> closure y":              "the hook a.py:9 refers to y" + rest,
		"hook a.py:9 scale default y":                 "the hook a.py:9 refers to y" + rest,
		"hook In[4]:2 <lambda> closure cache['y'][0]": "the hook In[4]:2 refers to cache['y'][0]" + rest,
		"hook a.py:9 Clip.apply.__self__.out":         "the hook a.py:9 refers to self.out" + rest,
		"hook Clip.out":                               "the hook Clip refers to out" + rest,
		"hook a.py:9 <lambda> closure y.grad_fn<Add>": "the hook a.py:9 refers to y" + rest,
		"": "the hook refers to a tensor" + rest,
		"hook a.py:9 " + strings.Repeat("long", 9) + " closure " + strings.Repeat("y", 40): "the hook refers to a tensor" + rest,
	} {
		e := Evidence{Layer: event.LayerAllocator, Holder: "hook a.py:9 f closure x", Facts: Facts{Cycle: cycle}}
		require.Equal(t, want, Text(&e), cycle)
	}
	require.False(t, Named("hook a.py:9 <lambda> closure y"))
	require.True(t, Named("hooks.y"))
}

// TestBeforeLinks: the first object of a chain is what the first link is an attribute of.
func TestBeforeLinks(t *testing.T) {
	for holder, want := range map[string]string{
		"a.py:9 main() local planner.root.parent…state": "planner.root",
		"step closure head.next…x.grad_fn …":            "head",
		"forest.trees[0..9].kids[0..3]…state":           "forest.trees[0..9]",
		"planner.root.state":                            "",
		"losses[0..9].grad_fn …":                        "",
	} {
		require.Equal(t, want, beforeLinks(&Evidence{Holder: holder}), holder)
	}
	e := Evidence{Layer: event.LayerAllocator, Holder: "f() local app.lru…data", Facts: Facts{Links: 99, Link: "next/prev"}}
	require.Equal(t, "app.lru leads to objects in a row, by .next and back by .prev: take those out of it that are no longer needed", Text(&e))
}

// name is empty for no rule.
func (r *Rule) name() string {
	if r == nil {
		return ""
	}
	return r.Name
}

func TestSigns(t *testing.T) {
	for text, want := range map[string]Signs{
		"a.so!at::empty": 0,
		"a.so!at::autocast::cached_cast /t.py:3:f":                                                                      Python | CachedCast,
		"a.so!torch::autograd::AccumulateGrad::apply a.so!torch::autograd::Engine::call":                                Gradient | Backward,
		"a.so!at::empty /t.py:3:work /usr/lib/python3.11/threading.py:900:Thread._bootstrap_inner":                      Python | Worker,
		"a.so!at::empty /v/site-packages/torch/optim/adam.py:3:Adam._init_group /t.py:3:main":                           Python | Optimizer,
		"a.so!at::empty /v/site-packages/torch/serialization.py:3:load /t.py:3:main":                                    Python | Load,
		"a.so!at::empty /v/site-packages/torch/nn/parallel/scatter_gather.py:3:gather.<locals>.gather_map /t.py:3:main": Python | Gather,
		"a.so!at::empty /mine/threading.py.bak/t.py:3:Thread._bootstrap":                                                Python,
	} {
		require.Equal(t, want, SignsOf(eventtest.Stack(text).Frames), text)
	}
}

// TestGradientNeverCleared: a graph that goes on through all steps and is allocated by the backward pass is one of gradients.
func TestGradientNeverCleared(t *testing.T) {
	e := Evidence{Layer: event.LayerAllocator, Holder: "C++ AddBackward0 …", Signs: Python, Facts: Facts{Chain: 200}, Phase: phases.Backward}
	require.Contains(t, Text(&e), "create_graph=True")
	e.Holder, e.Nodes = "", true
	require.Contains(t, Text(&e), "create_graph=True", "the holder was not read")
	e.Phase = phases.Forward
	require.Contains(t, Text(&e), "on what one step hands to the next")
	e.Holder, e.Nodes = "C++ AddBackward0 …", false
	require.Contains(t, Text(&e), "the state that each step hands to the next")
}

// TestContainers: what is said of a container that gets elements, by what it is.
func TestContainers(t *testing.T) {
	for want, g := range map[string]varpath.Growth{
		"a.kept has 391 elements and gets more: delete what is no longer needed, or":    {Container: "f() local a.kept", To: 391},
		"q.queue has 78 elements and gets more: give the queue a maxsize":               {Container: "q.queue", To: 78},
		"runner.queue._queue grew from 138 to 310 elements: give the queue a maxsize":   {Container: "runner.queue._queue", From: 138, To: 310},
		"opt.param_groups grew from 35 to 49 elements: delete what is no longer needed": {Container: "opt.param_groups", From: 35, To: 49},
		"g.waiting grew from 9 to 19 keys: delete what is no longer needed, or":         {Container: "g.waiting", From: 9, To: 19, Keys: true},
	} {
		got := Text(&Evidence{Layer: event.LayerAllocator, Holder: "a.kept", Grew: g, Facts: Facts{Queue: true}})
		require.True(t, strings.HasPrefix(got, want), got)
	}
}

// TestQueueByName: a list or deque of that name has no maxsize.
func TestQueueByName(t *testing.T) {
	g := varpath.Growth{Container: "engine.queue", To: 78}
	require.NotContains(t, Text(&Evidence{Layer: event.LayerAllocator, Holder: "a.kept", Grew: g}), "maxsize")
}

// TestChainOfElement: an element of a tuple cannot be assigned.
func TestChainOfElement(t *testing.T) {
	require.Equal(t, "self.state[0] carries the graph of all steps before: call .detach() on each tensor of self.state after each step",
		sayChain(&Evidence{Holder: "main() local self.state[0].grad_fn …"}))
}

// TestCached: a functools cache keeps calls up to its bound, and a path through its keys leads through their arguments.
func TestCached(t *testing.T) {
	const smaller = ": give functools.lru_cache a smaller maxsize"
	for want, e := range map[string]Evidence{
		"the cache of Net.anchors() keeps every call so far, with their arguments": {Holder: "Net.anchors.cache{tuple}[0].layers[0..1].*"},
		"the cache of Net.anchors() keeps up to 32 calls":                          {Holder: "Net.anchors.cache[9 keys]", Facts: Facts{Most: 32}},
		"the cache of mask() keeps every call so far":                              {Holder: "main() local mask.cache"},
	} {
		require.Equal(t, want+smaller, sayCached(&e))
	}
}

// TestTasks: the calls that asyncio's tasks suspend are in a set.
func TestTasks(t *testing.T) {
	const holder = "a.py:9 main() local server.running{Task}._coro suspended a.py:67 generate() local keys"
	text := Text(&Evidence{Layer: event.LayerAllocator, Holder: holder})
	require.Contains(t, text, "server.running keeps suspended calls, with the variables of their frames: close() or cancel()")
	require.Equal(t, "a.py:9 main() local server.running{Task}._coro", SuspendedCalls(holder))
	require.Empty(t, SuspendedCalls("a.py:9 main() local kept[0..9]"))
}
