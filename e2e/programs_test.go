// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

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
	"adapters_in_turn":      {98304, []float64{8}, "self.lora_", []string{"base", "lora_"}},
	"agent_replay":          {393216, nil, "observation = ", []string{"agent.episodes"}},
	"attribution_models":    {157286.4, nil, "module.", []string{"models", "input", "output"}},
	"averaged_loss":         {296960, nil, "", []string{"loss_average", ".detach()"}},
	"cam_hooks":             {1605632, nil, "", []string{"cam.store.activations", "cam.store.gradients", "elements"}},
	"chat_sessions":         {2097152, nil, "self.cache = ", []string{"server.sessions"}},
	"chat_server":           {1572864, nil, "return k.reshape(", []string{"SESSIONS", "layers"}},
	"class_history":         {65536, nil, "summary = ", []string{"Recorded.history"}},
	"dp_hooks":              {655360, nil, "score = model(x)", []string{"model[0, 2, 4].activations"}},
	"expiring_cache":        {131072, nil, "return self.mix(", []string{"asyncio", "timers of the event loop"}},
	"failed_requests":       {229376, nil, "hidden = ", []string{"w.failures…error.__traceback__", "str(error)"}},
	"federated_rounds":      {223257.6, []float64{1, 4, 5, 20}, "update = ", []string{"history"}},
	"gan_snapshots":         {656179.2, nil, "copy.deepcopy(self.generator)", []string{"snapshots"}},
	"gradcam_instances":     {2097152, nil, "", []string{"activations", "gradients"}},
	"gradient_history":      {262144, nil, "energy = ", []string{"create_graph=True"}},
	"hyperopt_graph":        {4640848, []float64{1. / 3, 1}, "", []string{"an autograd graph", "create_graph=True"}},
	"instruct_session":      {65536, []float64{1, 4}, "torch.cat(", []string{"session", "past_key_values"}},
	"kept_exceptions":       {78643.2, []float64{1.25}, "", []string{"failures"}},
	"lazy_heap":             {112896, nil, "state = self.env.observe()", []string{"memory.heap", "elements"}},
	"mcts_cycles":           {3407872, nil, "planes = torch.roll(", []string{"garbage Node.planes", "gc.collect()"}},
	"momentum_queue":        {327680, nil, "keys = self.encoder(", []string{"learner.queue", ".detach()"}},
	"neighbour_table":       {81920, nil, "", []string{"sampler", "features"}},
	"parameter_search":      {217093.333, nil, "", []string{"trials"}},
	"pending_tasks":         {131072, nil, "response = ", []string{"response"}},
	"pose_validation":       {101760, nil, "vertices = ", []string{"evaluator.val"}},
	"preference_metrics":    {532736, nil, "logps = ", []string{"_stored_metrics['train']['nll_loss']", ".detach()"}},
	"prefetch_replay":       {3276.8, nil, "err = (q - target)", []string{"critic.surprises"}},
	"prompt_pipeline":       {307200, nil, "image = ", []string{"seen"}},
	"psnr_with_graph":       {786432, nil, "difference = prediction - target", []string{"sum_squared_error"}},
	"raw_workspace":         {1048576, nil, "ctypes.byref(values)", []string{"cudaFree"}},
	"resized_vocabulary":    {10485.76, []float64{.5, 1}, "", []string{"words"}},
	"retrieval_cache":       {294912, []float64{1. / 3, 1}, "return encoder(", []string{"embed", "maxsize"}},
	"rollout_buffer":        {65536, nil, "hidden = ", []string{"buffer.fields['hidden']"}},
	"sae_codes":             {2097152, nil, "z = torch.relu(", []string{"logs['z']", ".clone()"}},
	"sampler_gallery":       {2621440, []float64{.1, 1}, "latents = latents - ", []string{"gallery"}},
	"scatter_context":       {1114112, nil, "out = ", []string{"ctx.kept stays", "ctx.save_for_backward()"}},
	"scheduled_trials":      {2519040, nil, "", []string{"gc.collect()"}},
	"session_server":        {524288, nil, "hidden = ", []string{"state.sessions"}},
	"sfm_outputs":           {782344, nil, "", []string{"outputs", ".detach()"}},
	"stateful_reader":       {1581056, nil, "self.hidden = ", []string{"reader.hidden", ".detach()"}},
	"stored_outputs":        {262148, nil, "output = self.layer(", []string{"loop.outputs"}},
	"stored_prompt_cache":   {524288, []float64{1. / 16, 1}, "[layer] = ", []string{"store"}},
	"task_optimizers":       {954790.4, nil, "opt.step()", []string{"schedulers", "optimizer.state"}},
	"tee_stream":            {131072, nil, "yield clip.to(", []string{"pipeline.", "<tee>", "itertools.tee()"}},
	"tenant_adapters":       {39321.6, nil, "", []string{"tenants"}},
	"tenant_index":          {68812.8, []float64{1, 10. / 7}, "return self.norm(", []string{"service.cache.by_tenant", "elements"}},
	"tracker_stats":         {2097152, nil, "", []string{"stats['train']['iou']"}},
	"transcription_threads": {1179648, []float64{1. / 6, 1}, "self.states.append(", []string{"states"}},
	"two_stores": {262144, nil, "return self.body(x)", []string{"runner.train_outputs[0..", "runner.val_outputs['step*']",
		"keeps 256.0 KiB more each step"}},
	"waiting_uploads":      {393216, nil, "clip = torch.stack(", []string{"clip", "threads are in EventUploader._publish()"}},
	"written_cache":        {524288, nil, "index = places.repeat(", []string{".detach()"}},
	"translator_attention": {184320, []float64{1, 4}, "weights = torch.softmax(", []string{"decoder.attention"}},
}

