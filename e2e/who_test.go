// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// whoReport is what who --json writes, as far as it is compared here.
type whoReport struct {
	Format   string
	Version  int
	PID      int
	Python   string
	BootTime uint64 `json:"boottime_ns"`
	Devices  []struct{ Device, Allocated, Active uint64 }
	Totals   []struct {
		Category string
		Blocks   int
		Bytes    uint64
	}
	Changing *changingPart
	Rows     []struct {
		Name, What    string
		Bytes, Blocks uint64
	}
	Blocks []whoBlock
	Notes  []string
	Cost   struct {
		Stopped int64  `json:"stopped_ns"`
		Confirm uint64 `json:"confirm_ns"`
	}
}

type whoBlock struct {
	Address, Size         uint64
	Allocator             string
	Host                  bool
	State, Category, Name string
	Group, Class, Why     string
	Path                  []whoStep
	Others                []struct{ Path []whoStep }
	Tensors               []whoTensor
	Holders, Missing      int
	Complete              string
	Confirmed             bool
}

// whoStep is sent back to the process as it is.
type whoStep struct {
	Kind    string    `json:"kind"`
	Name    string    `json:"name,omitempty"`
	Index   int64     `json:"index"`
	Indices []int64   `json:"indices,omitempty"`
	KeyKind string    `json:"key_kind,omitempty"`
	KeyAddr uint64    `json:"key_addr,omitempty"`
	KeyPath []whoStep `json:"key_path,omitempty"`
	Frame   *whoFrame `json:"frame,omitempty"`
	Addr    uint64    `json:"addr,omitempty"`
	Type    string    `json:"type,omitempty"`
}

type whoFrame struct {
	Thread   uint64 `json:"thread"`
	Depth    int    `json:"depth"`
	Function string `json:"function"`
	File     string `json:"file"`
}

type whoTensor struct {
	ID           uint64
	Shape        []int64
	Strides      []int64
	Offset       *int64
	DType        string
	RequiresGrad string `json:"requires_grad"`
	Kind         string
}

// tensorInside is a tensor as the process itself sees it (testdata/workloads/who_answer.py). One that a node saved under a
// name that the path does not tell is a list of them.
type tensorInside struct {
	ID           uint64
	Address      uint64
	Shape        []int64
	Strides      []int64
	Offset       *int64
	DType        string
	RequiresGrad bool `json:"requires_grad"`
	Refused      bool // PyTorch does not hand it out
}

type whoAnswer struct {
	Paths []struct {
		Tensor  json.RawMessage
		Unasked string // Python has no expression for it
		Error   string
	}
	Allocated []uint64
	Named     [][3]json.RawMessage // name, address, kind
	Tensors   []tensorInside
}

// who runs gputrace who and gives its output and exit code.
func who(t *testing.T, pid int, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	return whoAs(t, nil, pid, args...)
}

func whoAs(t *testing.T, user *syscall.Credential, pid int, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	return lookAs(t, user, "who", pid, args...)
}

func whoJSON(t *testing.T, pid int, args ...string) *whoReport {
	t.Helper()
	stdout, stderr, code := who(t, pid, append(args, "--json")...)
	require.Zero(t, code, stderr)
	require.Empty(t, stderr)
	return parseWho(t, stdout)
}

func parseWho(t *testing.T, text string) *whoReport {
	t.Helper()
	var r whoReport
	require.NoError(t, json.Unmarshal([]byte(text), &r))
	require.Equal(t, "gputrace who", r.Format)
	require.Equal(t, 1, r.Version)
	checkSums(t, &r)
	return &r
}

const changingCategory = "changing while it was read"

