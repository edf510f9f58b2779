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

// headerRow says what a field of the layout is in C, per minor version: an offset "Type.member", or an expression that
// starts with "=". Empty: the version has no such field.
type headerRow struct {
	field                  string
	py10, py11, py12, py13 string
}

func (r *headerRow) expression(minor int) string {
	return map[int]string{10: r.py10, 11: r.py11, 12: r.py12, 13: r.py13}[minor]
}

func all(field, c string) headerRow { return headerRow{field, c, c, c, c} }

const (
	iframe     = "_PyInterpreterFrame."
	iframeSize = "=offsetof(_PyInterpreterFrame, localsplus)"
)

var headerRows = []headerRow{
	all("minor", "=PY_MINOR_VERSION"),
	all("desc.TStateThreadID", "PyThreadState.thread_id"),
	{"desc.TStateFrame", "PyThreadState.frame", "", "", "PyThreadState.current_frame"},
	{"desc.TStateCFrame", "PyThreadState.cframe", "PyThreadState.cframe", "PyThreadState.cframe", ""},
	{"desc.CFrameFrame", "", "_PyCFrame.current_frame", "_PyCFrame.current_frame", ""},
	{"desc.CFramePrevious", "CFrame.previous", "_PyCFrame.previous", "_PyCFrame.previous", ""},
	{"desc.FrameCode", "PyFrameObject.f_code", iframe + "f_code", iframe + "f_code", iframe + "f_executable"},
	{"desc.FramePrevious", "PyFrameObject.f_back", iframe + "previous", iframe + "previous", iframe + "previous"},
	{"desc.FrameInstr", "PyFrameObject.f_lasti", iframe + "prev_instr", iframe + "prev_instr", iframe + "instr_ptr"},
	{"desc.FrameOwner", "", iframe + "is_entry", iframe + "owner", iframe + "owner"},
	{"desc.FrameSize", "=(offsetof(PyFrameObject, f_lasti) + 4 + 7) / 8 * 8", iframeSize, iframeSize, iframeSize},
	{
		"desc.InstrSize", "=sizeof(((PyFrameObject *)0)->f_lasti)", "=sizeof(((_PyInterpreterFrame *)0)->prev_instr)",
		"=sizeof(((_PyInterpreterFrame *)0)->prev_instr)", "=sizeof(((_PyInterpreterFrame *)0)->instr_ptr)",
	},
	{"desc.OwnerShim", "=0", "=0", "=FRAME_OWNED_BY_CSTACK", "=FRAME_OWNED_BY_CSTACK"},
	all("runtimeInterpreters", "_PyRuntimeState.interpreters.head"),
	{
		"runtimeKey", "_PyRuntimeState.gilstate.autoTSSkey", "_PyRuntimeState.gilstate.autoTSSkey", "_PyRuntimeState.autoTSSkey",
		"_PyRuntimeState.autoTSSkey",
	},
	all("interpNext", "PyInterpreterState.next"),
	{
		"interpThreads", "PyInterpreterState.tstate_head", "PyInterpreterState.threads.head", "PyInterpreterState.threads.head",
		"PyInterpreterState.threads.head",
	},
	all("tstatePrev", "PyThreadState.prev"),
	all("tstateNext", "PyThreadState.next"),
	all("tstateInterp", "PyThreadState.interp"),
	{
		"tstateNativeID", "", "PyThreadState.native_thread_id", "PyThreadState.native_thread_id",
		"PyThreadState.native_thread_id",
	},
	all("codeFilename", "PyCodeObject.co_filename"),
	all("codeName", "PyCodeObject.co_name"),
	{"codeQualname", "", "PyCodeObject.co_qualname", "PyCodeObject.co_qualname", "PyCodeObject.co_qualname"},
	all("codeFirstLine", "PyCodeObject.co_firstlineno"),
	all("codeLineTable", "PyCodeObject.co_linetable"),
	{
		"codeStart", "", "PyCodeObject.co_code_adaptive", "PyCodeObject.co_code_adaptive", "PyCodeObject.co_code_adaptive",
	},
	all("asciiSize", "=sizeof(PyASCIIObject)"),
	all("compactSize", "=sizeof(PyCompactUnicodeObject)"),
}

// notInHeaders are the fields that say how to use the others; the live tests prove them.
var notInHeaders = map[string]bool{
	"desc.TLSOffset": true, "desc.Entry": true, "debugOffsets": true, "lines": true,
}