// An ending is the truth of a program of testdata/threads that runs out of memory.
type ending struct {
	environment []string
	screen      []string
}

var failures = map[string]ending{
	"averaged_resume":   {[]string{"STANDIN_GPU_MEM=1GiB"}, []string{"128.1 MiB that averaged_resume.py:", "checkpoint[", `"cpu"`}},
	"batch_size_finder": {[]string{"STANDIN_GPU_MEM=1300MiB"}, []string{"batch_size_finder.py:", "optimizer"}},
	"batch_tuner": {[]string{"STANDIN_GPU_MEM=1GiB"}, []string{"why memory of an earlier attempt: ", "483.3 MiB is left",
		"str(error)"}},
	"calibration_holes": {[]string{"STANDIN_GPU_MEM=1GiB"}, []string{"why fragmentation: calibration_holes.py:", "368.0 MiB",
		"fails too"}},
	"caption_validation": {[]string{"STANDIN_GPU_MEM=1GiB"}, []string{"in a step that needs", "evaluation", "torch.no_grad()"}},
	"clip_bank":          {[]string{"STANDIN_GPU_MEM=1GiB"}, []string{"why fragmentation: clip_bank.py:", "expandable_segments"}},
	"corpus_index":       {[]string{"STANDIN_GPU_MEM=1GiB"}, []string{"corpus_index.py:", "large as the blocks", "them on the CPU"}},
	"crashed_run":        {[]string{"STANDIN_GPU_MEM=2304MiB", "STANDIN_SHM=SHM"}, []string{"why other processes: ", "900.0 MiB"}},
	"crossval_cache":     {[]string{"STANDIN_GPU_MEM=1GiB"}, []string{"a leak: crossval_cache.py:", "get_adapter_params", "maxsize"}},
	"crowded_image":      {[]string{"STANDIN_GPU_MEM=2GiB"}, []string{"in a step that needs", "crowded_image.py:", "1.2 GiB"}},
	"distilled_share":    {[]string{"STANDIN_GPU_MEM=4GiB"}, []string{"the program's own limit", "distilled_share.py:"}},
	"doubled_loading":    {[]string{"STANDIN_GPU_MEM=1GiB"}, []string{"doubled_loading.py:", "192.0 MiB", `map_location="cpu"`}},
	"epoch_outputs":      {[]string{"STANDIN_GPU_MEM=1GiB"}, []string{"caught", "a leak: epoch_outputs.py:", "epoch_outputs["}},
	"eval_gather":        {[]string{"STANDIN_GPU_MEM=1GiB"}, []string{"eval_gather.py:", "torch.cat(", "was 8.0 MiB larger"}},
	"evaluation_meter":   {[]string{"STANDIN_GPU_MEM=1GiB"}, []string{"evaluation_meter.py:", "meter.predictions"}},
	"face_candidates":    {[]string{"STANDIN_GPU_MEM=1500MiB"}, []string{"in a step that needs", "face_candidates.py:", "2.4 GiB"}},
	"first_validation": {[]string{"STANDIN_GPU_MEM=1GiB"}, []string{"why fragmentation: first_validation.py:",
		"190.0 MiB of the device"}},
	"forward_store":    {[]string{"STANDIN_GPU_MEM=760MiB"}, []string{"in a step that needs", "forward_store.py:"}},
	"frag_detect":      {[]string{"STANDIN_GPU_MEM=1536MiB"}, []string{"why fragmentation: frag_detect.py:", "260.0 MiB", "self.done"}},
	"gathered_logits":  {[]string{"STANDIN_GPU_MEM=2GiB", "STANDIN_GPUS=2"}, []string{"gathered_logits.py:", "cuda:1"}},
	"kept_folds":       {[]string{"STANDIN_GPU_MEM=1GiB"}, []string{"a leak: ", "every 60 steps", "report", "predict.__self__"}},
	"many_boxes":       {[]string{"STANDIN_GPU_MEM=1GiB"}, []string{"in a step that needs", "many_boxes.py:", "first differs"}},
	"outlier_document": {[]string{"STANDIN_GPU_MEM=1GiB"}, []string{"in a step that needs", "outlier_document.py:", "first differs"}},
	"resumed_training": {[]string{"STANDIN_GPU_MEM=994MiB"}, []string{"resumed_training.py:", "72.0 MiB", `map_location="cpu"`}},
	"rollback_checkpoint": {[]string{"STANDIN_GPU_MEM=1GiB"}, []string{"rollback_checkpoint.py:", "had loaded 187.0 MiB",
		`map_location="cpu"`}},
	"rollout_val":        {[]string{"STANDIN_GPU_MEM=1100MiB"}, []string{"rollout_val.py:", "evaluation", "torch.no_grad()"}},
	"shared_gpu_limit":   {[]string{"STANDIN_GPU_MEM=3GiB"}, []string{"the program's own limit: ", "921.6 MiB (set_per_process_memory"}},
	"slide_results":      {[]string{"STANDIN_GPU_MEM=800MiB"}, []string{"a leak", "slide_results.py:", "images = "}},
	"stage_router":       {[]string{"STANDIN_GPU_MEM=1GiB"}, []string{"the program's own limit: stage_router.py:", "409.6 MiB"}},
	"stacked_replay":     {[]string{"STANDIN_GPU_MEM=1GiB"}, []string{"a bound that the device has no room for: ", "agent.memory.items"}},
	"summed_likelihood":  {[]string{"STANDIN_GPU_MEM=1GiB"}, []string{"the activations of ", "likelihood.py:48", "backward() for each"}},
	"summed_losses":      {[]string{"STANDIN_GPU_MEM=1GiB"}, []string{"the activations of 1", "call backward() for each"}},
	"unbounded_prefetch": {[]string{"STANDIN_GPU_MEM=3GiB"}, []string{"a leak: unbounded_prefetch.py:", "queue.queue", "maxsize"}},
	"validation_with_graph": {[]string{"STANDIN_GPU_MEM=1000MiB"}, []string{"in a step that needs", "validation_with_graph.py:",
		"evaluation"}},
	"world_cache": {[]string{"STANDIN_GPU_MEM=1700MiB"}, []string{"world_cache.py:", "optimizer state", "512.0 MiB", "448.0 MiB"}},
}

