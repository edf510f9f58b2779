// SPDX-License-Identifier: Apache-2.0

//go:build linux

package holders

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// check asks the process for each path of a report, and compares.
func (j *job) check(t *testing.T, r *Report) {
	t.Helper()
	q := question{Paths: [][]map[string]any{}}
	var asked []*Block
	for i := range r.Blocks {
		if b := &r.Blocks[i]; len(b.Path) > 0 && evaluable(b.Path) {
			q.Paths = append(q.Paths, asQuestion(b.Path))
			asked = append(asked, b)
		}
	}
	q.All = true
	a := j.ask(t, q)
	right := 0
	for i, b := range asked {
		switch {
		case a.Paths[i].Error != "":
			t.Errorf("%#x %s: %s", b.Addr, b.Name(), a.Paths[i].Error)
		case !leadsTo(t, a.Paths[i].Tensor, b):
			t.Errorf("%#x %s: leads to %s", b.Addr, b.Name(), a.Paths[i].Tensor)
		default:
			right++
		}
	}
	checkNames(t, r, a)
	checkTensors(t, r, a)
	t.Logf("%d blocks, %d paths asked, %d right", len(r.Blocks), len(asked), right)
}

// evaluable reports whether Python has an expression for every step.
func evaluable(p Path) bool {
	for i, s := range p {
		switch {
		case s.Kind == StepTemporary, s.Kind == StepNative, s.Kind == StepElided, s.Kind == StepThreadState && s.Name != "":
			return false
		case s.Kind == StepHook && p[i-1].Kind >= StepGradFn, s.Kind == StepSlot && strings.Contains(s.Name, "TensorImpl"):
			return false
		case s.Kind == StepSaved && strings.HasPrefix(p[i-1].Name, "Foreach"): // shows nothing of what it saved
			return false
		}
	}
	return true
}

// checkNames compares with named_parameters, with .grad of them, and with named_buffers.
func checkNames(t *testing.T, r *Report, a *answer) {
	t.Helper()
	names := map[uint64][]string{}
	for _, n := range a.Named {
		names[uint64(n[1].(float64))] = append(names[uint64(n[1].(float64))], n[0].(string))
	}
	for i := range r.Blocks {
		b := &r.Blocks[i]
		want := names[b.Addr]
		if len(want) == 0 {
			continue
		}
		assert.Contains(t, []Category{CategoryParameter, CategoryBuffer, CategoryGradient}, b.Category, b.Name())
		flat := strings.NewReplacer("[", ".", "]", "", "'", "").Replace(b.Name())
		if !slices.ContainsFunc(want, func(name string) bool { return strings.HasSuffix(flat, name) }) {
			t.Errorf("%s: want one of %v", b.Name(), want)
		}
	}
}

// checkTensors compares the tensors that Python knows with those of the report.
func checkTensors(t *testing.T, r *Report, a *answer) {
	t.Helper()
	ours := map[uint64]*Tensor{}
	for i := range r.Blocks {
		for k := range r.Blocks[i].Tensors {
			ours[r.Blocks[i].Tensors[k].Object] = &r.Blocks[i].Tensors[k]
		}
	}
	missing := 0
	for _, want := range a.Tensors {
		got := ours[want.ID]
		if want.Address == 0 || want.Shape == nil || want.Strides == nil {
			continue
		}
		if got == nil { // the question may have made it
			missing++
			continue
		}
		if len(want.Shape) == 0 {
			want.Shape, want.Strides = []int64{}, []int64{}
		}
		assert.Equal(t, want.Shape, got.Shape)
		assert.Equal(t, want.Strides, got.Strides)
		assert.Equal(t, want.Offset, got.Offset)
		assert.Equal(t, want.DType, got.DType)
		if got.RequiresGrad != Unknown {
			assert.Equal(t, want.RequiresGrad, got.RequiresGrad == Yes)
		}
	}
	t.Logf("%d CUDA tensors known to Python, %d of them not in the report", len(a.Tensors), missing)
}

