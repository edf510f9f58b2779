// SPDX-License-Identifier: Apache-2.0

//go:build linux

package inspect

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gputrace/gputrace/symbolize"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// emptyCache and getDeviceStats are how the functions of PyTorch 1.13.1 begin.
const (
	emptyCache = "push %r13; push %r12; push %rbp; push %rbx; sub $8,%rsp; mov list(%rip),%rax; mov list+8(%rip),%r12; cmp %r12,%rax; " +
		"je 1f; mov other(%rip),%r13; 1: ret"
	getDeviceStats = "push %r12; push %rbp; push %rbx; sub $0x20,%rsp; mov list(%rip),%rdx; mov list+8(%rip),%rax; mov %esi,4(%rsp); sub " +
		"%rdx,%rax; sar $3,%rax; ret"
	get = "lea other(%rip),%rax; ret"
)

// assembleStatic makes a library with one exported function for each body, and the objects that they use.
func assembleStatic(t testing.TB, bodies ...string) *symbolize.File {
	t.Helper()
	var b strings.Builder
	for i, body := range bodies {
		name := fmt.Sprintf("_ZN3c104cuda20CUDACachingAllocator2f%dEv", i)
		fmt.Fprintf(&b, ".globl %[1]s\n.type %[1]s,@function\n%[1]s: endbr64\n%[2]s\n.size %[1]s,.-%[1]s\n", name, body)
	}
	b.WriteString(".bss\n.balign 64\n.globl front\n.type front,@object\nfront: .zero 112\nlist: .zero 24\nother: .zero 24\n")
	dir := t.TempDir()
	source, lib := filepath.Join(dir, "static.s"), filepath.Join(dir, "static.so")
	require.NoError(t, os.WriteFile(source, []byte(b.String()), 0o600))
	run(t, "gcc", "-shared", "-nostdlib", "-o", lib, source)
	return openFile(t, lib)
}

func TestFindStatic(t *testing.T) {
	const front = 112 // bytes before the list
	for _, c := range []struct {
		name   string
		bodies []string
		found  bool
	}{
		{"as in 1.13.1", []string{emptyCache, getDeviceStats, get}, true},
		{"end first", []string{emptyCache, "mov list+8(%rip),%rdx; mov list(%rip),%rax; ret"}, true},
		{"the likeliest", []string{"mov other(%rip),%rdx; mov other+8(%rip),%rax; ret", emptyCache, getDeviceStats}, true},
		{"only one function", []string{emptyCache, get}, false},
		{"behind a jump", []string{"jmp 1f; 1: mov list(%rip),%rdx; mov list+8(%rip),%rax; ret", emptyCache}, false},
		{"half words", []string{"mov list(%rip),%edx; mov list+8(%rip),%eax; ret", emptyCache}, false},
		{"stores", []string{"mov %rdx,list(%rip); mov %rax,list+8(%rip); ret", emptyCache}, false},
		{"other words", []string{"mov list(%rip),%rdx; mov list+16(%rip),%rax; ret", emptyCache}, false},
		{"nothing", []string{get}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := assembleStatic(t, c.bodies...)
			a := libraries[0].findStatic(nil, f, 0x1000)
			if !c.found {
				require.Nil(t, a)
				return
			}
			require.NotNil(t, a)
			symbol, ok := f.Find("front")
			require.True(t, ok)
			assert.Equal(t, []uint64{symbol.Addr + front}, a.vectors)
			assert.Equal(t, uint64(0x1000), a.native)
			assert.False(t, a.guessedVectors)
		})
	}
}
