// SPDX-License-Identifier: Apache-2.0

package varpath

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

func TestParse(t *testing.T) {
	for name, want := range map[string][]string{
		"kept[0..7]": {"", "kept", "[0..7]"},
		"train.py:88 main() local self.kept['a.b[0]']":    {"train.py:88 main()", "self", ".kept", "['a.b[0]']"},
		`d["it's"][model.w['x']].grad`:                    {"", "d", `["it's"]`, "[model.w['x']]", ".grad"},
		`d['it\'s ]'].x`:                                  {"", "d", `['it\'s ]']`, ".x"},
		"net.head_1..head_240.weight":                     {"", "net", ".head_1..head_240", ".weight"},
		"m.layers[0..3]…lora_A[2 keys].*":                 {"", "m", ".layers", "[0..3]", "…", ".lora_A", "[2 keys]", ".*"},
		"a.py:1 f() local x[0].grad_fn<Add> > Mul[0].y":   {"a.py:1 f()", "x", "[0]", ".grad_fn<Add> > Mul[0].y"},
		"losses[0..9].grad_fn …":                          {"", "losses", "[0..9]", ".grad_fn …"},
		"mod.f closure x[0]":                              {"", "mod", ".f", " closure", " x", "[0]"},
		"suspended b.py:2 g() local h":                    {"suspended b.py:2 g()", "h"},
		"a.py:1 f() local g suspended b.py:2 g() local h": {"a.py:1 f()", "g", " suspended b.py:2 g() local", " h"},
		"a.py:1 f() local e[0].__traceback__.tb_next.tb_frame b.py:2 g() local h.x": {
			"a.py:1 f()", "e", "[0]", ".__traceback__", ".tb_next", ".tb_frame b.py:2 g() local", " h", ".x",
		},
		"d['x local y'].z": {"", "d", "['x local y']", ".z"},
		"open[":            {"", "open", "["},
		"":                 {""},
	} {
		p := Parse(name)
		require.Equal(t, want, append([]string{p.Where}, p.Elements...), name)
		require.Equal(t, name, p.String())
	}
}

func TestKey(t *testing.T) {
	for _, same := range [][]string{
		{"a.py:1 f() local g[0..3] suspended b.py:2 g() local h", "a.py:9 f() local g[4 keys] suspended b.py:7 g() local h"},
		{"diag.attn[0..6]['block2'][0..49]", "diag.attn[7]['a', 'b'][9]", "diag.attn[0..9][6 keys][5 items in 0..9]"},
		{"a.py:8 main() local self.kept[0]", "a.py:99 main() local self.kept[0..3]"},
		{"net.head_7.weight", "net.head_1..head_240.weight", "net.head_*.weight"},
		{"losses[0].grad_fn<Mean> > Pow", "losses[0..9].grad_fn …"},
	} {
		for _, name := range same[1:] {
			require.Equal(t, Key(same[0]), Key(name))
		}
	}
	require.NotEqual(t, Key("net.*"), Key("net.x"))
	require.Equal(t, "train.py:41", Key("train.py:41"), "a line")
	require.NotEqual(t, Key("a.py:8 main() local x"), Key("a.py:8 other() local x"))
	require.Equal(t, "a.py main() local self.kept", Root("a.py:8 main() local self.kept['x'].y[3]"))
	require.Equal(t, "kept", Root("kept"))
}

func TestCommon(t *testing.T) {
	part := func(name string, bytes uint64) Part { return Part{name, bytes} }
	for _, c := range []struct {
		want  string
		parts []Part
	}{
		{"", nil},
		{"", []Part{part("a", 50), part("b", 50)}},
		{"a", []Part{part("a", 80), part("b", 20)}},
		{"kept[0..9].acts", []Part{part("kept[0..9].acts", 80), part("kept[0..9].loss", 20)}},
		{"kept[0..9]", []Part{part("kept[0..9].acts", 60), part("kept[0..9].loss", 40)}},
		{"kept[0..19]", []Part{part("kept[0..9].acts", 60), part("kept[10..19].loss", 40)}},
		{"diag.attn[0..7][*][0..49]", []Part{part("diag.attn[0..6][6 keys][0..49]", 60), part("diag.attn[0..7]['block1'][0..9]", 40),
			part("x", 9)}},
		{"d['a', 'b']", []Part{part("d['a']", 1), part("d['b']", 1)}},
		{"model…cache[0..9]", []Part{part("model.enc.cache[0..9]", 50), part("model.dec.cache[0..9]", 50)}},
		{"model", []Part{part("model.enc.x", 50), part("model.dec.y", 50)}},
		{"net.h[0..5]…lora_*['a', 'b']", []Part{part("net.h[0..5]…lora_A['a', 'b']", 50), part("net.h[0..5]…lora_B['a', 'b']", 50)}},
		{"a.py:9 main() local h[0..9]", []Part{part("a.py:9 main() local h[0..9]", 5), part("a.py:8 main() local h[0..3]", 4)}},
		{"e[0..9].__traceback__", []Part{part("e[0..9].__traceback__.tb_frame b.py:2 g() local x", 5),
			part("e[0..9].__traceback__.tb_frame b.py:2 g() local y", 5)}},
		{"e[0..9].__traceback__.tb_frame b.py:2 g() local x", []Part{part("e[0..9].__traceback__.tb_frame b.py:2 g() local x", 9),
			part("e[0].__traceback__.tb_frame b.py:3 g() local y", 1)}},
		{"losses[0..9].grad_fn …", []Part{part("losses[0..9].grad_fn …", 5), part("losses[0].grad_fn<Mul>", 4)}},
	} {
		got := Common(c.parts, 0.75)
		require.Equal(t, c.want, got, "%v", c.parts)
		for _, p := range c.parts {
			if strings.HasPrefix(p.Name, got+"[") || strings.HasPrefix(p.Name, got+".") {
				require.True(t, Within(p.Name, got), "%q in %q", p.Name, got)
			}
		}
	}
	for _, name := range []string{"model.enc.cache[0..9]", "model.cache[3].grad"} {
		require.True(t, Within(name, "model…cache[0..9]"), name)
	}
	require.False(t, Within("model.enc.state[0]", "model…cache[0..9]"))
	require.True(t, Within("net.blocks[3].q.lora_A['a']", "net.blocks[0..5]…lora_*[9 keys]"))
	require.False(t, Within("net.blocks[3].q.bias_A['a']", "net.blocks[0..5]…lora_*[9 keys]"))
	require.True(t, Within("net.body.weight", "net.*"))
	require.False(t, Within("net", "net.*"))
	require.False(t, Within("", "net"))
	require.False(t, Within("net", ""))
}

