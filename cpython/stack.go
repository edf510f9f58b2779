package cpython

import (
	"encoding/binary"
	"fmt"

	"github.com/gputrace/gputrace/process"
)

// PyFrame is one Python frame of a thread.
type PyFrame struct {
	Code  uint64 // address of the code object
	Instr uint64 // the raw word that Code.Line takes
	Entry bool   // the last frame, rootward, of one activation of the eval loop
}

// maxFrames bounds the walk of a chain; sys.setrecursionlimit allows deeper ones, but only their leaf side matters here.
const maxFrames = 1 << 16

// Stack walks the Python frames of a thread, leaf first, as the kernel side does. State is a Thread's. The thread should be
// blocked: frames of a running one change while they are read. With an error come the frames that were read before it.
func (r *Runtime) Stack(mem process.Memory, state uint64) ([]PyFrame, error) {
	frame, err := r.innermost(mem, state)
	if err != nil {
		return nil, err
	}
	var out []PyFrame
	var b [MaxFrameSize]byte
	d := &r.Descriptor
	for range maxFrames {
		if frame == 0 {
			markRoot(out)
			return out, nil
		}
		f := b[:d.FrameSize]
		if _, err := mem.ReadAt(f, frame); err != nil {
			return out, fmt.Errorf("read frame at %#x: %w", frame, err)
		}
		out = d.appendFrame(out, f)
		frame = binary.LittleEndian.Uint64(f[d.FramePrevious:])
	}
	return out, fmt.Errorf("stack of thread state %#x: more than %d frames", state, maxFrames)
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

// appendFrame adds a frame, or, for a shim, ends the activation of the frame before.
func (d *Descriptor) appendFrame(out []PyFrame, f []byte) []PyFrame {
	next := PyFrame{Code: binary.LittleEndian.Uint64(f[d.FrameCode:])}
	if d.InstrSize == 4 {
		next.Instr = uint64(binary.LittleEndian.Uint32(f[d.FrameInstr:]))
	} else {
		next.Instr = binary.LittleEndian.Uint64(f[d.FrameInstr:])
	}
	switch d.Entry {
	case EntryEach:
		next.Entry = true
	case EntryFlag:
		next.Entry = f[d.FrameOwner] == 1
	case EntryShim:
		if f[d.FrameOwner] >= d.OwnerShim {
			markRoot(out)
			return out
		}
	}
	return append(out, next)
}

func markRoot(frames []PyFrame) {
	if len(frames) > 0 {
		frames[len(frames)-1].Entry = true
	}
}
