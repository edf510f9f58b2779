// SPDX-License-Identifier: Apache-2.0

package cpython

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"regexp"
	"strconv"

	"github.com/gputrace/gputrace/process"
)

// Version is that of an interpreter. A Micro of -1 is not known.
type Version struct {
	Major, Minor, Micro int
	FreeThreaded        bool // built without a GIL
}

// String is "3.13.0", "3.10" when the micro version is not known, and ends in "t" for a free-threaded build.
func (v Version) String() string {
	s := fmt.Sprintf("%d.%d", v.Major, v.Minor)
	if v.Micro >= 0 {
		s += "." + strconv.Itoa(v.Micro)
	}
	if v.FreeThreaded {
		s += "t"
	}
	return s
}

// fromHex splits PY_VERSION_HEX (Include/patchlevel.h): major, minor and micro are the three upper bytes of 32 bits.
func fromHex(hex uint32) Version {
	return Version{Major: int(hex >> 24), Minor: int(hex >> 16 & 0xff), Micro: int(hex >> 8 & 0xff)}
}

// debugCookie starts _PyRuntime from 3.13 on; PY_VERSION_HEX and a flag for free-threaded builds follow, a word each
// (Include/internal/pycore_runtime.h of 3.13, _Py_DebugOffsets).
const debugCookie = "xdebugpy"

// version takes the first of three witnesses: the debug offsets (3.13+), the constant Py_Version (3.11+), and the strings
// that the interpreter was built with.
func (l *located) version(mem process.Memory) (Version, error) {
	var head [24]byte
	if _, err := mem.ReadAt(head[:], l.runtime); err != nil {
		return Version{}, fmt.Errorf("read _PyRuntime: %w", err)
	}
	if string(head[:8]) == debugCookie {
		v := fromHex(binary.LittleEndian.Uint32(head[8:]))
		v.FreeThreaded = binary.LittleEndian.Uint64(head[16:]) != 0
		return v, nil
	}
	if sym, ok := l.file.find("Py_Version"); ok {
		var hex [4]byte
		if _, err := mem.ReadAt(hex[:], sym.addr+l.bias); err != nil {
			return Version{}, fmt.Errorf("read Py_Version: %w", err)
		}
		return fromHex(binary.LittleEndian.Uint32(hex[:])), nil
	}
	constants, err := l.file.constants()
	if err != nil {
		return Version{}, fmt.Errorf("read string constants: %w", err)
	}
	v, ok := versionFromStrings(constants)
	if !ok {
		return Version{}, fmt.Errorf("version: no symbol Py_Version and no string that tells it")
	}
	return v, nil
}

// Before 3.11 the version is only in string constants: PY_VERSION ("3.10.13"), which the linker may have merged into the
// tail of a longer one, and the standard library's folder ("python3.10"). 3.7 is the first with a _PyRuntime.
var (
	fullVersion = regexp.MustCompile(`3\.([789]|10)\.([0-9]{1,2})(?:(?:a|b|rc)[0-9]{1,2})?\+?`)
	libVersion  = regexp.MustCompile(`python3\.([789]|10)\x00`)
)

// versionFromStrings wants both witnesses to agree on the minor version; without a full version, Micro is -1.
func versionFromStrings(constants []byte) (Version, bool) {
	lib := libVersion.FindSubmatch(constants)
	if lib == nil {
		return Version{}, false
	}
	minor, _ := strconv.Atoi(string(lib[1]))
	for _, at := range fullVersion.FindAllSubmatchIndex(constants, -1) {
		if wholeVersion(constants, at[0], at[1]) && bytes.Equal(constants[at[2]:at[3]], lib[1]) {
			micro, _ := strconv.Atoi(string(constants[at[4]:at[5]]))
			return Version{Major: 3, Minor: minor, Micro: micro}, true
		}
	}
	return Version{Major: 3, Minor: minor, Micro: -1}, true
}

// wholeVersion checks what stands around a match. The patterns do not: with a literal first, the search is 20 times faster.
func wholeVersion(constants []byte, from, to int) bool {
	if to == len(constants) || constants[to] != 0 {
		return false
	}
	return from == 0 || constants[from-1] != '.' && (constants[from-1] < '0' || constants[from-1] > '9')
}