// TestFit: the variable and the last attribute stay as long as there is room for both.
func TestFit(t *testing.T) {
	name := "train.py:108 main() local trainer.callbacks[0..3].history['val', 'train'].preds[0..4999]"
	for _, want := range []string{
		name,
		"main() local trainer.callbacks[0..3].history['val', 'train'].preds[0..4999]",
		"trainer.callbacks[0..3].history['val', 'train'].preds[0..4999]",
		"trainer.callbacks[0..3].history['val', 'train'].preds[…]",
		"trainer.callbacks[0..3].history…preds[0..4999]",
		"trainer…['val', 'train'].preds[0..4999]",
		"trainer…preds[0..4999]",
		"trainer…preds[…]",
		"trainer…preds",
	} {
		require.Equal(t, want, Fit(name, utf8.RuneCountInString(want)))
	}
	for width := range 100 {
		got := Fit(name, width)
		require.LessOrEqual(t, utf8.RuneCountInString(got), width)
		if width >= len("trainer.preds")+2 {
			require.Contains(t, got, "trainer")
			require.Contains(t, got, "preds")
		}
	}
	quality := "main() local tasks['cola', 'mrpc', 'sst2'].quality[0..206]"
	require.Equal(t, "tasks[3 keys].quality[0..206]", Fit(quality, 31))
	adapters := "a.py:51 main() local base[0..5].lora_A['task0'..'task25'].weight"
	require.Equal(t, "base[0..5].lora_A['task*'].weight", Fit(adapters, 34))
	require.Equal(t, "base…lora_A['task*'].weight", Fit(adapters, 31))
	for width := range 80 {
		require.NotContains(t, Fit("a.py:3 main() local model.blocks[0..5]…lora_*['run0000'..'run0087']", width), "……")
		require.NotContains(t, Fit("a.py:3 main() local model.blocks[0..5]…experts[0..7]…lora_*['run00'..'run87'].weight", width), "……")
	}
	const logged = "w.scalars['train/loss'][326 items in 0..326][1].grad_fn"
	require.Equal(t, "w.scalars['train/loss']…[1].grad_fn", Fit(logged, 40))
	require.Equal(t, "w.scalars['train/loss']…grad_fn", Fit(logged, 32))
	require.Equal(t, "w.scalars…grad_fn", Fit(logged, 28))
	require.Equal(t, "trainer.callbacks…buffers…items…value", Fit("trainer.callbacks[0..3].buffers[7].items[0..9].value", 40))
	require.Equal(t, "metrics…sum_squared_error…", Fit("a.py:40 main() local metrics['psnr'].sum_squared_error.grad_fn …", 31))
	require.Equal(t, "metrics['psnr'].sum_squared_error…", Fit("a.py:40 main() local metrics['psnr'].sum_squared_error.grad_fn …", 34))
	require.Equal(t, "server.sessions[180 keys].cache[…]", Fit("a.py:18 main() local server.sessions[180 keys].cache[0..3]", 36))
	require.Equal(t, "server.sessions…cache[0..3]", Fit("a.py:18 main() local server.sessions[180 keys].cache[0..3]", 33))
	for name, want := range map[string]string{
		"a.py:1 f() local failures[0..61].__traceback__.tb_next.tb_frame b.py:2 fit() local x": "a.py:1 f() local failures[0..61].__traceback__",
		"log.records[0..9].exc_info[2].tb_frame b.py:2 fit() local delta[6 keys]":              "log.records[0..9].exc_info[2]",
		"kept[0..9]": "",
	} {
		got, ok := Raised(name)
		require.Equal(t, want, got)
		require.Equal(t, want != "", ok)
	}
	require.Equal(t, "log.records[0..9].exc_info[2]…delta", Fit("log.records[0..9].exc_info[2].tb_frame b.py:2 fit() local delta", 40))
	kept := "a.py:1 main() local failures[0..61].__traceback__.tb_next.tb_frame b.py:2 fit() local output"
	require.Equal(t, "failures[0..61].__traceback__…output", Fit(kept, 36))
	require.Equal(t, "failures…__traceback__…output", Fit(kept, 32))
	stream := "a.py:81 main() local gateway.resumable[164 items in 1..327] suspended a.py:42 Sampler.stream() local kv"
	require.Equal(t, "gateway.resumable[164 items in 1..327].kv", Fit(stream, 60))
	require.Equal(t, "gateway.resumable…kv", Fit(stream, 32))
	served := "runners.py:190 run() local main suspended a.py:9 main() local server.tasks{Task}._coro suspended a.py:6 f() local cache[0..1]"
	require.Equal(t, "server.tasks{Task}._coro.cache[0..1]", Fit(served, 40))
	require.Equal(t, "server…cache[0..1]", Fit(served, 20))
	require.Equal(t, "main() local outs[0..9]", Fit("runners.py:190 run() local main suspended a.py:9 main() local outs[0..9]", 26))
	require.Equal(t, "opt.state[…]", Fit("opt.state[148 keys]['exp_avg', 'exp_avg_sq']", 12))
}

