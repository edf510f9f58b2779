// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package decode

import (
	"encoding/binary"
	"fmt"
	"unsafe"

	"github.com/gputrace/gputrace/bpf"
)

// decodeEvent reads a record_event; its length was checked.
func decodeEvent(raw []byte) *bpf.TraceRecordEvent {
	return (*bpf.TraceRecordEvent)(unsafe.Pointer(unsafe.SliceData(raw)))
}

// decodeCall reads a record_call; its length was checked.
func decodeCall(raw []byte) *bpf.TraceRecordCall {
	return (*bpf.TraceRecordCall)(unsafe.Pointer(unsafe.SliceData(raw)))
}

// decodeFree reads a record_free; its length was checked.
func decodeFree(raw []byte) *bpf.TraceRecordFree {
	return (*bpf.TraceRecordFree)(unsafe.Pointer(unsafe.SliceData(raw)))
}

// CodeChanged reads a record_code_changed; it returns nil for other records.
func CodeChanged(raw []byte) *bpf.TraceRecordCodeChanged {
	if len(raw) < codeChangedBytes || raw[0] != uint8(bpf.TraceRecordTypeRECORD_CODE_CHANGED) {
		return nil
	}
	return (*bpf.TraceRecordCodeChanged)(unsafe.Pointer(unsafe.SliceData(raw)))
}

const (
	codeChangedBytes = int(unsafe.Sizeof(bpf.TraceRecordCodeChanged{}))
	callBytes        = int(unsafe.Sizeof(bpf.TraceRecordCall{}))
	eventBytes       = int(unsafe.Sizeof(bpf.TraceRecordEvent{}))
	freeBytes        = int(unsafe.Sizeof(bpf.TraceRecordFree{}))
	stackHash        = int(unsafe.Offsetof(bpf.TraceRecordStack{}.Hash))
	stackHeaderBytes = int(unsafe.Offsetof(bpf.TraceRecordStack{}.Words))
)

// stackRecord is a decoded record_stack.
type stackRecord struct {
	status uint8
	pid    uint32
	hash   uint64
	words  []uint64
}

// decodeStack reads a record_stack of a stack or a raw stack. It copies the words.
func decodeStack(raw []byte) (stackRecord, error) {
	if len(raw) < stackHeaderBytes {
		return stackRecord{}, fmt.Errorf("stack record of %d bytes, want at least %d", len(raw), stackHeaderBytes)
	}
	n := int(binary.NativeEndian.Uint16(raw[2:]))
	if len(raw) < stackHeaderBytes+n*8 {
		return stackRecord{}, fmt.Errorf("stack record of %d bytes for %d words", len(raw), n)
	}
	r := stackRecord{
		status: raw[1], pid: binary.NativeEndian.Uint32(raw[4:]), hash: binary.NativeEndian.Uint64(raw[stackHash:]), words: make([]uint64, n),
	}
	for i := range r.words {
		r.words[i] = binary.NativeEndian.Uint64(raw[stackHeaderBytes+i*8:])
	}
	return r, nil
}

// PID returns the process of a record.
func PID(raw []byte) (pid uint32, ok bool) {
	at := 4 // after the type
	if IsEvent(raw) {
		at = int(unsafe.Offsetof(bpf.TraceRecordEvent{}.Pid))
	}
	if len(raw) < at+4 {
		return 0, false
	}
	return binary.NativeEndian.Uint32(raw[at:]), true
}

// IsEvent reports whether a record becomes an event.
func IsEvent(raw []byte) bool {
	if len(raw) == 0 {
		return false
	}
	switch bpf.TraceRecordType(raw[0]) {
	case bpf.TraceRecordTypeRECORD_EVENT, bpf.TraceRecordTypeRECORD_CALL, bpf.TraceRecordTypeRECORD_FREE:
		return true
	default:
		return false
	}
}

const processBytes = int(unsafe.Sizeof(bpf.TraceRecordProcess{}))

// ProcessChanged reads a record_process; it returns nil for other records.
func ProcessChanged(raw []byte) *bpf.TraceRecordProcess {
	if len(raw) < processBytes || raw[0] != uint8(bpf.TraceRecordTypeRECORD_PROCESS) {
		return nil
	}
	return (*bpf.TraceRecordProcess)(unsafe.Pointer(unsafe.SliceData(raw)))
}
