// SPDX-License-Identifier: Apache-2.0

package cpython

import (
	"encoding/binary"
	"fmt"

	"github.com/gputrace/gputrace/process"
)

// pyFrame is one Python frame of a thread.
type pyFrame struct {
	Code  uint64 // address of the code object
	Instr uint64 // the raw word that Code.Line takes
	Entry bool   // the last frame, rootward, of one activation of the eval loop
}

// maxFrames bounds the walk of a chain; sys.setrecursionlimit allows deeper ones, but only their leaf side matters here.
const maxFrames = 1 << 16

// walk visits the frames of a thread and, between them, the shims that end activations.
func (r *Runtime) walk(mem process.Memory, state uint64, visit func(f pyFrame, shim bool) error) error {
	frame, err := r.innermost(mem, state)
	if err != nil {
		return err
	}
	var b [MaxFrameSize]byte
	d := &r.Descriptor
	for range maxFrames {
		if frame == 0 {
			return nil
		}
		f := b[:d.FrameSize]
		if _, err := mem.ReadAt(f, frame); err != nil {
			return fmt.Errorf("read frame at %#x: %w", frame, err)
		}
		next, shim := d.decodeFrame(f)
		if err := visit(d.inCodeObject(mem, next, f), shim); err != nil {
			return err
		}
		frame = binary.LittleEndian.Uint64(f[d.FramePrevious:])
	}
	return fmt.Errorf("stack of thread state %#x: more than %d frames", state, maxFrames)
}

func (r *Runtime) innermost(mem process.Memory, state uint64) (uint64, error) {
	d := &r.Descriptor
	at := state + uint64(d.TStateFrame)
	if d.TStateFrame == NoField {
		cframe, err := process.Uint64(mem, state+uint64(d.TStateCFrame))
		if err != nil {
			return 0, fmt.Errorf("read cframe of thread state %#x: %w", state, err)
		}
		at = cframe + uint64(d.CFrameFrame)
	}
	frame, err := process.Uint64(mem, at)
	if err != nil {
		return 0, fmt.Errorf("read innermost frame of thread state %#x: %w", state, err)
	}
	return frame, nil
}

// codeTags are the low bits of a pointer to a code object that 3.14 and later use for themselves (_PyStackRef).
const codeTags = 7

// decodeFrame reads a frame. A shim ends the activation of the frame before, and is no frame itself.
func (d *Descriptor) decodeFrame(b []byte) (f pyFrame, shim bool) {
	f.Code = binary.LittleEndian.Uint64(b[d.FrameCode:]) &^ codeTags
	if d.InstrSize == 4 {
		f.Instr = uint64(binary.LittleEndian.Uint32(b[d.FrameInstr:]))
	} else {
		f.Instr = binary.LittleEndian.Uint64(b[d.FrameInstr:])
	}
	switch d.Entry {
	case EntryEach, EntryCode:
		f.Entry = true
	case EntryFlag:
		f.Entry = b[d.FrameOwner] == 1
	case EntryShim:
		shim = b[d.FrameOwner] >= d.OwnerShim
	}
	return f, shim
}

// inCodeObject turns the instruction of a frame that runs a copy of the bytecode into the same one in the code object. A
// copy that cannot be read leaves it as it is.
func (d *Descriptor) inCodeObject(mem process.Memory, f pyFrame, b []byte) pyFrame {
	if d.FrameCopy == NoField {
		return f
	}
	n := binary.LittleEndian.Uint32(b[d.FrameCopy:])
	if n == 0 || n > maxThreads {
		return f
	}
	list, err := process.Uint64(mem, f.Code+uint64(d.CodeCopies))
	if err != nil {
		return f
	}
	copied, err := process.Uint64(mem, list+8+8*uint64(n))
	if err != nil {
		return f
	}
	f.Instr += f.Code + uint64(d.CodeStart) - copied
	return f
}