// steadies are programs that are steady, and what the first screen owes them.
var steadies = map[string][]string{
	"stream_per_epoch":    {"CACHED"},
	"ema_checkpoints":     {"gc.collect()"},
	"hook_closure_models": {"gc.collect()", "garbage LeakyModule.body"},
	"handler_batches":     {"CACHED", "631.2 MiB of 644.0 MiB"},
	"asr_sorted":          nil,
	"best_ckpt":           nil,
	"bucketed_lengths":    nil,
	"cross_batch":         nil,
	"curriculum":          {"longer the input of curriculum.py:", "the peak of a step rose from"},
	"epoch_streams":       {"CACHED", "Reserved memory rose all along", "reuse a few streams"},
	"filling_replay":      nil,
	"late_experts":        {"fills", "optimizer.state", "of at most 402 elements"},
	"prefix_cache":        nil,
	"snapshot_ensemble":   nil,
	"tenant_cache":        {"fills", "of at most 384 elements"},
	"tile_cache":          nil,
}

// unknowns are programs of which six seconds do not show whether they grow, and what the first screen says instead.
var unknowns = map[string][]string{
	"camera_history": {"history[", "of at most 600 elements", "150.0 MiB when"},
	"epoch_scores":   {"epoch_scores.py:", "144.0 KiB more each step, in main() local meter.", "no backward pass was seen"},
}

