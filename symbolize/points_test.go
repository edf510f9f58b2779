// SPDX-License-Identifier: Apache-2.0

package symbolize

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

// probing is a library with probes of two providers, whose notes were made for another address of their base when a number is added.
const probing = `
.macro probe provider, name, semaphore, args
1: nop
.pushsection .note.stapsdt,"","note"
.balign 4
.4byte 3f-2f, 5f-4f, 3
2: .asciz "stapsdt"
3: .balign 4
4: .8byte 1b-MOVED, base-MOVED, \semaphore
.asciz "\provider", "\name", "\args"
5: .balign 4
.popsection
.endm
.section .stapsdt.base,"a"
base: .byte 0
.section .probes,"aw"
.2byte 0
counter: .2byte 0
.text
.globl f
.type f, @function
f:
probe otel_memory, alloc, counter-MOVED, "8@%rdi 8@%rsi 8@%rdx"
probe other, alloc, 0, ""
probe otel_memory, free, 0, "8@%rax"
ret
.size f, .-f
`

// TestPoints compares the probes of a file with those that readelf shows.
func TestPoints(t *testing.T) {
	shown := regexp.MustCompile(`Provider: otel_memory\s+Name: (\w+)\s+Location: 0x(\w+), Base: 0x\w+, Semaphore: 0x(\w+)\s+Arguments: (.*)`)
	file := build(t, "points.s", probing, "-Wa,--defsym,MOVED=0")
	var want []string
	for _, m := range shown.FindAllStringSubmatch(output(t, "readelf", "-n", file), -1) {
		want = append(want, fmt.Sprint(m[1:]))
	}
	require.Len(t, want, 2)
	for _, moved := range []string{"0", "4096"} { // linked again elsewhere
		f := open(t, build(t, "points"+moved+".s", probing, "-Wa,--defsym,MOVED="+moved))
		var got []string
		for _, p := range f.Points("otel_memory") {
			got = append(got, fmt.Sprint([]string{p.Name, fmt.Sprintf("%016x", p.Addr), fmt.Sprintf("%016x", p.Semaphore), p.Args}))
		}
		require.Equal(t, want, got, "notes made for an address %s lower", moved)
		require.Len(t, f.Points("other"), 1)
		require.Empty(t, f.Points("otel"))
	}
	require.Empty(t, open(t, libc(t)).Points("otel_memory"))
}

// FuzzPoints edits a file with probes. What is found is in the bounds that callers rely on.
func FuzzPoints(f *testing.F) {
	image, err := os.ReadFile(filepath.Clean(build(f, "points.s", probing, "-Wa,--defsym,MOVED=0")))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(uint32(0), uint64(0))
	f.Fuzz(func(t *testing.T, at uint32, word uint64) {
		edited := append([]byte(nil), image...)
		binary.LittleEndian.PutUint64(edited[at%uint32(len(edited)-8):], word)
		e, err := OpenBytes(edited, "fuzz")
		if err != nil {
			return
		}
		points := e.Points("otel_memory")
		require.LessOrEqual(t, len(points), maxPoints)
		for _, p := range points {
			require.LessOrEqual(t, len(p.Name)+len(p.Args), 2*maxPointText)
			e.FileOffset(p.Addr)
		}
	})
}