// checkSums: every live byte is in one category, and each block has a name.
func checkSums(t *testing.T, r *whoReport) {
	t.Helper()
	byCategory := map[string][2]uint64{}
	var blocks, counted, totals, rows uint64
	for i := range r.Blocks {
		b := &r.Blocks[i]
		sum := byCategory[b.Category]
		byCategory[b.Category] = [2]uint64{sum[0] + 1, sum[1] + b.Size}
		blocks += b.Size
		require.NotEmpty(t, b.Name)
		require.NotEmpty(t, b.Group)
		if len(b.Path) > 0 {
			require.True(t, b.Confirmed, "a path that was not confirmed: %s", b.Name)
		}
		if b.Category == "unknown" || b.Category == changingCategory {
			require.NotEmpty(t, b.Why, "%#x", b.Address)
		}
	}
	for _, d := range r.Devices {
		counted += d.Active
	}
	low, high := r.Changing.bounds()
	if r.Changing != nil {
		sum := byCategory[changingCategory]
		byCategory[changingCategory] = [2]uint64{sum[0] + r.Changing.Blocks, sum[1] + low}
	}
	for _, s := range r.Totals {
		require.Equal(t, byCategory[s.Category], [2]uint64{uint64(s.Blocks), s.Bytes}, s.Category)
		totals += s.Bytes
	}
	for _, row := range r.Rows {
		rows += row.Bytes
	}
	require.Equal(t, totals, blocks+low)
	require.GreaterOrEqual(t, totals, counted, "blocks and the allocator's own count")
	require.LessOrEqual(t, totals, counted+high-low, "blocks and the allocator's own count")
	if len(r.Rows) > 0 && rows != totals {
		require.Less(t, rows, totals)
	}
}

// startAnswering starts a training script that answers questions, and holds it at its end.
func startAnswering(t *testing.T, environment []string, script string, args ...string) *target {
	t.Helper()
	dir := t.TempDir()
	args = append([]string{workload("who_run.py"), dir, workload(script), "--hold", filepath.Join(dir, "hold")}, args...)
	p := startIn(t, dir, environment, filepath.Join(env.testdata, "run"), args...)
	p.done(t)
	return p
}

// startCases starts cases of a program who_*.py and holds them where they are to be looked at.
func startCases(t *testing.T, environment []string, script, cases string) *target {
	t.Helper()
	dir := t.TempDir()
	return startIn(t, dir, environment, filepath.Join(env.testdata, "run"), workload(script), "--cases", cases, "--ask", dir).ready(t)
}

// ask sends a question to a target and waits for its answer.
func (p *target) ask(t *testing.T, question map[string]any) *whoAnswer {
	t.Helper()
	b, err := json.Marshal(question)
	require.NoError(t, err)
	pipe, err := os.OpenFile(filepath.Join(p.dir, "ask"), os.O_WRONLY, 0)
	require.NoError(t, err)
	defer pipe.Close()
	_, err = pipe.Write(append(b, '\n'))
	require.NoError(t, err)
	file := filepath.Join(p.dir, "answer")
	eventually(t, "an answer", func() bool {
		select {
		case <-p.exited:
			require.FailNow(t, "the target ended:\n"+p.stderr.String())
		default:
		}
		return exists(file)
	})
	b, err = os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, os.Remove(file))
	var a whoAnswer
	require.NoError(t, json.Unmarshal(b, &a))
	return &a
}

// shownWrong is how many wrong paths of a report are printed.
const shownWrong = 5

// claim is one path that a report states, and the block that it must lead to.
type claim struct {
	block *whoBlock
	path  []whoStep
}

// claims are all paths of a report.
func (r *whoReport) claims() []claim {
	var out []claim
	for i := range r.Blocks {
		b := &r.Blocks[i]
		if len(b.Path) > 0 {
			out = append(out, claim{b, b.Path})
		}
		for _, o := range b.Others {
			out = append(out, claim{b, o.Path})
		}
	}
	return out
}