// sharedRows are the constants that hold for all versions.
var sharedRows = map[string]uint64{
	"PyObject.ob_type": objectType, "PyVarObject.ob_size": objectSize, "PyTypeObject.tp_name": typeName,
	"PyTypeObject.tp_flags": typeFlags, "PyBytesObject.ob_sval": bytesHeader, "PyASCIIObject.length": textLength,
	"PyASCIIObject.state":          textState,
	"=Py_TPFLAGS_UNICODE_SUBCLASS": wantedTypes[typeStr].flag, "=Py_TPFLAGS_BYTES_SUBCLASS": wantedTypes[typeBytes].flag,
}

// The table of layouts against the headers that each release installs.
func TestLayoutsMatchHeaders(t *testing.T) {
	require.Len(t, layouts, len(installed), "a version without a header to compare with")
	for i, version := range installed {
		t.Run(version, func(t *testing.T) {
			checks := layoutChecks(t, &layouts[i])
			got := compileAndRun(t, version, checks)
			for j, c := range checks {
				assert.Equal(t, got[j], c.want, c.name)
			}
		})
	}
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
		if x := row.expression(l.minor); x != "" {
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
	// The pointer of a str that is not compact lies behind the larger header.
	out = append(out, headerCheck{"str data", "PyUnicodeObject.data", uint64(l.compactSize)})
	if l.debugOffsets {
		for _, w := range debugWords13 {
			out = append(out, headerCheck{w.name, "_Py_DebugOffsets." + w.name, 8 * uint64(w.word)})
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

// compileAndRun prints C expressions with the headers of a release.
func compileAndRun(t *testing.T, version string, checks []headerCheck) []uint64 {
	t.Helper()
	var src strings.Builder
	src.WriteString("#define Py_BUILD_CORE 1\n#include <Python.h>\n#include <frameobject.h>\n#include <stddef.h>\n#include <stdio.h>\n" +
		"#include \"internal/pycore_runtime.h\"\n#include \"internal/pycore_interp.h\"\n#if PY_MINOR_VERSION > 10\n" +
		"#include \"internal/pycore_frame.h\"\n#endif\nint main(void) {\n")
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
	include := filepath.Join(pyenvPrefix(t, version), "include", "python"+version[:strings.LastIndexByte(version, '.')])
	out, err := exec.Command("gcc", "-w", "-I"+include, "-I"+filepath.Join(include, "internal"), file, "-o", binaryFile).CombinedOutput()
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
	row, ok := layoutOf(Version{Major: 3, Minor: 13})
	require.True(t, ok)
	good := debugTable(row)
	got, err := row.withDebugOffsets(image{0x1000: good}, 0x1000)
	require.NoError(t, err)
	assert.Equal(t, row, got)

	moved := debugTable(row)
	binary.LittleEndian.PutUint64(moved[8*33:], 78) // owner, where 3.14t has it
	got, err = row.withDebugOffsets(image{0x1000: moved}, 0x1000)
	require.NoError(t, err)
	assert.Equal(t, uint16(78), got.desc.FrameOwner)
	assert.Equal(t, uint16(80), got.desc.FrameSize)

	for _, bad := range []struct {
		word  int
		value uint64
		want  string
	}{
		{9, maxLargeOffset, "interpreter_state.threads_head"},
		{36, maxSmallOffset, "code_object.name"},
		{31, ^uint64(0), "interpreter_frame.instr_ptr"},
		{33, MaxFrameSize, "bytes of a frame"},
	} {
		b := debugTable(row)
		binary.LittleEndian.PutUint64(b[8*bad.word:], bad.value)
		_, err := row.withDebugOffsets(image{0x1000: b}, 0x1000)
		assert.ErrorContains(t, err, bad.want)
	}
	_, err = row.withDebugOffsets(image{0x1000: good[:100]}, 0x1000)
	assert.ErrorContains(t, err, "read debug offsets")
}

// debugTable is _Py_DebugOffsets as an interpreter with this layout has it.
func debugTable(l *layout) []byte {
	b := make([]byte, 8*44)
	copy(b, debugCookie)
	binary.LittleEndian.PutUint64(b[8:], 0x030d00f0)
	c := *l
	for _, w := range debugWords13 {
		v := uint64(0)
		if w.small != nil {
			v = uint64(*w.small(&c))
		} else {
			v = uint64(*w.large(&c))
		}
		binary.LittleEndian.PutUint64(b[8*w.word:], v)
	}
	return b
}
