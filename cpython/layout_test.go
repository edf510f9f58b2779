// SPDX-License-Identifier: Apache-2.0

package cpython

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// headerRow says what a field of the layout is in C: an offset "Type.member", or an expression that starts with "=". The key
// is the first minor version for which it holds. Empty: the version has no such field.
type headerRow struct {
	field string
	c     map[int]string
	// threaded holds instead of c in builds without a GIL.
	threaded map[int]string
}

func (r *headerRow) expression(l *layout) string {
	expressions, at := r.c, 0
	if l.freeThreaded && r.threaded != nil {
		expressions = r.threaded
	}
	for minor := range expressions {
		if minor <= l.minor {
			at = max(at, minor)
		}
	}
	return expressions[at]
}

func all(field, c string) headerRow { return headerRow{field, map[int]string{8: c}, nil} }

// from is a field that versions from a minor one on have.
func from(minor int, field, c string) headerRow {
	return headerRow{field, map[int]string{minor: c}, nil}
}

const iframe = "_PyInterpreterFrame."

var headerRows = []headerRow{
	all("minor", "=PY_MINOR_VERSION"),
	all("desc.TStateThreadID", "PyThreadState.thread_id"),
	{"desc.TStateFrame", map[int]string{8: "PyThreadState.frame", 11: "", 13: "PyThreadState.current_frame"}, nil},
	{"desc.TStateCFrame", map[int]string{10: "PyThreadState.cframe", 13: ""}, nil},
	{"desc.CFrameFrame", map[int]string{11: "_PyCFrame.current_frame", 13: ""}, nil},
	{"desc.CFramePrevious", map[int]string{10: "CFrame.previous", 11: "_PyCFrame.previous", 13: ""}, nil},
	{"desc.FrameCode", map[int]string{8: "PyFrameObject.f_code", 11: iframe + "f_code", 13: iframe + "f_executable"}, nil},
	{"desc.FramePrevious", map[int]string{8: "PyFrameObject.f_back", 11: iframe + "previous"}, nil},
	{"desc.FrameInstr", map[int]string{8: "PyFrameObject.f_lasti", 11: iframe + "prev_instr", 13: iframe + "instr_ptr"}, nil},
	{"desc.FrameOwner", map[int]string{11: iframe + "is_entry", 12: iframe + "owner"}, nil},
	{"desc.FrameSize", map[int]string{
		8: "=(offsetof(PyFrameObject, f_lasti) + 4 + 7) / 8 * 8", 11: "=offsetof(_PyInterpreterFrame, localsplus)",
	}, nil},
	{"desc.FrameCopy", nil, map[int]string{14: iframe + "tlbc_index"}},
	{"desc.CodeCopies", nil, map[int]string{14: "PyCodeObject.co_tlbc"}},
	from(11, "desc.CodeStart", "PyCodeObject.co_code_adaptive"),
	all("desc.ObjectHead", "=sizeof(PyObject)"),
	{"desc.InstrSize", map[int]string{
		8: "=sizeof(((PyFrameObject *)0)->f_lasti)", 11: "=sizeof(((_PyInterpreterFrame *)0)->prev_instr)",
		13: "=sizeof(((_PyInterpreterFrame *)0)->instr_ptr)",
	}, nil},
	{"desc.OwnerShim", map[int]string{8: "=0", 12: "=FRAME_OWNED_BY_CSTACK", 14: "=FRAME_OWNED_BY_INTERPRETER"}, nil},
	all("runtimeInterpreters", "_PyRuntimeState.interpreters.head"),
	{"runtimeKey", map[int]string{8: "_PyRuntimeState.gilstate.autoTSSkey", 12: "_PyRuntimeState.autoTSSkey", 15: ""}, nil},
	all("interpNext", "PyInterpreterState.next"),
	{"interpThreads", map[int]string{8: "PyInterpreterState.tstate_head", 11: "PyInterpreterState.threads.head"}, nil},
	all("tstatePrev", "PyThreadState.prev"),
	all("tstateNext", "PyThreadState.next"),
	all("tstateInterp", "PyThreadState.interp"),
	from(11, "tstateNativeID", "PyThreadState.native_thread_id"),
	all("codeFilename", "PyCodeObject.co_filename"),
	all("codeName", "PyCodeObject.co_name"),
	from(11, "codeQualname", "PyCodeObject.co_qualname"),
	all("codeFirstLine", "PyCodeObject.co_firstlineno"),
	{"codeLineTable", map[int]string{8: "PyCodeObject.co_lnotab", 10: "PyCodeObject.co_linetable"}, nil},
	{"codeBasic", map[int]string{8: "=sizeof(PyCodeObject)", 11: ""}, nil},
	{"frameBasic", map[int]string{8: "=sizeof(PyFrameObject)", 11: ""}, nil},
	from(11, "generatorBasic", "=offsetof(PyGenObject, gi_iframe) + offsetof(_PyInterpreterFrame, localsplus)"),
	all("asciiSize", "=sizeof(PyASCIIObject)"),
	all("compactSize", "=sizeof(PyCompactUnicodeObject)"),
	all("textKind", "=kind_bit()"),
}

