// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var askQuestions = flag.Bool("questions", false, "play all questions of docs/use/questions.md, and write the answers into it")

// question is what people ask, as surveys of issues and forums have it, with a program that makes one ask it.
type question struct {
	number int
	asked  string
	plays  [][]string // recordings: a workload with its arguments, behind settings of its environment; "sh": a job
	// ask is the command line, of which FIRST and SECOND are the recordings. answer is where the answer is in what it prints.
	ask, answer string
	rare        bool   // played with -questions only: what is said is tested elsewhere
	note        string // below the answer
}

// oomWhy is the reason in what gputrace oom prints.
const oomWhy = `(?s)why .*?(?:\ntorch)`

// questions are those of the survey, by its numbers.
var questions = []question{
	{1, "It asks for 640 MiB, gigabytes are free, and it fails", [][]string{{"GPU_MEM=3GiB", "oom.py", "--case", "fragmentation"}},
		"oom FIRST", oomWhy, true, ""},
	{2, "Much more is reserved than allocated, with lengths that vary", [][]string{{"GPU_MEM=24GiB", "lengths.py", "--steps", "30"}},
		"fragments FIRST --at peak", `(?s)pid .*?(?:\nfree)`, false, ""},
	{3, "It grows every step until it fails", [][]string{{"GPU_MEM=2GiB", "oom.py", "--case", "leak"}}, "leaks FIRST",
		`(?s)GROWING .*?(?:\nsteps)`, true, ""},
	{4, "nvidia-smi shows much more than PyTorch", [][]string{{"GPU_MEM=3GiB", "oom.py", "--case", "outside_pytorch"}}, "oom FIRST",
		`(?s)device .*?(?:\nfree)`, true, ""},
	{5, "NCCL takes gigabytes", [][]string{{"GPU_MEM=4GiB", "oom.py", "--case", "communicators"}}, "oom FIRST", `(?s)why .*?(?:\nfree)`, true,
		"Not covered: channels and buffers of NCCL itself. Each of the stand-in's communicators takes a fixed size."},
	{6, "GPU 0 has a process of each rank", [][]string{{"GPUS=3", "sh"}}, "report FIRST", `(?s)device   cuda:0, .*?itself`, false, ""},
	{7, "It runs out of memory in evaluation only", [][]string{{"GPU_MEM=2GiB", "oom.py", "--case", "evaluation"}}, "oom FIRST", oomWhy,
		true, ""},
	{8, "Forward and backward fit, and optimizer.step() does not", [][]string{{"GPU_MEM=2GiB", "oom.py", "--case", "first_step"}},
		"oom FIRST", oomWhy, true, ""},
	{9, "Memory stays after an error that was caught", [][]string{{"GPU_MEM=2GiB", "oom.py", "--case", "traceback", "--linger", "5"}},
		"oom FIRST", `(?s)holds +1\.\d GiB .*?blocks\n`, true,
		"A list keeps the error, whose traceback keeps a frame and its variables."},
	{10, "It runs out of memory while it saves a checkpoint", [][]string{{"GPU_MEM=2GiB", "oom.py", "--case", "checkpoint"}}, "oom FIRST",
		oomWhy, true,
		"Not covered: the gathering of FSDP, which needs several devices that exchange data."},
	{11, "CUDA graphs and torch.compile keep memory", [][]string{{"GPU_MEM=3GiB", "oom.py", "--case", "graphs"}}, "oom FIRST",
		`(?s)why .*?(?:\ncourse)`, true,
		"Not covered: torch.compile, whose code needs working kernels."},
	{12, "The same code runs out of memory in a new version", [][]string{{"GPU_MEM=24GiB", "questions.py", "--case", "before"},
		{"GPU_MEM=24GiB", "questions.py", "--case", "after"}},
		"diff FIRST SECOND --at peak", `(?s)in use by .*?in all[^\n]*`, false,
		"Here, the script has two versions. With two versions of PyTorch the rows are the same lines, and the change shows the difference."},
	{13, "The process has ended, and the memory is still used", [][]string{{"GPU_MEM=2GiB", "oom.py", "--case", "other_process"}},
		"oom FIRST", oomWhy, true,
		"Not covered: zombie processes, MPS, and handles that another process has opened. NVML of the stand-in " +
			"lists running processes only."},
	{14, "How much of a server's memory is weights, cache, activations, graphs?",
		[][]string{{"GPU_MEM=24GiB", "questions.py", "--case", "serving"}}, "report FIRST --at peak", `(?s)at the peak.*?capture [^\n]*`, false,
		"A program with the layout of vLLM, because vLLM itself needs working kernels."},
	{15, "A server keeps more with each cycle of sleep and waking", [][]string{{"GPU_MEM=24GiB", "questions.py", "--case", "sleep"}},
		"leaks FIRST --step-on wake_up", `(?s)GROWING .*?(?:\nsteps)`, false, ""},
	{16, "\"memory allocation failed\" is printed, and nothing failed", [][]string{{"GPU_MEM=2GiB", "oom.py", "--case", "recovered"}},
		"oom FIRST", `(?s)no request .*ran out`, true, ""},
	{18, "An inference program has memory that it does not account for", [][]string{{"GPU_MEM=24GiB", "inference"}}, "report FIRST",
		`(?s)in use at the end.*?(?:\n  in use)`, false,
		"A program with the calls of llama.cpp and ggml: weights, cache and graph by `cuMemAlloc`, a pool that maps more memory as " +
			"batches grow."},
}

