// SPDX-License-Identifier: Apache-2.0

//go:build linux && amd64

package tracer

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/bpf"
)

// TestFeatures: the kernel that the tests run on has all of them, and every helper of the compiled programs that is newer than
// the ring buffer is in the list.
func TestFeatures(t *testing.T) {
	for _, f := range Features {
		require.NoError(t, f.Probe(), f.Name)
	}
	asked := map[asm.BuiltinFunc]bool{}
	for _, f := range []asm.BuiltinFunc{
		asm.FnProbeReadUser, asm.FnProbeReadKernel, asm.FnTaskStorageGet, asm.FnTaskStorageDelete, asm.FnGetCurrentTaskBtf, asm.FnGetAttachCookie, asm.FnFindVma,
	} {
		asked[f] = true
	}
	// As old as the ring buffer, or older (bpf-helpers(7)).
	for _, f := range []asm.BuiltinFunc{
		asm.FnMapLookupElem, asm.FnMapUpdateElem, asm.FnMapDeleteElem, asm.FnGetCurrentPidTgid, asm.FnGetCurrentComm, asm.FnKtimeGetNs, asm.FnGetPrandomU32, asm.FnTailCall, asm.FnGetSmpProcessorId,
		asm.FnRingbufReserve, asm.FnRingbufSubmit, asm.FnRingbufDiscard, asm.FnRingbufOutput, asm.FnRingbufQuery,
	} {
		asked[f] = true
	}
	spec, err := bpf.LoadTrace()
	require.NoError(t, err)
	for name, p := range spec.Programs {
		for _, i := range p.Instructions {
			if i.IsBuiltinCall() {
				require.True(t, asked[asm.BuiltinFunc(i.Constant)], "%s calls %s, which is not in Features", name, asm.BuiltinFunc(i.Constant))
			}
		}
	}
}

func TestFeatureThatIsMissing(t *testing.T) {
	f := Feature{Name: "no such helper", probe: helper(asm.FnGetCurrentPidTgid + 10000)}
	require.ErrorIs(t, f.Probe(), ErrNoFeature)
	f = Feature{Name: "not known", probe: func() error { return ebpf.ErrKeyNotExist }}
	require.NotErrorIs(t, f.Probe(), ErrNoFeature)
}

func TestSystemCalls(t *testing.T) {
	for _, c := range SystemCalls() {
		require.NoError(t, c.Err, c.Name)
	}
}

// TestSelfRights: which capabilities each way of attaching takes, as docs/privileges.md says. We run ourselves as nobody.
func TestSelfRights(t *testing.T) {
	if how := os.Getenv(childTest); how != "" {
		_, err := TestAttach(&Options{PerfUprobes: how == "perf"})
		fmt.Println("attach:", err)
		return
	}
	for _, c := range []struct{ how, rights, want string }{
		{"multi", "+bpf,+perfmon", "attach: <nil>"},
		{"multi", "+bpf", "operation not permitted"},
		{"multi", "+perfmon", "operation not permitted"},
		{"perf", "+bpf,+perfmon", "permission denied"},
		{"perf", "+sys_admin", "attach: <nil>"},
	} {
		require.Contains(t, runAsNobody(t, t.Name(), c.how, c.rights), c.want, "%s with %s", c.how, c.rights)
	}
}

// childTest says to a test that it runs in a process of its own, and how.
const childTest = "GPUTRACE_TEST_CHILD"

// runAsNobody runs a test of ours in a process with these capabilities only, and gives what it prints.
func runAsNobody(t *testing.T, test, how, rights string) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "gputrace-tracer-") // below t.TempDir another user may not even look
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o755))
	program := filepath.Join(dir, "test")
	require.NoError(t, exec.Command("cp", os.Args[0], program).Run())
	cmd := exec.Command("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all,"+rights, "--ambient-caps=-all,"+rights,
		program, "-test.run", "^"+test+"$")
	cmd.Dir = "/"
	cmd.Env = append(os.Environ(), childTest+"="+how)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return string(out)
}