// twinless are programs without a twin that six seconds can call steady, and why.
var twinless = map[string]string{
	"asr_sorted":          "it is healthy itself",
	"best_ckpt":           "it is healthy itself",
	"averaged_resume":     "it runs out of memory too, later",
	"calibration_holes":   "it has none",
	"camera_history":      "it is healthy itself",
	"cam_hooks":           "it has none",
	"clip_bank":           "it has none",
	"corpus_index":        "it has none",
	"summed_likelihood":   "it has none",
	"kept_folds":          "it has none",
	"late_experts":        "it is healthy itself",
	"caption_validation":  "it has none",
	"crossval_cache":      "it has none",
	"cross_batch":         "it is healthy itself",
	"curriculum":          "it is healthy itself",
	"epoch_outputs":       "it has none",
	"epoch_scores":        "it is healthy itself",
	"epoch_streams":       "it has none",
	"filling_replay":      "it is healthy itself",
	"first_validation":    "it has none",
	"tenant_cache":        "it is healthy itself",
	"outlier_document":    "it has none",
	"prefix_cache":        "it is healthy itself",
	"stacked_replay":      "it has none",
	"stage_router":        "it has none",
	"unbounded_prefetch":  "it has none",
	"waiting_uploads":     "it has none",
	"rollback_checkpoint": "it has none",
	"sfm_outputs":         "its twin keeps two numbers a step until the epoch ends",
	"shared_gpu_limit":    "a step of its twin takes 3 seconds",
	"tile_cache":          "it is healthy itself",
}

// filled are programs that fill a cache, queue or warm-up, and the step after which they have.
var filled = map[string]int{
	"asr_sorted":        110,
	"camera_history":    3,
	"cross_batch":       190,
	"lazy_heap":         230,
	"expiring_cache":    60,
	"best_ckpt":         110,
	"epoch_scores":      40,
	"prefix_cache":      60,
	"prefetch_replay":   130,
	"snapshot_ensemble": 160,
	"tenant_index":      60,
	"tile_cache":        220,
}

// stepParts: a step of these programs is several steps of gputrace, now more and now fewer. The least and the greatest part that one is.
var stepParts = map[string][2]float64{"chat_server": {1. / 3, 1}}

// outside are programs whose memory PyTorch's counters do not have.
var outside = []string{"raw_workspace"}

// titles are the first screens that do not begin with the program's name.
var titles = map[string]string{"crashed_run": "job of 2 processes"}

// TestPrograms plays programs that were written after the tool, and holds the whole first screen at 80 columns
// against the truth: while they run, and of the recording. GPUTRACE_PROGRAMS=all plays all of testdata/threads with
// their repaired twins, a name only that one.
func TestPrograms(t *testing.T) {
	selected := []string{"chat_sessions", "session_server", "distilled_share", "hook_closure_models", "stacked_replay"}
	twins := []string{"chat_sessions"}
	if v := os.Getenv("GPUTRACE_PROGRAMS"); v == "all" {
		selected = slices.Concat(slices.Collect(maps.Keys(growths)), slices.Collect(maps.Keys(failures)),
			slices.Collect(maps.Keys(steadies)), slices.Collect(maps.Keys(unknowns)))
		twins = slices.Clone(selected)
	} else if v != "" {
		selected = strings.Split(v, ",")
		twins = slices.Clone(selected)
	}
	twins = slices.DeleteFunc(twins, func(name string) bool { return twinless[name] != "" })
	slices.Sort(selected)
	for _, name := range selected {
		t.Run(name, func(t *testing.T) { playProgram(t, name) })
	}
	for _, name := range twins {
		t.Run(name+" fixed", func(t *testing.T) {
			p := newPlayer(t, name)
			screen, _ := p.attach(t, "--fixed")
			require.Contains(t, screen, "STEADY")
			require.NotContains(t, screen, "GROWING")
		})
	}
}

