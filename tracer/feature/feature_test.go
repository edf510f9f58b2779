// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package feature

import (
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gputrace/gputrace/bpf"
)

// TestFeatures: the kernel that the tests run on has all of them, and every helper of the compiled programs that is newer than
// the ring buffer is in the list.
func TestFeatures(t *testing.T) {
	for _, f := range All {
		require.NoError(t, f.Probe(), f.Name)
	}
	asked := map[asm.BuiltinFunc]bool{}
	for _, f := range []asm.BuiltinFunc{
		asm.FnProbeReadUser, asm.FnProbeReadKernel, asm.FnTaskStorageGet, asm.FnTaskStorageDelete, asm.FnGetCurrentTaskBtf,
		asm.FnGetAttachCookie, asm.FnFindVma,
	} {
		asked[f] = true
	}
	// As old as the ring buffer, or older (bpf-helpers(7)).
	for _, f := range []asm.BuiltinFunc{
		asm.FnMapLookupElem, asm.FnMapUpdateElem, asm.FnMapDeleteElem, asm.FnGetCurrentPidTgid, asm.FnGetCurrentComm, asm.FnKtimeGetNs,
		asm.FnGetPrandomU32, asm.FnTailCall, asm.FnGetSmpProcessorId,
		asm.FnRingbufReserve, asm.FnRingbufSubmit, asm.FnRingbufDiscard, asm.FnRingbufOutput, asm.FnRingbufQuery,
	} {
		asked[f] = true
	}
	spec, err := bpf.LoadTrace()
	require.NoError(t, err)
	for name, p := range spec.Programs {
		for _, i := range p.Instructions {
			if i.IsBuiltinCall() {
				require.True(t, asked[asm.BuiltinFunc(i.Constant)], "%s calls %s, which is not in All", name, asm.BuiltinFunc(i.Constant))
			}
		}
	}
}

func TestFeatureThatIsMissing(t *testing.T) {
	f := Feature{Name: "no such helper", probe: helper(asm.FnGetCurrentPidTgid + 10000)}
	require.ErrorIs(t, f.Probe(), ErrMissing)
	f = Feature{Name: "not known", probe: func() error { return ebpf.ErrKeyNotExist }}
	require.NotErrorIs(t, f.Probe(), ErrMissing)
}

func TestSystemCalls(t *testing.T) {
	for _, c := range SystemCalls() {
		require.NoError(t, c.Err, c.Name)
	}
}

// TestRefusal: the sentence names the kernel, what it lacks if anything, and what it said, without the verifier's log.
func TestRefusal(t *testing.T) {
	err := error(unix.E2BIG)
	require.Regexp(t, `^Linux \S+ has all that the programs use, and refuses them: argument list too long$`, Refusal(err))
	all := All
	t.Cleanup(func() { All = all })
	lacks := func() error { return ErrMissing }
	All = []Feature{{"a map", "9.1", "", lacks}, {"a luxury", "9.2", "is done without", lacks}, {"a helper", "9.3", "", lacks}}
	require.Regexp(t, `^Linux \S+ cannot be traced on, it lacks a map \(since 9.1\), a helper \(since 9.3\): argument list too long$`,
		Refusal(err))
}