// TestQuestions plays questions, and compares the answers with docs/use/questions.md, but for figures.
func TestQuestions(t *testing.T) {
	text, err := os.ReadFile("../docs/use/questions.md")
	require.NoError(t, err)
	head, rest, ok := strings.Cut(string(text), questionsBegin)
	require.True(t, ok)
	old, tail, ok := strings.Cut(rest, questionsEnd)
	require.True(t, ok)
	for i := range questions {
		q := &questions[i]
		if q.rare && !*askQuestions {
			continue
		}
		t.Run(fmt.Sprint(q.number), func(t *testing.T) {
			answer := q.play(t)
			written := q.section(answer)
			if *askQuestions {
				old = q.replace(old, written)
			} else if os.Getenv("TORCH_VERSION") == "" {
				require.Contains(t, plainAnswer(old), plainAnswer(written))
			}
		})
	}
	if *askQuestions {
		require.NoError(t, os.WriteFile("../docs/use/questions.md", []byte(head+questionsBegin+old+questionsEnd+tail), 0o600))
	}
}

// What is between these lines of docs/use/questions.md is written by TestQuestions.
const (
	questionsBegin = "<!-- written by go test ./e2e -run TestQuestions -questions -->"
	questionsEnd   = "<!-- end -->"
)

// plainAnswer is a text without its figures and the width of its columns.
func plainAnswer(s string) string {
	s = regexp.MustCompile(`0x[0-9a-f]+`).ReplaceAllString(s, "N")
	return strings.Join(strings.Fields(figure.ReplaceAllString(s, "N")), " ")
}

// section is the part of the page on a question.
func (q *question) section(answer string) string {
	command := strings.NewReplacer("FIRST", "result", "SECOND", "other").Replace(q.ask)
	if len(q.plays) == 2 {
		command = strings.NewReplacer("FIRST", "before", "SECOND", "after").Replace(q.ask)
	}
	out := fmt.Sprintf("### %d. %s\n\n    gputrace %s\n\n```text\n%s\n```\n\n", q.number, q.asked, command, answer)
	if q.note != "" {
		out += q.note + "\n\n"
	}
	return out
}

// replace puts a section in the place of the older one of the same question, or at the end.
func (q *question) replace(page, section string) string {
	begin := strings.Index(page, fmt.Sprintf("### %d. ", q.number))
	if begin < 0 {
		return page + section
	}
	end := len(page)
	if n := strings.Index(page[begin+1:], "\n### "); n >= 0 {
		end = begin + 1 + n + 1
	}
	return page[:begin] + section + page[end:]
}

// play records the programs, and asks.
func (q *question) play(t *testing.T) string {
	t.Helper()
	args := strings.Fields(q.ask)
	for i, play := range q.plays {
		folder := recordPlay(t, play)
		for k := range args {
			if args[k] == []string{"FIRST", "SECOND"}[i] {
				args[k] = folder
			}
		}
	}
	text, err := exec.Command(env.binary, args...).Output()
	if err != nil { // a finding
		require.Equal(t, 3, err.(*exec.ExitError).ExitCode(), "%s", text)
	}
	answer := regexp.MustCompile(q.answer).FindString(string(text))
	require.NotEmpty(t, answer, "%s", text)
	lines := strings.Split(strings.TrimRight(answer, "\n"), "\n")
	for _, next := range []string{"torch", "free", "steps", "course", "  in use"} { // the field behind the answer
		if n := len(lines) - 1; n > 0 && lines[n] == next {
			lines = lines[:n]
		}
	}
	return strings.Join(lines, "\n")
}

// recordPlay records a program from its start, and returns the folder of results.
func recordPlay(t *testing.T, play []string) string {
	t.Helper()
	dir := t.TempDir()
	settings := []string{"OMP_NUM_THREADS=1", "STANDIN_SHM=" + filepath.Join(dir, "totals")}
	for strings.Contains(play[0], "=") {
		settings, play = append(settings, "STANDIN_"+play[0]), play[1:]
	}
	run := filepath.Join(env.testdata, "run")
	program := append([]string{run, workload(play[0])}, play[1:]...)
	switch play[0] {
	case "sh":
		program = []string{"sh", "-c", fmt.Sprintf("for r in 0 1 2; do RANK=$r LOCAL_RANK=$r WORLD_SIZE=3 %s %s --case ranks --folder %s & "+
			"done; wait", run, workload("questions.py"), dir)}
	case "inference":
		program = []string{filepath.Join(env.programs, "inference")}
	}
	c := newCommand(t, append([]string{"run", "-o", "OUT", "-f", "none", "--"}, program...)...)
	standin, err := output(filepath.Join(env.testdata, "setup.sh"), "--print", "standin")
	require.NoError(t, err)
	c.cmd.Env = append(append(c.cmd.Env, settings...), "LD_LIBRARY_PATH="+standin)
	c.start(t)
	c.code(t) // the program's own
	require.True(t, exists(c.out()), c.stderr.String())
	return failedProcess(t, c.out())
}

// failedProcess is the folder of the one process of several that ran out of memory; where none did, and of one process, it is all.
func failedProcess(t *testing.T, folder string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(folder, "*", traceFile))
	require.NoError(t, err)
	for _, path := range found {
		cmd := exec.Command(env.binary, "oom", path)
		_ = cmd.Run() // the exit code says it
		if len(found) > 1 && cmd.ProcessState.ExitCode() == 3 {
			return path
		}
	}
	return folder
}