func playProgram(t *testing.T, name string) {
	p := newPlayer(t, name)
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
	} else if doubts, ok := unknowns[name]; ok {
		want = append([]string{"UNKNOWN"}, doubts...)
		screen, _ = p.attach(t)
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

// newPlayer returns the player of a program; the processes of one that shares a device share a file of its own.
func newPlayer(t *testing.T, name string) *player {
	p := &player{name: name, environment: slices.Clone(failures[name].environment)}
	for i, v := range p.environment {
		p.environment[i] = strings.Replace(v, "=SHM", "="+filepath.Join(t.TempDir(), "totals"), 1)
	}
	return p
}

// title is how the first screen of a failure begins.
func (p *player) title() string {
	if title, ok := titles[p.name]; ok {
		return "gputrace  " + title
	}
	return "gputrace  " + p.name + ".py"
}

func (p *player) file() string { return filepath.Join(env.testdata, "threads", p.name+".py") }

// attach returns the first screen of six seconds, or more, of the running program, with single spaces, and its lines.
func (p *player) attach(t *testing.T, args ...string) (screen string, lines []string) {
	t.Helper()
	dir := t.TempDir()
	p.meter = filepath.Join(dir, "meter")
	target := startIn(t, dir, append(p.environment, "METER="+p.meter, "SECONDS=600"), filepath.Join(env.testdata, "run"),
		append([]string{p.file()}, args...)...)
	begin := max(10, filled[p.name])
	eventually(t, "enough steps", func() bool { return len(p.counters(t)) >= begin })
	duration := "6s"
	if p.name == "eval_gather" { // its steps take long on a busy machine, and 20 are needed
		duration = "20s"
	}
	return p.record(t, "-p", itoa(target.pid), "-d", duration, "-o", "OUT")
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
	t.Log(live)
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
	_, screen, ok := strings.Cut(c.stderr.String()+c.stdout.String(), p.title())
	require.True(t, ok, c.stderr.String()+c.stdout.String())
	t.Log(screen)
	return joinedLines(screen)
}

// said reads the amount and the steps of "keeps 3.1 MiB more every 15 steps".
var saidGrowth = regexp.MustCompile(`keeps? ([0-9.]+) (B|KiB|MiB|GiB) more (?:each|every ([0-9]+)) `)

var saidRate = regexp.MustCompile(`\+([0-9.]+) MiB/s`)

// grows requires that the first screen has the truth's amount, which PyTorch's counters have too, and its line.
func (p *player) grows(t *testing.T, truth *growth) string {
	t.Helper()
	screen, _ := p.attach(t)
	counted := slope(p.counters(t)[filled[p.name]:])
	if slices.Contains(outside, p.name) {
		require.InDelta(t, 0, counted, 64, "PyTorch's counters do not have it")
	} else {
		require.InEpsilon(t, truth.step, counted, .15, "the truth, by PyTorch's counters")
	}
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
	near := func(u float64) bool {
		owed := truth.step * u * every
		return math.Abs(amount*unit-owed) <= math.Max(.06*unit, .01*owed) // what is printed has one decimal
	}
	parts, ok := stepParts[p.name]
	part := amount * unit / (truth.step * every)
	ok = ok && (part > parts[0] && part < parts[1] || near(parts[0]) || near(parts[1]))
	if ok { // a step says little, so the rate has to hold
		rate := saidRate.FindStringSubmatch(screen)
		require.NotNil(t, rate, screen)
		said, err := strconv.ParseFloat(rate[1], 64)
		require.NoError(t, err)
		c := p.counters(t)[10:]
		first, last := c[0], c[len(c)-1]
		counted := (last.Requested - first.Requested) / (last.Time - first.Time) * 1e9
		require.InEpsilon(t, counted, said*(1<<20), .35, "bytes a second, by PyTorch's counters")
	}
	require.True(t, ok || slices.ContainsFunc(units, near), "%s instead of %.0f B a step", m[0], truth.step)
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
	Time      float64 `json:"ns"`
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
