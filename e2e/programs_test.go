// SPDX-License-Identifier: Apache-2.0

//go:build linux && amd64

package e2e

import (
	"bufio"
	"encoding/json"
	"maps"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// A growth is the truth of a program of testdata/threads that grows, as the head of the program has it.
type growth struct {
	step   float64   // requested bytes that one step of the program keeps, on the average; PyTorch's counters confirm it
	units  []float64 // how many of the program's steps a step of gputrace may be; 1 if there are none
	line   string    // a part of the line that is named
	screen []string  // what the first screen names besides: holder, advice
}

var growths = map[string]growth{
	"adapters_in_turn":      {98304, nil, "self.lora_", []string{"base", "lora_"}},
	"agent_replay":          {65536, []float64{1, 4, 6, 8, 18}, "observation = ", []string{"agent.episodes"}},
	"attribution_models":    {157286.4, nil, "module.", []string{"models", "input", "output"}},
	"averaged_loss":         {296960, nil, "", []string{"loss_average", ".detach()"}},
	"chat_sessions":         {2097152, nil, "self.cache = ", []string{"server.sessions"}},
	"class_history":         {65536, nil, "summary = ", []string{"Recorded.history"}},
	"federated_rounds":      {223257.6, []float64{1, 4, 5, 20}, "update = ", []string{"history"}},
	"gan_snapshots":         {656179.2, nil, "copy.deepcopy(self.generator)", []string{"snapshots"}},
	"gradcam_instances":     {2097152, nil, "", []string{"activations", "gradients"}},
	"gradient_history":      {262144, nil, "energy = ", []string{"create_graph=True"}},
	"instruct_session":      {65536, []float64{1, 4}, "torch.cat(", []string{"session", "past_key_values"}},
	"kept_exceptions":       {78643.2, []float64{1.25}, "", []string{"failures"}},
	"neighbour_table":       {81920, nil, "", []string{"sampler", "features"}},
	"parameter_search":      {217093.333, nil, "", []string{"trials"}},
	"pending_tasks":         {131072, nil, "response = ", []string{"response"}},
	"pose_validation":       {101760, nil, "vertices = ", []string{"evaluator.val"}},
	"preference_metrics":    {532736, nil, "logps = ", []string{"_stored_metrics['train']['nll_loss']", ".detach()"}},
	"prompt_pipeline":       {307200, nil, "image = ", []string{"seen"}},
	"psnr_with_graph":       {786432, nil, "difference = prediction - target", []string{"sum_squared_error"}},
	"resized_vocabulary":    {10485.76, nil, "", []string{"words"}},
	"retrieval_cache":       {294912, []float64{1. / 3, 1}, "return encoder(", []string{"embed", "maxsize"}},
	"rollout_buffer":        {65536, nil, "hidden = ", []string{"buffer.fields['hidden']"}},
	"sampler_gallery":       {2621440, []float64{.1, 1}, "latents = latents - ", []string{"gallery"}},
	"scheduled_trials":      {2519040, nil, "", []string{"gc.collect()"}},
	"session_server":        {524288, nil, "hidden = ", []string{"state.sessions"}},
	"stateful_reader":       {1581056, nil, "self.hidden = ", []string{"reader.hidden", ".detach()"}},
	"stored_outputs":        {262148, nil, "output = self.layer(", []string{"loop.outputs"}},
	"stored_prompt_cache":   {524288, []float64{1. / 16, 1}, "[layer] = ", []string{"store"}},
	"tenant_adapters":       {39321.6, nil, "", []string{"tenants"}},
	"tracker_stats":         {2097152, nil, "", []string{"stats['train']['iou']"}},
	"transcription_threads": {1179648, []float64{1. / 6, 1}, "self.states.append(", []string{"states"}},
	"translator_attention":  {184320, []float64{1, 4}, "weights = torch.softmax(", []string{"decoder.attention"}},
}

// An ending is the truth of a program of testdata/threads that runs out of memory.
type ending struct {
	environment []string
	screen      []string
}

var failures = map[string]ending{
	"batch_size_finder":     {[]string{"STANDIN_GPU_MEM=1300MiB"}, []string{"batch_size_finder.py:", "optimizer"}},
	"crowded_image":         {[]string{"STANDIN_GPU_MEM=2GiB"}, []string{"in a step that needs", "crowded_image.py:", "1.2 GiB"}},
	"distilled_share":       {[]string{"STANDIN_GPU_MEM=4GiB"}, []string{"the program's own limit", "distilled_share.py:"}},
	"doubled_loading":       {[]string{"STANDIN_GPU_MEM=1GiB"}, []string{"doubled_loading.py:", "192.0 MiB", `map_location="cpu"`}},
	"evaluation_meter":      {[]string{"STANDIN_GPU_MEM=1GiB"}, []string{"evaluation_meter.py:", "meter.predictions"}},
	"face_candidates":       {[]string{"STANDIN_GPU_MEM=1500MiB"}, []string{"in a step that needs", "face_candidates.py:", "2.4 GiB"}},
	"forward_store":         {[]string{"STANDIN_GPU_MEM=760MiB"}, []string{"in a step that needs", "forward_store.py:"}},
	"gathered_logits":       {[]string{"STANDIN_GPU_MEM=2GiB", "STANDIN_GPUS=2"}, []string{"gathered_logits.py:", "cuda:1"}},
	"resumed_training":      {[]string{"STANDIN_GPU_MEM=994MiB"}, []string{"resumed_training.py:", "72.0 MiB", `map_location="cpu"`}},
	"slide_results":         {[]string{"STANDIN_GPU_MEM=800MiB"}, []string{"a leak", "slide_results.py:", "images = "}},
	"validation_with_graph": {[]string{"STANDIN_GPU_MEM=1000MiB"}, []string{"in a step that needs", "validation_with_graph.py:", "evaluation"}},
}

// steadies are programs that are steady, and what the first screen owes them.
var steadies = map[string][]string{
	"stream_per_epoch":    {"CACHED"},
	"ema_checkpoints":     {"gc.collect()"},
	"hook_closure_models": {"gc.collect()"},
	"handler_batches":     {"CACHED", "631.2 MiB of 644.0 MiB"},
	"bucketed_lengths":    nil,
	"snapshot_ensemble":   nil,
}

// TestPrograms plays programs that were written after the tool, and holds the whole first screen at 80 columns against the truth: while they run,
// and of the recording. GPUTRACE_PROGRAMS=all plays all of testdata/threads with their repaired twins, a name only that one.
func TestPrograms(t *testing.T) {
	selected := []string{"chat_sessions", "session_server", "distilled_share", "hook_closure_models"}
	twins := []string{"chat_sessions"}
	if v := os.Getenv("GPUTRACE_PROGRAMS"); v == "all" {
		selected = slices.Concat(slices.Collect(maps.Keys(growths)), slices.Collect(maps.Keys(failures)), slices.Collect(maps.Keys(steadies)))
		twins = slices.Clone(selected)
	} else if v != "" {
		selected = strings.Split(v, ",")
		twins = selected
	}
	slices.Sort(selected)
	for _, name := range selected {
		t.Run(name, func(t *testing.T) { playProgram(t, name) })
	}
	for _, name := range twins {
		t.Run(name+" fixed", func(t *testing.T) {
			p := player{name: name, environment: failures[name].environment}
			screen, _ := p.attach(t, "--fixed")
			require.Contains(t, screen, "STEADY")
			require.NotContains(t, screen, "GROWING")
		})
	}
}

func playProgram(t *testing.T, name string) {
	p := player{name: name, environment: failures[name].environment}
	var screen string
	want := steadies[name]
	if g, ok := growths[name]; ok {
		of := ""
		if name == "gradient_history" { // the backward pass allocates it
			of = "[backward of] "
		}
		want = append([]string{"GROWING " + of + name + ".py:"}, g.screen...)
		screen = p.grows(t, &g)
	} else if f, ok := failures[name]; ok {
		want, screen = append([]string{"OUT OF MEMORY"}, f.screen...), p.fails(t)
	} else {
		screen, _ = p.attach(t)
		require.Contains(t, screen, "STEADY")
	}
	for _, text := range want {
		require.Contains(t, screen, text)
	}
}

// A player plays one of testdata/threads.
type player struct {
	name        string
	environment []string
	meter       string // PyTorch's counters after each step
}

func (p *player) file() string { return filepath.Join(env.testdata, "threads", p.name+".py") }

// attach returns the first screen of six seconds of the running program, with single spaces, and its lines.
func (p *player) attach(t *testing.T, args ...string) (screen string, lines []string) {
	t.Helper()
	dir := t.TempDir()
	p.meter = filepath.Join(dir, "meter")
	target := startIn(t, dir, append(p.environment, "METER="+p.meter, "SECONDS=600"), filepath.Join(env.testdata, "run"), append([]string{p.file()}, args...)...)
	begin := 10
	if p.name == "snapshot_ensemble" { // it fills for 150 steps
		begin = 160
	}
	eventually(t, "enough steps", func() bool { return len(p.counters(t)) >= begin })
	return p.record(t, "-p", itoa(target.pid), "-d", "6s", "-o", "OUT")
}

// record runs gputrace with 80 columns, and requires that report says the same of the recording.
func (p *player) record(t *testing.T, args ...string) (screen string, lines []string) {
	t.Helper()
	c := newCommand(t, append([]string{"record"}, args...)...)
	c.cmd.Args = slices.DeleteFunc(c.cmd.Args, func(a string) bool { return a == "-v" })
	c.cmd.Env = append(c.cmd.Env, "COLUMNS=80")
	c.start(t)
	c.code(t)
	_, live, ok := strings.Cut(c.stderr.String()+c.stdout.String(), "gputrace  "+p.name+".py")
	require.True(t, ok, c.stderr.String()+c.stdout.String())
	cmd := exec.Command(env.binary, "report", filepath.Join(c.out(), traceFile))
	cmd.Env = append(os.Environ(), "COLUMNS=80")
	again, err := cmd.Output()
	require.NoError(t, err)
	_, stored, _ := strings.Cut(string(again), "gputrace  "+p.name+".py")
	require.Equal(t, verdictOf(stored), verdictOf(live))
	lines = strings.Split(live, "\n")
	for _, line := range lines {
		if strings.Contains(line, c.dir) {
			continue // a path is not cut
		}
		require.LessOrEqual(t, utf8.RuneCountInString(line), 80, line)
	}
	return joinedLines(live), lines
}

// verdictOf is what a first screen says up to what it checked.
func verdictOf(screen string) string {
	_, text, _ := strings.Cut(screen, "\n")
	text, _, _ = strings.Cut(text, "\n  checked ")
	return text
}

// fails runs the program under gputrace until it runs out of memory.
func (p *player) fails(t *testing.T) string {
	t.Helper()
	c := newCommand(t, "run", "-o", "OUT", "--", filepath.Join(env.testdata, "run"), p.file())
	c.cmd.Args = slices.DeleteFunc(c.cmd.Args, func(a string) bool { return a == "-v" })
	c.cmd.Env = append(append(c.cmd.Env, "COLUMNS=80", "OMP_NUM_THREADS=1"), p.environment...)
	c.start(t)
	c.code(t)
	_, screen, ok := strings.Cut(c.stderr.String()+c.stdout.String(), "gputrace  "+p.name+".py")
	require.True(t, ok, c.stderr.String()+c.stdout.String())
	return joinedLines(screen)
}

// said reads the amount and the steps of "keeps 3.1 MiB more every 15 steps".
var saidGrowth = regexp.MustCompile(`keeps? ([0-9.]+) (B|KiB|MiB|GiB) more (?:each|every ([0-9]+)) `)

// grows requires that the first screen has the truth's amount, which PyTorch's counters have too, and its line.
func (p *player) grows(t *testing.T, truth *growth) string {
	t.Helper()
	screen, _ := p.attach(t)
	require.InEpsilon(t, truth.step, slope(p.counters(t)), .15, "the truth, by PyTorch's counters")
	m := saidGrowth.FindStringSubmatch(screen)
	require.NotNil(t, m, screen)
	amount, err := strconv.ParseFloat(m[1], 64)
	require.NoError(t, err)
	unit := map[string]float64{"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}[m[2]]
	every := 1.
	if m[3] != "" {
		every, err = strconv.ParseFloat(m[3], 64)
		require.NoError(t, err)
	}
	units := truth.units
	if units == nil {
		units = []float64{1}
	}
	require.True(t, slices.ContainsFunc(units, func(u float64) bool {
		owed := truth.step * u * every
		return math.Abs(amount*unit-owed) <= math.Max(.06*unit, .01*owed) // what is printed has one decimal
	}), "%s instead of %.0f B a step", m[0], truth.step)
	m = regexp.MustCompile(regexp.QuoteMeta(p.name) + `\.py:([0-9]+)`).FindStringSubmatch(screen)
	require.NotNil(t, m, screen)
	n, err := strconv.Atoi(m[1])
	require.NoError(t, err)
	require.Contains(t, sourceLine(t, p.file(), n), truth.line)
	return screen
}

// counter is a line of the program's meter.
type counter struct {
	Step      int     `json:"step"`
	Requested float64 `json:"requested"`
}

func (p *player) counters(t *testing.T) (out []counter) {
	t.Helper()
	f, err := os.Open(p.meter)
	if os.IsNotExist(err) {
		return nil
	}
	require.NoError(t, err)
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var c counter
		if json.Unmarshal(lines.Bytes(), &c) == nil { // the last line may be half written
			out = append(out, c)
		}
	}
	return out
}

// slope is by how much the requested bytes grow in a step: the line of least squares through all counters but the first tenth.
func slope(c []counter) float64 {
	c = c[len(c)/10:]
	var n, x, y, xx, xy float64
	for _, v := range c {
		s := float64(v.Step)
		n, x, y, xx, xy = n+1, x+s, y+v.Requested, xx+s*s, xy+s*v.Requested
	}
	return (n*xy - x*y) / (n*xx - x*x)
}
