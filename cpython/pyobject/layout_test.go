// SPDX-License-Identifier: Apache-2.0

package pyobject

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/cpython"
)

// headerFields says what a field of objectLayout is in C, from 3.13 on: an offset "Type.member", or an expression that starts with "=".
// Empty: the versions have no such field.
var headerFields = map[string]string{
	"minor":               "=PY_MINOR_VERSION",
	"runtimeInterpreters": "_PyRuntimeState.interpreters.head", "interpNext": "PyInterpreterState.next",
	"interpThreads": "PyInterpreterState.threads.head",
	"interpModules": "PyInterpreterState.imports.modules", "interpCollector": "PyInterpreterState.gc.generations",
	"collectorPermanent": "PyInterpreterState.gc.permanent_generation", "collectorFirst": "=offsetof(struct _gc_runtime_state, generations)",
	"tstateNext": "PyThreadState.next", "tstatePrev": "PyThreadState.prev", "tstateInterp": "PyThreadState.interp",
	"tstateThread": "PyThreadState.thread_id", "tstateNative": "PyThreadState.native_thread_id", "tstateFrame": "PyThreadState.current_frame",
	"tstateCFrame": "", "cframeFrame": "", "tstateExc": "PyThreadState.exc_info", "tstateDict": "PyThreadState.dict",
	"tstateContext": "PyThreadState.context", "excValue": "_PyErr_StackItem.exc_value", "excPrevious": "_PyErr_StackItem.previous_item",
	"frameCode": "_PyInterpreterFrame.f_executable", "framePrevious": "_PyInterpreterFrame.previous",
	"frameInstr":  "_PyInterpreterFrame.instr_ptr",
	"frameLocals": "_PyInterpreterFrame.f_locals", "frameValues": "_PyInterpreterFrame.localsplus", "frameTop": "_PyInterpreterFrame.TOP",
	"frameStack": "", "frameOwner": "_PyInterpreterFrame.owner", "frameFunction": "_PyInterpreterFrame.f_funcobj",
	"frameOfObject": "PyFrameObject.f_frame",
	"codeVarNames":  "", "codeCellVars": "", "codeFreeVars": "", "codeNames": "PyCodeObject.co_localsplusnames",
	"codeKinds": "PyCodeObject.co_localspluskinds", "codeLocals": "PyCodeObject.co_nlocalsplus", "codeStackSize": "PyCodeObject.co_stacksize",
	"codeArguments": "PyCodeObject.co_argcount", "functionGlobals": "PyFunctionObject.func_globals",
	"functionCode":     "PyFunctionObject.func_code",
	"functionDefaults": "PyFunctionObject.func_defaults", "functionKeywords": "PyFunctionObject.func_kwdefaults",
	"functionClosure": "PyFunctionObject.func_closure", "functionDict": "PyFunctionObject.func_dict",
	"generatorFrame": "PyGenObject.gi_iframe",
	"generatorState": "PyGenObject.gi_frame_state", "generatorRuns": "=FRAME_EXECUTING", "tupleItems": "PyTupleObject.ob_item",
	"keysCount": "PyDictKeysObject.dk_nentries", "keysIndices": "PyDictKeysObject.dk_indices", "keysKind": "PyDictKeysObject.dk_kind",
	"typeCachedKeys": "PyHeapTypeObject.ht_cached_keys", "valuesStart": "PyDictValues.values",
	"exceptionTraceback": "PyBaseExceptionObject.traceback",
}

// rules are the fields that say how to use the others; the live tests prove them.
var rules = map[string]bool{
	"collectorInRuntime": true, "values": true, "taggedInt": true, "immortal": true, "stackRefs": true, "threaded": true,
}

// shared are constants that hold for all versions.
var shared = map[string]uint64{
	"PyTypeObject.tp_itemsize": typeItemSize, "PyTypeObject.tp_weaklistoffset": typeWeakOffset, "PyTypeObject.tp_getset": typeGetSet,
	"=sizeof(PyGetSetDef)": getSetSize, "PyTypeObject.tp_base": typeBase, "PyTypeObject.tp_dict": typeDict,
	"PyTypeObject.tp_dictoffset": typeDictOffset, "PyTypeObject.tp_mro": typeMRO, "PyListObject.ob_item": listItems,
	"PyDictObject.ma_keys":   dictKeys,
	"PyDictObject.ma_used":   dictUsed,
	"PyDictObject.ma_values": dictValues, "PySetObject.mask": setMask, "PySetObject.table": setTable, "PyCellObject.ob_ref": cellContents,
	"PyMethodObject.im_func": methodFunction, "PyMethodObject.im_self": methodSelf, "PyCFunctionObject.m_self": builtinSelf,
	"PyBaseExceptionObject.dict": exceptionDict, "PyBaseExceptionObject.args": exceptionArgs, "PyWeakReference.wr_callback": weakCallback,
	"PyLongObject.long_value.ob_digit": longDigits, "=sizeof(PyGC_Head)": collectorHead, "=sizeof(struct gc_generation)": generationSize,
	"PyDictValues.valid": inlineValidByte, "PyTracebackObject.tb_next": tracebackNext, "PyTracebackObject.tb_frame": tracebackFrame,
}