// checkPaths has each path of a report evaluated inside the process, where it must lead to its block. It returns the blocks
// without a path, and those whose path cannot be evaluated.
func checkPaths(t *testing.T, p *target, r *whoReport) (a *whoAnswer, without, unasked []*whoBlock) {
	t.Helper()
	paths := [][]whoStep{}
	claims := r.claims()
	for _, c := range claims {
		paths = append(paths, c.path)
	}
	for i := range r.Blocks {
		if len(r.Blocks[i].Path) == 0 {
			without = append(without, &r.Blocks[i])
		}
	}
	a = p.ask(t, map[string]any{"paths": paths, "all": true})
	require.Len(t, a.Paths, len(claims))
	wrong := 0
	for i, c := range claims {
		why, known := judge(a.Paths[i].Tensor, a.Paths[i].Error, c.block.Address)
		if a.Paths[i].Unasked != "" || !known {
			unasked = append(unasked, c.block)
			continue
		}
		if why != "" {
			if wrong++; wrong <= shownWrong {
				steps, _ := json.Marshal(c.path)
				t.Logf("wrong: %s of %#x, %s: %s\n%.1500s", c.block.Name, c.block.Address, c.block.Category, why, steps)
			}
		}
	}
	right := len(claims) - len(unasked) - wrong
	t.Logf("%d blocks, %d paths right, %d without an expression, %d blocks without a path", len(r.Blocks), right, len(unasked), len(without))
	require.Zero(t, wrong, "of %d paths that were evaluated inside the process", right+wrong)
	return a, without, unasked
}

// judge says what is wrong with where a path led to; empty: nothing. known is false when PyTorch refused to say.
func judge(raw json.RawMessage, failure string, address uint64) (why string, known bool) {
	if failure != "" || len(raw) == 0 {
		return failure, true
	}
	var list []tensorInside
	if json.Unmarshal(raw, &list) != nil {
		list = make([]tensorInside, 1)
		if err := json.Unmarshal(raw, &list[0]); err != nil {
			return err.Error(), true
		}
	}
	if slices.ContainsFunc(list, func(in tensorInside) bool { return in.Address == address }) {
		return "", true
	}
	refused := slices.ContainsFunc(list, func(in tensorInside) bool { return in.Refused })
	return fmt.Sprintf("leads to %+v", list), !refused
}

// checkTensors: every tensor that the process knows is in the report, as it is.
func checkTensors(t *testing.T, r *whoReport, a *whoAnswer) {
	t.Helper()
	type placed struct {
		address uint64
		whoTensor
	}
	outside := map[uint64]placed{}
	for i := range r.Blocks {
		for _, tensor := range r.Blocks[i].Tensors {
			outside[tensor.ID] = placed{r.Blocks[i].Address, tensor}
		}
	}
	for _, in := range a.Tensors {
		if in.Address == 0 {
			continue // an empty tensor has no memory
		}
		out, ok := outside[in.ID]
		require.True(t, ok, "tensor %#x %v %s was not found", in.ID, in.Shape, in.DType)
		require.Equal(t, in.Address, out.address)
		require.Equal(t, in.Shape, append([]int64{}, out.Shape...))
		require.Equal(t, in.Strides, append([]int64{}, out.Strides...))
		require.NotNil(t, out.Offset)
		require.Equal(t, *in.Offset, *out.Offset)
		require.Equal(t, in.DType, out.DType)
		if out.RequiresGrad != "unknown" {
			require.Equal(t, map[bool]string{true: "yes", false: "no"}[in.RequiresGrad], out.RequiresGrad)
		}
	}
}

// checkNamed: parameters, their gradients and buffers are called what named_parameters() and named_buffers() call them, behind the name
// of their model.
func checkNamed(t *testing.T, r *whoReport, a *whoAnswer) {
	t.Helper()
	byAddress := map[uint64]*whoBlock{}
	for i := range r.Blocks {
		byAddress[r.Blocks[i].Address] = &r.Blocks[i]
	}
	names := map[uint64][]string{}
	kinds := map[uint64]string{}
	for _, n := range a.Named {
		var name, kind string
		var address uint64
		require.NoError(t, errors.Join(json.Unmarshal(n[0], &name), json.Unmarshal(n[1], &address), json.Unmarshal(n[2], &kind)))
		names[address], kinds[address] = append(names[address], name), kind
	}
	require.NotEmpty(t, names)
	for address, all := range names {
		b := byAddress[address]
		require.NotNil(t, b, "%v at %#x", all, address)
		require.True(t, slices.ContainsFunc(all, func(name string) bool { return strings.HasSuffix(dotted(b.Name), "."+name) }),
			"%s is none of %v", b.Name, all)
		require.Equal(t, kinds[address]+"s", b.Category, b.Name)
	}
	t.Logf("%d parameters, gradients and buffers have their names", len(names))
}

