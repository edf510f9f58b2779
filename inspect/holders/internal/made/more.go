// SPDX-License-Identifier: Apache-2.0

package made

const (
	dictOffsetAt = 0x120 // tp_dictoffset
	hookClass    = "N5torch8autograd15FunctionPreHookE"
	ownHookClass = "N5torch8autograd23PyFunctionTensorPreHookE"
)

// AddGlobal adds a variable to the module __main__.
func (m *Process) AddGlobal(name string, value uint64) { m.addTo(m.main, name, value) }

// addTo adds an entry to a dictionary that has room for it.
func (m *Process) addTo(dict uint64, name string, value uint64) {
	n, keys := m.Word(dict+0x10), m.Word(dict+0x20)
	m.put(dict+0x10, n+1)
	m.put(keys+24, n+1)
	m.put(keys+32+16+16*n, m.str(name), value)
}

// Slot is the address of the value of a variable of __main__.
func (m *Process) Slot(name string) uint64 {
	keys := m.Word(m.main + 0x20)
	for i := range m.Word(m.main + 0x10) {
		entry := keys + 32 + 16 + 16*i
		text := m.Word(entry)
		if n := m.Word(text + 16); n == uint64(len(name)) && string(m.bytesAt(text + 48)[:n]) == name {
			return entry + 8
		}
	}
	return 0
}

// SetGraph makes a node the one that made a tensor; 0: none has.
func (m *Process) SetGraph(tensor, node uint64) { m.put(m.Word(m.Word(tensor+16)+0x18)+0x30, node) }

// Linked makes objects of a class Node, of which each has the one before it as .prev and a tensor as .data, and returns the last one with
// the tensors, from the first object on. first is what the first one has as .prev.
func (m *Process) Linked(n int, first uint64) (last uint64, tensors []uint64) {
	if m.prev == 0 {
		m.prev, m.data = m.str("prev"), m.str("data")
	}
	last = first
	for range n {
		tensor, _ := m.tensor("Tensor")
		tensors = append(tensors, tensor)
		dict := m.dict(pair{value: last}, pair{value: tensor})
		entries := m.Word(dict+0x20) + 32 + 16
		m.put(entries, m.prev)
		m.put(entries+16, m.data)
		last = m.instance("Node", dict)
	}
	return last, tensors
}

// Twice has the objects of Linked lead back to those after them, and returns an object of another class that has the last one as .tip.
func (m *Process) Twice(last uint64) (owner uint64) {
	tip := m.dict(pair{"tip", last})
	for after := uint64(0); last != 0; {
		entries := m.Word(m.Word(last+16)+0x20) + 32 + 16
		m.put(m.Word(last+16)+0x10, 3)
		m.put(entries-24, 3)
		m.put(entries+32, m.str("next"), after)
		last, after = m.Word(entries+8), last
	}
	return m.instance("List", tip)
}

// instance makes an object with attributes.
func (m *Process) instance(class string, dict uint64) uint64 {
	if m.Types[class] == 0 {
		m.newType(class, "object", madeHeapType|madeCollected, 24)
		m.put(m.Types[class]+dictOffsetAt, 16)
	}
	at := m.newObject(class, 24, true)
	m.put(at+16, dict)
	return at
}

// OwnHook makes a tensor that nothing but a hook of its own graph holds: a function, by its closure. The node that made the tensor has
// the list of hooks.
func (m *Process) OwnHook() (hook, node, tensor uint64) {
	m.newClass(hookClass, "")
	m.newClass(ownHookClass, hookClass)
	tensor, impl := m.tensor("Tensor")
	_, saved := m.tensor("Tensor")
	m.owns(saved)
	node = m.node("N5torch8autograd12MulBackward0E", m.node(accumulateClass, 0, saved), saved)
	m.meta(impl, 0, node)
	cell := m.newObject("cell", 24, true)
	m.put(cell+16, tensor)
	hook = m.newObject("function", 0x80, true)
	m.put(hook+0x30, m.code("train.<locals>.<lambda>", "y"))
	m.put(hook+0x48, m.tuple(cell))
	native, list := m.native(ownHookClass, 0x20), m.alloc(8)
	m.put(native+8, m.dict(pair{"0", hook}))
	m.put(list, native)
	m.put(node+0x90, list, list+8, list+8)
	return hook, node, tensor
}