// notInHeaders are the fields that say how to use the others; the live tests prove them.
var notInHeaders = map[string]bool{
	"desc.TLSOffset": true, "desc.TLSBlock": true, "desc.PthreadBytes": true, "desc.Entry": true,
	"debugOffsets": true, "lines": true, "freeThreaded": true,
}

// movedRows are the constants that hold for all versions with a GIL; without one they are further behind by as much as the
// head of an object is longer.
var movedRows = map[string]uint64{
	"PyObject.ob_type": ObjectType, "PyVarObject.ob_size": ObjectSize, "PyTypeObject.tp_name": TypeName,
	"PyTypeObject.tp_flags": TypeFlags, "PyTypeObject.tp_basicsize": TypeBasicSize, "PyTypeObject.tp_members": TypeMembers,
	"PyBytesObject.ob_sval": BytesHeader, "PyASCIIObject.length": textLength, "PyASCIIObject.state": textState,
}

// sharedRows are the constants that hold for all versions.
var sharedRows = map[string]uint64{
	"=Py_TPFLAGS_UNICODE_SUBCLASS": wantedTypes[typeStr].flag, "=Py_TPFLAGS_BYTES_SUBCLASS": wantedTypes[typeBytes].flag,
	"=sizeof(PyMemberDef)": MemberSize, "PyMemberDef.offset": MemberOffset,
}

// The table of layouts against the headers that each release installs. Those of a build without a GIL are the same files.
func TestLayoutsMatchHeaders(t *testing.T) {
	known := map[int]bool{}
	for i := range layouts {
		l := &layouts[i]
		known[l.minor] = true
		t.Run(l.String(), func(t *testing.T) {
			checks := layoutChecks(t, l)
			got := compileAndRun(t, l, checks)
			for j, c := range checks {
				assert.Equal(t, got[j], c.want, c.name)
			}
		})
	}
	require.Len(t, known, len(installed), "a version that no other test runs")
}

// String is the version of a row, for the names of tests.
func (l *layout) String() string {
	return Version{Major: 3, Minor: l.minor, Micro: -1, FreeThreaded: l.freeThreaded}.String()
}

// headerCheck is a value of ours and the C expression that it must equal.
type headerCheck struct {
	name, expression string
	want             uint64
}

func layoutChecks(t *testing.T, l *layout) []headerCheck {
	t.Helper()
	var out []headerCheck
	fields := flatten("", reflect.ValueOf(*l))
	for _, row := range headerRows {
		value, ok := fields[row.field]
		require.True(t, ok, "layout has no field %s", row.field)
		delete(fields, row.field)
		if x := row.expression(l); x != "" {
			out = append(out, headerCheck{row.field, x, value})
		} else {
			assert.Equal(t, uint64(NoField), value, row.field)
		}
	}
	for field := range fields {
		assert.True(t, notInHeaders[field], "field %s is not compared", field)
	}
	for x, value := range sharedRows {
		out = append(out, headerCheck{x, x, value})
	}
	for x, value := range movedRows {
		out = append(out, headerCheck{x, x, value + l.shift()})
	}
	// The pointer of a str that is not compact lies behind the larger header.
	out = append(out, headerCheck{"str data", "PyUnicodeObject.data", uint64(l.compactSize)})
	if l.debugOffsets {
		for i := range debugWords {
			if w := &debugWords[i]; l.word(w) != 0 {
				out = append(out, headerCheck{w.name, "_Py_DebugOffsets." + w.name, 8 * uint64(l.word(w))})
			}
		}
	}
	return out
}

func flatten(prefix string, v reflect.Value) map[string]uint64 {
	out := map[string]uint64{}
	for i := range v.NumField() {
		name, f := prefix+v.Type().Field(i).Name, v.Field(i)
		switch {
		case f.Kind() == reflect.Struct:
			for k, x := range flatten(name+".", f) {
				out[k] = x
			}
		case f.CanUint():
			out[name] = f.Uint()
		case f.CanInt():
			out[name] = uint64(f.Int())
		default:
			out[name] = 0
		}
	}
	return out
}