var brackets = regexp.MustCompile(`\[(\w+)\]`)

// dotted is a module's name as PyTorch writes it: "blocks.10.mlp" for "blocks[10].mlp".
func dotted(name string) string { return brackets.ReplaceAllString(name, ".$1") }

// TestWhoTraining: every block of real training jobs has a name, and every name is right.
func TestWhoTraining(t *testing.T) {
	for _, tt := range []struct {
		script string
		args   []string
	}{
		{"gpt.py", []string{"--steps", "5"}},
		{"mlp.py", []string{"--steps", "20"}},
		{"resnet.py", []string{"--steps", "5", "--batch", "4"}},
		{"leak.py", []string{"--steps", "20", "--batch", "64"}},
	} {
		t.Run(tt.script, func(t *testing.T) {
			p := startAnswering(t, nil, tt.script, tt.args...)
			r := whoJSON(t, p.pid)
			a, without, unasked := checkPaths(t, p, r)
			requireNamed(t, without)
			require.Empty(t, names(unasked))
			require.NotEmpty(t, a.Tensors)
			checkTensors(t, r, a)
			checkNamed(t, r, a)
			require.Equal(t, a.Allocated[0], r.Devices[0].Allocated)
			require.Zero(t, r.Cost.Stopped)
			requireProved(t, r)
			if tt.script == "mlp.py" { // of these, it takes the least time to answer
				checkTables(t, p.pid, r)
			}
		})
	}
}

// requireNamed: what has no path is a workspace of a library, which no tensor holds.
func requireNamed(t *testing.T, without []*whoBlock) {
	t.Helper()
	for _, b := range without {
		require.Equal(t, "workspaces", b.Category, "%#x: %s", b.Address, b.Name)
	}
}

func names(blocks []*whoBlock) (out []string) {
	for _, b := range blocks {
		out = append(out, b.Name)
	}
	return out
}

// requireProved: the reference counts of a process that stands still prove all holders of most blocks.
func requireProved(t *testing.T, r *whoReport) {
	t.Helper()
	count := map[string]int{}
	for i := range r.Blocks {
		if len(r.Blocks[i].Tensors) > 0 {
			count[r.Blocks[i].Complete]++
		}
	}
	t.Logf("all holders found: %v", count)
	require.Greater(t, count["yes"], 9*(count["no"]+count["unknown"]))
}

// checkTables: the text says the same.
func checkTables(t *testing.T, pid int, r *whoReport) {
	t.Helper()
	for _, by := range []string{"owner", "module", "dtype", "shape", "category"} {
		text, stderr, code := who(t, pid, "--by", by, "--top", "0")
		require.Zero(t, code, stderr)
		require.Contains(t, text, "blocks - allocated and waiting as counted by the allocator = 0 B")
		require.Contains(t, text, "live by "+map[bool]string{true: "holder", false: by}[by == "owner"])
		grouped := whoJSON(t, pid, "--by", by, "--top", "0")
		var sum uint64
		for _, row := range grouped.Rows {
			sum += row.Bytes
		}
		require.Equal(t, r.Devices[0].Active, sum, "rows by %s", by)
	}
	b := &r.Blocks[len(r.Blocks)/2]
	text, stderr, code := who(t, pid, "--address", fmt.Sprintf("%#x", b.Address+b.Size/2))
	require.Zero(t, code, stderr)
	require.Contains(t, text, fmt.Sprintf("block    %#x on cuda:0", b.Address))
	require.Contains(t, strings.Join(strings.Fields(text), " "), b.Name, "on as many lines as it takes")
	one := whoJSON1(t, pid, b.Address)
	require.Equal(t, b.Name, one.Blocks[0].Name)
	_, stderr, code = who(t, pid, "--address", "0x10")
	require.Equal(t, 1, code)
	require.Contains(t, stderr, "not in a live block")
}

