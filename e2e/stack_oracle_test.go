// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
)

// stackOracle is what a run of pystacks.py wrote down.
type stackOracle struct {
	calls  []stackCall
	stacks map[int][]pyFrame
	// native finds the return addresses of a call by the key of its event; 0: there are none.
	native    map[string]uint64
	addresses map[uint64][]uint64
	// faults are what check has found: few stacks are made of many calls.
	faults map[stackPair]string
}

// stackPair is a stack as the tracer has it, and as the oracles do.
type stackPair struct {
	ours   event.StackID
	python int
	native uint64
	shape  string
}

// readStackOracle reads the files calls and native of a folder.
func readStackOracle(t *testing.T, dir string) *stackOracle {
	t.Helper()
	o := &stackOracle{
		stacks: map[int][]pyFrame{}, native: map[string]uint64{}, addresses: map[uint64][]uint64{}, faults: map[stackPair]string{},
	}
	eachLine(t, filepath.Join(dir, "calls"), func(b []byte) {
		var line struct {
			stackCall
			Frames []pyFrame `json:"frames"`
		}
		require.NoError(t, json.Unmarshal(b, &line), "%s", b)
		if line.Frames != nil {
			o.stacks[line.Stack] = line.Frames
		} else {
			o.calls = append(o.calls, line.stackCall)
		}
	})
	eachLine(t, filepath.Join(dir, "native"), func(b []byte) { o.addNative(t, strings.Fields(string(b))) })
	require.NotEmpty(t, o.calls)
	return o
}

// addNative takes a line that probe_record wrote (testdata/programs/fakec10.c).
func (o *stackOracle) addNative(t *testing.T, f []string) {
	t.Helper()
	if f[0] == "S" {
		o.addresses[hex(t, f[1])] = nil
		for _, pc := range f[2:] {
			o.addresses[hex(t, f[1])] = append(o.addresses[hex(t, f[1])], hex(t, pc))
		}
		return
	}
	kind := event.KindAlloc
	if strings.HasPrefix(f[2], "-") {
		kind = event.KindFree
	}
	o.native[fmt.Sprint(kind, hex(t, f[1]))] = hex(t, f[3])
}

func hex(t *testing.T, s string) uint64 {
	t.Helper()
	v, err := strconv.ParseUint(s, 16, 64)
	require.NoError(t, err)
	return v
}

// check says what is wrong with the stack of a call; empty: nothing.
func (o *stackOracle) check(tr *trace, e *event.Event, c *stackCall, native uint64) string {
	pair := stackPair{e.Stack, c.Stack, native, c.Shape}
	fault, known := o.faults[pair]
	if !known {
		pcs := o.addresses[native]
		if pcs != nil {
			pcs = pcs[1:] // that of record, in probe_alloc, where ours is behind the call of the report function
		}
		fault = checkStack(tr, e, c, o.stacks[c.Stack], pcs)
		o.faults[pair] = fault
	}
	return fault
}

// returnAddresses are those of a stack, without the function of the probe and its caller.
func returnAddresses(st *event.Stack) []uint64 {
	out := []uint64{}
	for _, f := range st.Frames {
		if f.Kind == event.FrameNative && !f.Inlined {
			out = append(out, f.Addr)
		}
	}
	return out[min(2, len(out)):]
}