// headerPrelude includes what the expressions name.
const headerPrelude = `#define Py_BUILD_CORE 1
#include <Python.h>
#include <frameobject.h>
#include <structmember.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#if PY_MINOR_VERSION > 8
#include "internal/pycore_runtime.h"
#include "internal/pycore_interp.h"
#else
#include "internal/pycore_pystate.h"
#endif
#if PY_MINOR_VERSION > 10
#include "internal/pycore_frame.h"
#endif
#if PY_MINOR_VERSION > 13
#include "internal/pycore_genobject.h"
#include "internal/pycore_interpframe.h"
#endif
static size_t kind_bit(void) {
	PyASCIIObject o;
	unsigned state;
	memset(&o, 0, sizeof o);
	o.state.kind = 1;
	memcpy(&state, &o.state, sizeof state);
	return __builtin_ctz(state);
}
int main(void) {
`

// compileAndRun prints C expressions with the headers of a release.
func compileAndRun(t *testing.T, l *layout, checks []headerCheck) []uint64 {
	t.Helper()
	var src strings.Builder
	src.WriteString(headerPrelude)
	for _, c := range checks {
		if x, ok := strings.CutPrefix(c.expression, "="); ok {
			fmt.Fprintf(&src, "printf(\"%%zu\\n\", (size_t)(%s));\n", x)
			continue
		}
		typ, member, _ := strings.Cut(c.expression, ".")
		fmt.Fprintf(&src, "printf(\"%%zu\\n\", offsetof(%s, %s));\n", typ, member)
	}
	src.WriteString("}\n")
	dir := t.TempDir()
	file, binaryFile := filepath.Join(dir, "offsets.c"), filepath.Join(dir, "offsets")
	require.NoError(t, os.WriteFile(file, []byte(src.String()), 0o600))
	args := []string{"-w", file, "-o", binaryFile}
	if l.freeThreaded {
		args = append(args, "-DPy_GIL_DISABLED=1")
	}
	include := includeOf(t, l.minor)
	args = append(args, "-I"+include, "-I"+filepath.Join(include, "internal"), "-I"+filepath.Dir(include))
	out, err := exec.Command("gcc", args...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	out, err = exec.Command(binaryFile).Output()
	require.NoError(t, err)
	var values []uint64
	for _, line := range strings.Fields(string(out)) {
		var v uint64
		_, err := fmt.Sscan(line, &v)
		require.NoError(t, err)
		values = append(values, v)
	}
	require.Len(t, values, len(checks))
	return values
}

func TestDebugOffsetsAreBounded(t *testing.T) {
	for i := range layouts {
		row := &layouts[i]
		if !row.debugOffsets {
			continue
		}
		t.Run(row.String(), func(t *testing.T) {
			good := debugTable(row)
			got, err := row.withDebugOffsets(image{0x1000: good}, 0x1000)
			require.NoError(t, err)
			assert.Equal(t, row, got)

			moved := debugTable(row)
			setWord(t, row, moved, "interpreter_frame.owner", 84)
			got, err = row.withDebugOffsets(image{0x1000: moved}, 0x1000)
			require.NoError(t, err)
			assert.Equal(t, uint16(84), got.desc.FrameOwner)
			assert.Equal(t, uint16(88), got.desc.FrameSize)

			for name, value := range map[string]uint64{
				"interpreter_state.threads_head": maxLargeOffset, "code_object.name": maxSmallOffset,
				"interpreter_frame.instr_ptr": ^uint64(0), "interpreter_frame.owner": MaxFrameSize,
			} {
				b := debugTable(row)
				setWord(t, row, b, name, value)
				_, err := row.withDebugOffsets(image{0x1000: b}, 0x1000)
				if value == MaxFrameSize {
					name = "bytes of a frame"
				}
				assert.ErrorContains(t, err, name)
			}
			_, err = row.withDebugOffsets(image{0x1000: good[:100]}, 0x1000)
			assert.ErrorContains(t, err, "read debug offsets")
		})
	}
}

func setWord(t *testing.T, l *layout, table []byte, name string, value uint64) {
	t.Helper()
	for i := range debugWords {
		if debugWords[i].name == name {
			binary.LittleEndian.PutUint64(table[8*l.word(&debugWords[i]):], value)
			return
		}
	}
	require.Fail(t, "no word "+name)
}

// debugTable is _Py_DebugOffsets as an interpreter with this layout has it.
func debugTable(l *layout) []byte {
	b := make([]byte, 8*64)
	copy(b, debugCookie)
	binary.LittleEndian.PutUint64(b[8:], uint64(3<<24|l.minor<<16|0xf0))
	c := *l
	for i := range debugWords {
		w := &debugWords[i]
		switch at := l.word(w); {
		case at == 0:
		case w.small != nil:
			binary.LittleEndian.PutUint64(b[8*at:], uint64(*w.small(&c)))
		default:
			binary.LittleEndian.PutUint64(b[8*at:], uint64(*w.large(&c)))
		}
	}
	return b
}
