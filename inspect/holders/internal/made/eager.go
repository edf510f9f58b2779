// SPDX-License-Identifier: Apache-2.0

package made

// Eager are arrays as TensorFlow has them, in a made-up process.
type Eager struct {
	m       *Process
	context uint64 // an object that all arrays share
	last    uint64 // handle of the array made before
}

const (
	eagerType = "EagerTensor"
	// EagerBlock is the address of the first block, memory of a device; blocks follow at distances of EagerSize.
	EagerBlock, EagerSize = 0x7000_0000_0000, 0x1000
)

// AddEager makes the class.
func (m *Process) AddEager() *Eager {
	m.newType(eagerType, "object", madeCollected, 0x60)
	m.addTo(m.Modules, "tensorflow.python.framework.ops", m.module(m.dict(pair{eagerType, m.Types[eagerType]})))
	e := &Eager{m: m}
	e.context = e.chunk(0x40)
	return e
}

// chunk makes memory as malloc gives it, with its size in front.
func (e *Eager) chunk(size uint64) uint64 {
	at := e.m.alloc(size+32) + 16
	e.m.put(at-8, (size+16)|1)
	return at
}

// Tensor makes an array whose memory begins at an address. Its handle also leads to the shared context, and to the handle made before it.
func (e *Eager) Tensor(data uint64) (object uint64) {
	m := e.m
	object = m.newObject(eagerType, 0x60, true)
	m.put(object-16, object-16, object-16)
	handle, buffer := e.chunk(0x80), e.chunk(0x20)
	m.put(object+0x18, e.context, handle)
	m.put(handle+0x10, e.context, e.last)
	m.put(handle+0x48, buffer)
	m.put(buffer+0x10, data)
	e.last = handle
	return object
}

// Variable makes an array whose memory is a handle, which leads on to the memory at another address.
func (e *Eager) Variable(data uint64) (object, own uint64) {
	own, variable, buffer := e.chunk(0x60), e.chunk(0x30), e.chunk(0x20)
	e.m.put(own+0x50, variable)
	e.m.put(variable, e.context) // an object of C++ begins with its class
	e.m.put(variable+0x18, buffer)
	e.m.put(buffer+0x10, data)
	return e.Tensor(own), own
}