const headerProgram = `#define Py_BUILD_CORE 1
#include <Python.h>
#include <stddef.h>
#include <stdio.h>
#include "internal/pycore_runtime.h"
#include "internal/pycore_interp.h"
#include "internal/pycore_frame.h"
#if PY_MINOR_VERSION > 13
#include "internal/pycore_interpframe.h"
#define TOP stackpointer
#else
#define TOP stacktop
#endif
#include "internal/pycore_dict.h"
#include "internal/pycore_gc.h"
#include "internal/pycore_genobject.h"
int main(void)
{
%s	return 0;
}
`

// runtimeFields are where the interpreter says: of builds without a GIL a row has no value of its own.
var runtimeFields = map[string]bool{
	"runtimeInterpreters": true, "interpNext": true, "interpThreads": true, "interpModules": true, "interpCollector": true,
	"collectorPermanent": true, "collectorFirst": true,
}

// unmoved are the shared constants that do not count from the start of an object.
var unmoved = map[string]bool{
	"=sizeof(PyGetSetDef)": true, "=sizeof(PyGC_Head)": true, "=sizeof(struct gc_generation)": true, "PyDictValues.valid": true,
}

// threadedShared are the constants of builds without a GIL.
var threadedShared = map[string]uint64{
	"=sizeof(PyObject)": objectSize + threadedShift, "PyObject.ob_gc_bits": threadedGCBits, "PyObject.ob_ref_local": threadedLocal,
	"PyObject.ob_ref_shared": threadedSharedCount, "=_Py_REF_SHARED_SHIFT": sharedFlags, "=_PyGC_BITS_TRACKED": gcTracked,
	"=_PyGC_BITS_DEFERRED": gcDeferred, "=-MANAGED_DICT_OFFSET": threadedDict, "=_Py_IMMORTAL_REFCNT_LOCAL": localImmortal,
}

// TestObjectLayouts: the rows from 3.13 on agree with the headers that each release installs, with a GIL and without one.
func TestObjectLayouts(t *testing.T) {
	for i := range 2 * len(objectLayouts) {
		l := objectLayouts[i/2]
		if l.minor < 13 {
			continue
		}
		version := fmt.Sprintf("3.%d", l.minor)
		name := version
		if i%2 == 1 {
			l, name = l.withoutGIL(), version+"t"
		}
		t.Run(name, func(t *testing.T) {
			var names, lines []string
			var want []uint64
			add := func(name, c string, value uint64) {
				if of, member, isOffset := strings.Cut(c, "."); isOffset && c[0] != '=' {
					c = "=offsetof(" + of + ", " + member + ")"
				}
				names, want = append(names, name), append(want, value)
				lines = append(lines, fmt.Sprintf("\tprintf(\"%%zu\\n\", (size_t)(%s));\n", c[1:]))
			}
			row := reflect.ValueOf(l)
			for k := range row.NumField() {
				name := row.Type().Field(k).Name
				if rules[name] || l.threaded && runtimeFields[name] {
					continue
				}
				c, known := headerFields[name]
				require.True(t, known, "field %s is not compared", name)
				value := row.Field(k)
				switch {
				case c == "":
					require.EqualValues(t, cpython.NoField, value.Uint(), name)
				case value.CanInt():
					add(name, c, uint64(value.Int()))
				default:
					add(name, c, value.Uint())
				}
			}
			for c, value := range shared {
				if !unmoved[c] {
					value += l.shift()
				}
				add(c, c, value)
			}
			if l.threaded {
				for c, value := range threadedShared {
					add(c, c, value)
				}
			}
			have := strings.Fields(runC(t, version, l.threaded, fmt.Sprintf(headerProgram, strings.Join(lines, ""))))
			require.Len(t, have, len(want))
			for k := range want {
				require.Equal(t, fmt.Sprint(want[k]), have[k], names[k])
			}
		})
	}
}

// runC compiles a program with the headers of a version, and returns what it prints.
func runC(t *testing.T, version string, threaded bool, text string) string {
	t.Helper()
	folder, include := t.TempDir(), filepath.Join(filepath.Dir(filepath.Dir(pythonOf(t, version))), "include")
	source, program := filepath.Join(folder, "a.c"), filepath.Join(folder, "a")
	require.NoError(t, os.WriteFile(source, []byte(text), 0o600))
	headers := filepath.Join(include, "python"+version)
	without := "-UPy_GIL_DISABLED"
	if threaded {
		without = "-DPy_GIL_DISABLED=1"
	}
	folders := []string{"-I" + headers, "-I" + include, "-I" + filepath.Join(headers, "internal")}
	out, err := exec.Command("gcc", append(folders, "-w", without, source, "-o", program)...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	printed, err := exec.Command(program).Output()
	require.NoError(t, err)
	return string(printed)
}