// summary logs how many blocks have what.
func summary(t *testing.T, r *Report) {
	t.Helper()
	complete := map[Truth]int{}
	for i := range r.Blocks {
		b := &r.Blocks[i]
		complete[b.Complete]++
		if len(b.Path) == 0 || b.Complete != Yes {
			t.Logf("%#x %d %s | %s | holders %d missing %d %s", b.Addr, b.Size, b.Category, b.Name(), b.Holders, b.Missing, b.Complete)
		}
	}
	t.Logf("complete %v notes %v stats %+v", complete, r.Notes, r.Stats)
}

// TestCases: each case says what the name of its block must contain; every path is asked for inside.
func TestCases(t *testing.T) {
	for _, file := range []string{"who_python.py", "who_torch.py", "who_serving.py"} {
		t.Run(file, func(t *testing.T) { checkFile(t, file) })
	}
}

func checkFile(t *testing.T, file string) {
	t.Helper()
	for _, cases := range strings.Fields(listCases(t, file)) {
		name := cases
		if strings.Contains(cases, ",") {
			name = "together"
		}
		t.Run(name, func(t *testing.T) { checkCases(t, file, cases) })
	}
}

// listCases returns the cases of a file, a line for each group that runs in one process.
func listCases(t *testing.T, file string) string {
	t.Helper()
	out, err := exec.Command("../../testdata/run", workloads+file, "--list").Output()
	require.NoError(t, err)
	return string(out)
}

func checkCases(t *testing.T, file, cases string) {
	t.Helper()
	j := startJob(t, "READY", workloads+file, "--cases", cases, "--ask", "DIR")
	r, err := Read(t.Context(), j.p, nil)
	require.NoError(t, err)
	summary(t, r)
	byAddr := map[uint64]*Block{}
	for i := range r.Blocks {
		byAddr[r.Blocks[i].Addr] = &r.Blocks[i]
	}
	expected := j.expected(t)
	for _, e := range expected {
		b := byAddr[e.Address]
		if !assert.NotNil(t, b, "block %#x: %v", e.Address, e.Words) {
			continue
		}
		if e.Category != "" {
			assert.Equal(t, e.Category, b.Category.String(), b.Name())
		}
		if !inOrder(b.Name(), e.Words) {
			t.Errorf("%#x is %s: want %v", b.Addr, b.Name(), e.Words)
		}
	}
	j.check(t, r)
	sums(t, r)
}

func inOrder(name string, words []string) bool {
	for _, w := range words {
		_, after, ok := strings.Cut(name, w)
		if !ok {
			return false
		}
		name = after
	}
	return true
}

// sums: the categories add up to the allocator's own total.
func sums(t *testing.T, r *Report) {
	t.Helper()
	var got, want uint64
	for _, c := range r.Totals {
		got += c.Bytes
	}
	for _, d := range r.Devices {
		want += d.Active
	}
	assert.Equal(t, want, got)
}

// TestWorkloads: training scripts, at their end.
func TestWorkloads(t *testing.T) {
	for _, args := range [][]string{
		{"mlp.py", "--steps", "5"}, {"gpt.py", "--steps", "3"}, {"resnet.py", "--steps", "3"}, {"leak.py", "--steps", "5"},
	} {
		t.Run(args[0], func(t *testing.T) {
			run := append([]string{workloads + "who_run.py", "DIR", workloads + args[0]}, args[1:]...)
			j := startJob(t, "DONE", append(run, "--hold", "DIR/hold")...)
			r, err := Read(t.Context(), j.p, nil)
			require.NoError(t, err)
			summary(t, r)
			j.check(t, r)
			sums(t, r)
			for i := range r.Blocks {
				if b := &r.Blocks[i]; b.Category != CategoryWorkspace {
					assert.NotEmpty(t, b.Path, "%#x %s", b.Addr, b.Name())
				}
			}
		})
	}
}