// whoJSON1 asks for one block.
func whoJSON1(t *testing.T, pid int, address uint64) *whoReport {
	t.Helper()
	stdout, stderr, code := who(t, pid, "--address", fmt.Sprint(address), "--json")
	require.Zero(t, code, stderr)
	var r whoReport
	require.NoError(t, json.Unmarshal([]byte(stdout), &r))
	require.Len(t, r.Blocks, 1)
	require.Equal(t, address, r.Blocks[0].Address)
	return &r
}

// expected is what a case says of one of its blocks.
type expected struct {
	Address  uint64
	Words    []string
	Category string
}

// caseEnvironment is what a case needs: that a block waits for another stream's work longer than the test lasts; IPython.
func caseEnvironment(t *testing.T, cases string) []string {
	t.Helper()
	switch cases {
	case "pending_frees":
		return []string{"STANDIN_EVENT_US=3600000000"}
	case "ipython":
		return []string{"PYTHONPATH=" + installed(t, "ipython==8.37.0")}
	}
	return nil
}

// installed is a folder with a Python package and what it needs, apart from PyTorch's. It is kept beside PyTorch's
// own. more is what else pip installs, or its options.
func installed(t *testing.T, requirement string, more ...string) string {
	t.Helper()
	standin, err := output(filepath.Join(env.testdata, "setup.sh"), "--print", "standin")
	require.NoError(t, err)
	python, err := output(filepath.Join(env.testdata, "setup.sh"), "--print", "python")
	require.NoError(t, err)
	dir := filepath.Join(filepath.Dir(filepath.Dir(standin)), strings.ReplaceAll(requirement, "==", "-"))
	if !exists(dir) {
		pip := []string{"-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-cache-dir", "--target", dir + ".new", requirement}
		_, err := output(python, append(pip, more...)...)
		require.NoError(t, err)
		require.NoError(t, os.Rename(dir+".new", dir))
	}
	return dir
}

// TestWhoCases: each way of holding memory is called what it is.
func TestWhoCases(t *testing.T) {
	for _, script := range []string{"who_python.py", "who_torch.py", "who_serving.py"} {
		list, err := output(filepath.Join(env.testdata, "run"), workload(script), "--list")
		require.NoError(t, err)
		for i, cases := range strings.Fields(list) {
			name := strings.TrimSuffix(script, ".py") + "/" + cases
			if i == 0 {
				name = strings.TrimSuffix(script, ".py") + "/together"
			}
			t.Run(name, func(t *testing.T) { checkCases(t, script, cases) })
		}
	}
}

func checkCases(t *testing.T, script, cases string) {
	t.Helper()
	p := startCases(t, caseEnvironment(t, cases), script, cases)
	r := whoJSON(t, p.pid)
	b, err := os.ReadFile(filepath.Join(p.dir, "expected"))
	require.NoError(t, err)
	var all []expected
	require.NoError(t, json.Unmarshal(b, &all))
	blocks := map[uint64]*whoBlock{}
	for i := range r.Blocks {
		blocks[r.Blocks[i].Address] = &r.Blocks[i]
	}
	bad := 0
	for _, e := range all {
		if why := e.check(blocks[e.Address]); why != "" {
			t.Logf("%v: %s", e.Words, why)
			bad++
		}
	}
	a, without, unasked := checkPaths(t, p, r)
	checkTensors(t, r, a)
	for _, b := range append(without, unasked...) {
		t.Logf("not evaluated: %d B, %s, %s", b.Size, b.Category, b.Name)
	}
	require.Zero(t, bad, "of %d blocks that the cases are about", len(all))
}

// check says what is wrong with the name of a block; empty: nothing.
func (e *expected) check(b *whoBlock) string {
	if b == nil {
		return "is not among the live blocks"
	}
	rest := b.Name
	for _, w := range e.Words {
		_, after, found := strings.Cut(rest, w)
		if !found {
			return fmt.Sprintf("is called %s, %s", b.Name, b.Category)
		}
		rest = after
	}
	if e.Category != "" && e.Category != b.Category {
		return fmt.Sprintf("%s is of %s, not %s", b.Name, b.Category, e.Category)
	}
	return ""
}
