// SPDX-License-Identifier: Apache-2.0

//go:build linux

package holders

import (
	"bufio"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/cpython/pyobject"
	"github.com/gputrace/gputrace/inspect/holders/internal/torchlayout"
	"github.com/gputrace/gputrace/process"
)

// job is a program on the stand-in that judges paths (testdata/workloads/who_answer.py).
type job struct {
	p      *process.Process
	folder string
}

// workloads is where the programs are.
const workloads = "../../testdata/workloads/"

// startJob runs a program until it prints a word. It ends when the test does.
func startJob(t testing.TB, word string, args ...string) *job {
	t.Helper()
	j := &job{folder: t.TempDir()}
	for i := range args {
		args[i] = strings.ReplaceAll(args[i], "DIR", j.folder)
	}
	cmd := exec.Command("../../testdata/run", args...)
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	lines := bufio.NewReader(stdout)
	for {
		line, err := lines.ReadString('\n')
		if strings.HasPrefix(line, word) {
			break
		}
		require.NoError(t, err, "%s did not print %s", args, word)
	}
	go func() { _, _ = io.Copy(io.Discard, lines) }()
	j.p, err = process.Open(cmd.Process.Pid)
	require.NoError(t, err)
	return j
}

// question and answer are what the job reads and writes.
type question struct {
	Paths [][]map[string]any `json:"paths"`
	All   bool               `json:"all,omitempty"`
}

type answer struct {
	Paths []struct {
		Tensor json.RawMessage
		Error  string
	}
	Allocated []uint64
	Named     [][3]any
	Tensors   []judged
}

type judged struct {
	ID           uint64
	Address      uint64
	Shape        []int64
	Strides      []int64
	Offset       int64
	DType        string
	RequiresGrad bool `json:"requires_grad"`
	Leaf         bool
}

// ask waits for the answer to a question.
func (j *job) ask(t testing.TB, q question) *answer {
	t.Helper()
	path := filepath.Join(j.folder, "answer")
	_ = os.Remove(path)
	b, err := json.Marshal(q)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(j.folder, "ask"), append(b, '\n'), 0))
	var raw []byte
	require.Eventually(t, func() bool {
		raw, err = os.ReadFile(path)
		return err == nil
	}, time.Minute, 5*time.Millisecond, "no answer")
	var a answer
	require.NoError(t, json.Unmarshal(raw, &a))
	return &a
}

// stepNames are what the judge calls the kinds of step.
var stepNames = map[StepKind]string{
	StepModule: "module", StepFrame: "frame", StepException: "exception", StepThreadState: "thread_state", StepGarbage: "garbage",
	StepLocal: "local", StepAttribute: "attribute", StepIndex: "index", StepKey: "key", StepKeyItself: "key_itself",
	StepCell: "cell", StepDict: "dict", StepSuspended: "suspended", StepFrameObject: "frame_object", StepSlot: "slot",
	StepGrad: "grad", StepGradFn: "grad_fn", StepNext: "next", StepSaved: "saved", StepVariable: "variable", StepBase: "base",
	StepHook: "hook", StepContext: "context", StepNode: "node", StepStorage: "storage", StepTemporary: "temporary",
	StepNative: "native", StepOwnHook: "own_hook",
}

var keyNames = map[KeyKind]string{KeyString: "string", KeyInt: "int", KeyObject: "object"}

func asQuestion(p Path) []map[string]any {
	var out []map[string]any
	for _, s := range p {
		m := map[string]any{"kind": stepNames[s.Kind], "name": s.Name, "index": s.Index, "addr": s.Addr, "indices": []int64{s.Index}}
		if s.KeyKind != KeyNone {
			m["key_kind"], m["key_addr"] = keyNames[s.KeyKind], s.KeyAddr
		}
		if f := s.Frame; f != nil {
			m["frame"] = map[string]any{"thread": f.Thread, "depth": f.Depth, "function": f.Function, "file": f.File}
		}
		out = append(out, m)
	}
	return out
}

// leadsTo reports whether an answer has the address of a block: one of them, where the question left it open.
func leadsTo(t testing.TB, raw json.RawMessage, b *Block) bool {
	t.Helper()
	var many []judged
	if json.Unmarshal(raw, &many) != nil {
		var one judged
		require.NoError(t, json.Unmarshal(raw, &one), "%s", raw)
		many = []judged{one}
	}
	for _, o := range many {
		if o.Address >= b.Addr && o.Address < b.Addr+b.Size {
			return true
		}
	}
	return false
}

// expectation is what a case says of one of its blocks.
type expectation struct {
	Address  uint64
	Words    []string
	Category string
}

func (j *job) expected(t testing.TB) []expectation {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(j.folder, "expected"))
	require.NoError(t, err)
	var out []expectation
	require.NoError(t, json.Unmarshal(b, &out))
	return out
}

// TestOwnedBy: memory without a tensor is a workspace, unless what owns it is a storage; an object of autograd owns none.
func TestOwnedBy(t *testing.T) {
	for class, want := range map[string]Category{
		"cuBLAS workspace":                     CategoryWorkspace,
		"static data of libfoo.so":             CategoryWorkspace,
		"c10::StorageImpl":                     CategoryNative,
		"torch::autograd::AutogradMeta":        CategoryUnknown,
		"torch::autograd::generated::MulBack0": CategoryUnknown,
		"":                                     CategoryUnknown,
	} {
		b := &Block{Category: CategoryUnknown, Why: "no tensor uses it"}
		new(assembly).ownedBy(b, class)
		require.Equal(t, want, b.Category, class)
		require.Equal(t, want == CategoryUnknown, b.Why != "", class)
		require.Equal(t, want != CategoryUnknown, b.Class != "", class)
	}
}

// TestStorageWithoutLayout: a storage is not called C++'s when tensors could not be found, as of a job that replaced all of
// them while it was copied: Python may hold it.
func TestStorageWithoutLayout(t *testing.T) {
	a := &assembly{reading: &reading{torch: &torchlayout.Reader{}, heap: &pyobject.Heap{}}}
	require.False(t, a.torch.KnowsTensors())
	for class, want := range map[string]Category{storageClass: CategoryUnknown, "cuBLAS workspace": CategoryWorkspace} {
		b := &Block{Category: CategoryUnknown, Why: "tensors were not found"}
		a.bareBlock(b, class)
		require.Equal(t, want, b.Category, class)
		require.Equal(t, want == CategoryUnknown, b.Why != "", class)
	}
}
