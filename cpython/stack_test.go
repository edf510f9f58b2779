// SPDX-License-Identifier: Apache-2.0

package cpython

import "github.com/gputrace/gputrace/process"

// stack walks the Python frames of a thread, leaf first, as the kernel side does. State is a Thread's. The thread should be
// blocked: frames of a running one change while they are read. With an error come the frames that were read before it.
func (r *Runtime) stack(mem process.Memory, state uint64) ([]pyFrame, error) {
	var out []pyFrame
	err := r.walk(mem, state, func(f pyFrame, shim bool) error {
		if shim {
			markRoot(out)
		} else {
			out = append(out, f)
		}
		return nil
	})
	if err == nil {
		markRoot(out)
	}
	return out, err
}

func markRoot(frames []pyFrame) {
	if len(frames) > 0 {
		frames[len(frames)-1].Entry = true
	}
}