// TestSelfKept: the node of a custom function that keeps itself is a graph, and is named.
func TestSelfKept(t *testing.T) {
	const name = "C++ self-kept ScaleBackward ctx.kept[0, 2]"
	require.True(t, IsGraph(name))
	require.Equal(t, "ScaleBackward ctx.kept[0, 2]", Readable(name))
	require.Equal(t, "ScaleBackward ctx.kept[0, 2]", Fit(name, 40))
	require.Equal(t, Graph, Readable("C++ ScaleBackward ctx.kept[0, 2]"))
	require.NotContains(t, Fit("C++ self-kept CopyReduceBackward ctx.backward_cache[1..2]", 32), "……")
}

// TestOwnHook: where the code of a hook is goes first; its name and the variable stay.
func TestOwnHook(t *testing.T) {
	const name = "hook train.py:18 <lambda> closure y.grad_fn …"
	require.Equal(t, []string{"hook train.py:18 <lambda>", " closure", " y", ".grad_fn …"}, Parse(name).Elements)
	require.Equal(t, name, Parse(name).String())
	require.Equal(t, name, Fit(name, 60))
	require.Equal(t, "hook <lambda> closure y.grad_fn …", Fit(name, 34))
	require.Equal(t, "hook <lambda> closure y…", Fit(name, 25))
	require.Equal(t, "hook Gate.grad.__self__.out", Fit("hook train.py:18 Gate.grad.__self__.out", 30))
	require.Equal(t, []string{"hook Clip", ".kept"}, Parse("hook Clip.kept").Elements)
	require.Equal(t, []string{"hooks", ".y"}, Parse("hooks.y").Elements)
}

// TestLinked: a name that leaves out objects in a row covers them.
func TestLinked(t *testing.T) {
	const name = "a.py:9 main() local planner.root.parent…state"
	require.Equal(t, []string{"planner", ".root", ".parent", "…", ".state"}, Parse(name).Elements)
	require.Equal(t, name, Parse(name).String())
	require.True(t, Within("a.py:9 main() local planner.root.parent.parent.parent.state", name))
	require.False(t, Within("a.py:9 main() local planner.root.children[0].state", name))
	require.Equal(t, "planner.root.parent…state", Fit(name, 25))
}

// TestLoose: positions are of one reading, names and keys of all.
func TestLoose(t *testing.T) {
	for name, want := range map[string]string{
		"a.py:8 f() local states[4, 11]['primal'][6 keys]": "a.py:8 f() local states[*]['primal'][6 keys]",
		"log.kept[0..24].grad_fn":                          "log.kept[*].grad_fn",
		"opt.state[41 keys]['exp_avg', 'exp_avg_sq']":      "opt.state[41 keys]['exp_avg', 'exp_avg_sq']",
		"jobs[131 items in 0..520].x":                      "jobs[*].x",
		"x":                                                "x",
		"":                                                 "",
	} {
		require.Equal(t, want, Loose(name))
	}
}

func TestIsLocal(t *testing.T) {
	for name, want := range map[string]bool{
		"train.py:9 Trainer.epoch() local x": true, "train.py:9 epoch() local x.grad_fn": false, "train.py:9 main() local kept[0..9]": false,
		"train.py:9 <module>() local x": false, "x": false, "": false, "a.py:9 f() local main suspended a.py:8 g() local y": false,
	} {
		require.Equal(t, want, IsLocal(name), name)
	}
}
