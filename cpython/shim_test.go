// SPDX-License-Identifier: Apache-2.0

package cpython

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "TestShimLayouts writes what the macOS shim knows of CPython")

// TestShimLayouts: the shim for macOS reads Python's frames by the same offsets as we do.
func TestShimLayouts(t *testing.T) {
	const file = "../darwin/shim/layouts.h"
	want := shimLayouts()
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(want), 0o644))
	}
	have, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, want, string(have), "go test ./cpython -run TestShimLayouts -update")
}

const shimHead = `/* SPDX-License-Identifier: Apache-2.0 */
/* What differs between versions of CPython, written by TestShimLayouts from cpython/layout.go: offsets in bytes, of 64-bit builds.
 * A version that is not here has no Python frames. */
#pragma once
#include <stdint.h>

#define NO_FIELD 0xffff

/* How the frames of one activation of the eval loop end; cpython.EntryKind says more. */
enum { ENTRY_EACH = 1, ENTRY_FLAG = 2, ENTRY_SHIM = 3, ENTRY_CODE = 4 };

/* clang-format off */
struct python_layout {
	uint8_t minor, free_threaded;
	uint8_t entry, owner_shim, instr_size, text_kind;
	uint16_t object;
	uint16_t tstate_frame, tstate_cframe, cframe_frame;
	uint16_t code, previous, instr, owner;
	uint16_t filename, name, qualname, first_line, line_table;
	uint16_t ascii, compact;
};

static const struct python_layout python_layouts[] = {
`

func shimLayouts() string {
	var b strings.Builder
	b.WriteString(shimHead)
	for i := range layouts {
		l := &layouts[i]
		d := &l.desc
		qualname, state := l.codeQualname, d.TStateFrame
		if qualname == NoField {
			qualname = l.codeName
		}
		free := 0
		if l.freeThreaded {
			free = 1
		}
		fmt.Fprintf(&b, "\t{ %d, %d, %d, %d, %d, %d, %d, %s, %s, %s, %d, %d, %d, %s, %d, %d, %d, %d, %d, %d, %d },\n",
			l.minor, free, d.Entry, d.OwnerShim, d.InstrSize, l.textKind, d.ObjectHead,
			field(state), field(d.TStateCFrame), field(d.CFrameFrame), d.FrameCode, d.FramePrevious, d.FrameInstr, field(d.FrameOwner),
			l.codeFilename, l.codeName, qualname, l.codeFirstLine, l.codeLineTable, l.asciiSize, l.compactSize)
	}
	b.WriteString("};\n/* clang-format on */\n")
	return b.String()
}

func field(offset uint16) string {
	if offset == NoField {
		return "NO_FIELD"
	}
	return fmt.Sprint(offset)
}
