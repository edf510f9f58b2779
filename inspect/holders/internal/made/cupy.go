// SPDX-License-Identifier: Apache-2.0

package made

// CuPy is the objects of a made-up CuPy: a pool on device 1, and what was added with its methods.
type CuPy struct {
	Pool     uint64 // the SingleDeviceMemoryPool
	Memories []uint64
	m        *Process
	ahead    uint64 // bytes before the fields of each class
	weak     uint64 // a reference to the pool
	used     uint64
}

// The fields of CuPy 14.2's classes by its debug information, each behind the ones of its base.
const (
	CuPyBlock = uint64(0x7d0000000000) // the first block of the pool
	CuPyCount = 0x58                   // of the pool: its bytes in use; those from the driver are in front
	CuPyStart = 0x10                   // of a memory: its address
	arrayType = "ndarray"
)

// AddCuPy makes the classes and a pool. words is the number of further words in front of the fields of each class, as in another version.
func (m *Process) AddCuPy(words uint64) *CuPy {
	c := &CuPy{m: m, ahead: 8 * words}
	for _, t := range []struct {
		name string
		size uint64
	}{{"cupy.cuda.memory.MemoryPointer", 0x30}, {"cupy.cuda.memory.PooledMemory", 0x50}, {"cupy.cuda.memory.SingleDeviceMemoryPool", 0x80},
		{"cupy.cuda.memory.MemoryPool", 0x28}, {arrayType, 0x80}, {"numpy.dtypes.Float32DType", 0x60}, {"weakref.ReferenceType", 0x40}} {
		m.newType(t.name, "object", madeCollected, t.size+c.ahead)
	}
	var names []pair
	for _, name := range []string{"MemoryPointer", "PooledMemory", "SingleDeviceMemoryPool", "MemoryPool"} {
		names = append(names, pair{name, m.Types["cupy.cuda.memory."+name]})
	}
	m.addTo(m.Modules, "cupy.cuda.memory", m.module(m.dict(names...)))
	m.addTo(m.Modules, "cupy._core.core", m.module(m.dict(pair{arrayType, m.Types[arrayType]})))
	c.Pool = c.object("cupy.cuda.memory.SingleDeviceMemoryPool", 0x80)
	empty := c.object("cupy.cuda.memory.SingleDeviceMemoryPool", 0x80)
	pools := c.object("cupy.cuda.memory.MemoryPool", 0x28)
	m.put(pools+c.ahead+0x18, m.tuple(empty, c.Pool))
	table := c.object("cupy.cuda.memory.SingleDeviceMemoryPool", 0x80) // two words of a table, as a count and a class, and others behind
	m.put(table+CuPyCount-8+c.ahead, 6, 229)
	c.weak = c.object("weakref.ReferenceType", 0x40)
	m.put(c.weak+0x10, c.Pool)
	return c
}

// object makes an object that the collector has in a list of its own.
func (c *CuPy) object(typ string, size uint64) uint64 {
	at := c.m.newObject(typ, size+c.ahead, true)
	c.m.put(at-16, at-16, at-16)
	return at
}

// Memory makes a block of the pool.
func (c *CuPy) Memory(size uint64) (memory uint64) {
	memory = c.object("cupy.cuda.memory.PooledMemory", 0x50)
	c.m.put(memory+c.ahead+CuPyStart, CuPyBlock+c.used, size, 1)
	c.m.put(memory+c.ahead+0x30, c.weak)
	c.used += size
	c.m.put(c.Pool+c.ahead+CuPyCount-8, c.used+1<<20, c.used)
	c.Memories = append(c.Memories, memory)
	return memory
}

// Array makes an array of rows of 128 float32 in a block, from an offset on, bytes. base is the array that it is a view of, or 0.
func (c *CuPy) Array(memory, offset, rows, base uint64) (array uint64) {
	m := c.m
	pointer := c.object("cupy.cuda.memory.MemoryPointer", 0x30)
	m.put(pointer+c.ahead+0x18, m.Word(memory+c.ahead+CuPyStart)+offset, 1, memory)
	array = c.object(arrayType, 0x80)
	shape := m.alloc(32)
	m.put(shape, rows, 128, 512, 4)
	m.put(array+c.ahead+0x20, rows*128, shape, shape+16, shape+16, shape+16, shape+32, shape+32)
	m.put(array+c.ahead+0x68, c.object("numpy.dtypes.Float32DType", 0x60), pointer, base)
	return array
}

// List makes a list.
func (m *Process) List(items ...uint64) uint64 { return m.list(items...) }
