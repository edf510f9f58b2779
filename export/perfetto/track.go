// SPDX-License-Identifier: Apache-2.0

package perfetto

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"strings"

	"github.com/gputrace/gputrace/event"
)

// Tracks of a device, in the order in which they are shown.
const (
	rankAllocated = iota
	rankReserved
	rankUsed
	rankOutOfMemory
	rankAllocations
	rankLifetimes
)

// track is one row of the timeline, with a sequence for its events.
type track struct {
	*sequence
	last  uint64 // counter: its value
	begun bool   // counter: it has one
}

// device is the tracks of one device of a process; nil: it has none yet.
type device struct {
	uuid        uint64
	counters    [rankUsed + 1]*track
	allocations map[event.Layer]*track
	refused     *track
}

var counterNames = [rankUsed + 1]string{"allocated", "reserved", "device memory"}

// uuid makes the number of a track. It differs from those of other processes and traces, so that files can be merged.
func (t *trace) uuid(parts ...any) uint64 {
	h := fnv.New64a()
	_ = binary.Write(h, binary.LittleEndian, t.in.Trace.First())
	fmt.Fprint(h, parts...)
	return h.Sum64() | 1 // 0 is none
}

func (t *trace) process(pid uint32) uint64 {
	uuid, ok := t.processes[pid]
	if ok {
		return uuid
	}
	uuid = t.uuid("process ", pid)
	t.processes[pid] = uuid
	t.describe(uuid, func(m *message) {
		at := m.open(trackProcess)
		m.number(processPID, uint64(pid))
		if name := t.profiles.processes[pid]; pid != t.in.PID && name != "" {
			m.text(processName, name)
		}
		if pid == t.in.PID && t.in.Name != "" {
			m.text(processName, t.in.Name)
			for _, arg := range t.in.Cmdline {
				m.text(processCmdline, arg)
			}
		}
		m.close(at)
	})
	return uuid
}

// thread makes a thread known, once.
func (t *trace) thread(pid, tid uint32) {
	key := threadKey{pid, tid}
	if t.threads[key] || tid == 0 {
		return
	}
	t.threads[key] = true
	t.process(pid)
	t.describe(t.threadTrack(pid, tid), func(m *message) {
		at := m.open(trackThread)
		m.number(threadPID, uint64(pid))
		m.number(threadTID, uint64(tid))
		if name := t.profiles.threads[key]; name != "" {
			m.text(threadName, name)
		}
		m.close(at)
	})
}

// threadTrack returns the number of a thread's track.
func (t *trace) threadTrack(pid, tid uint32) uint64 { return t.uuid("thread ", pid, " ", tid) }

func (t *trace) device(pid uint32, d event.Device) *device {
	key := deviceKey{pid, d}
	dev := t.devices[key]
	if dev == nil {
		dev = &device{uuid: t.uuid("device ", pid, " ", d), allocations: map[event.Layer]*track{}}
		t.devices[key] = dev
		process := t.process(pid)
		t.describe(dev.uuid, func(m *message) {
			m.number(trackParent, process)
			m.text(trackName, d.String())
			m.number(trackChildOrdering, orderExplicit)
		})
	}
	return dev
}

// describe tells of a track: what fill adds.
func (t *trace) describe(uuid uint64, fill func(m *message)) {
	t.single(t.main, func(m *message) {
		at := m.open(packetTrackDescriptor)
		m.number(trackUUID, uuid)
		fill(m)
		m.close(at)
	})
}

// row makes a track of a device, whose events have a sequence of their own.
func (t *trace) row(dev *device, name string, rank uint64, fill func(m *message)) *track {
	uuid := t.uuid("row ", dev.uuid, " ", name)
	t.describe(uuid, func(m *message) {
		m.number(trackParent, dev.uuid)
		m.text(trackName, name)
		m.number(trackRank, rank)
		if fill != nil {
			fill(m)
		}
	})
	return &track{sequence: t.sequence(uuid)}
}

// counter is one of a device's totals.
func (t *trace) counter(pid uint32, d event.Device, rank int) *track {
	dev := t.device(pid, d)
	if dev.counters[rank] == nil {
		dev.counters[rank] = t.row(dev, counterNames[rank], uint64(rank), func(m *message) {
			at := m.open(trackCounter)
			m.number(counterUnit, counterUnitBytes)
			m.text(counterShare, "bytes")
			m.close(at)
		})
	}
	return dev.counters[rank]
}

// layerNames say what a layer's allocations are.
var layerNames = map[event.Layer]string{
	event.LayerAllocator: "torch blocks", event.LayerDevice: "device memory from the driver", event.LayerHost: "pinned host memory",
}

// allocations is the track of one layer's allocations. Its name says what is not on it.
func (t *trace) allocations(pid uint32, d event.Device, layer event.Layer) *track {
	dev := t.device(pid, d)
	if dev.allocations[layer] == nil {
		name := "allocations of " + layerNames[layer]
		if n := t.in.Timeline.MinSize; n > 0 {
			name += fmt.Sprintf(", %d bytes or more", n)
		}
		dev.allocations[layer] = t.row(dev, name, rankAllocations, nil)
	}
	return dev.allocations[layer]
}

func (t *trace) refused(pid uint32, d event.Device) *track {
	dev := t.device(pid, d)
	if dev.refused == nil {
		dev.refused = t.row(dev, "out of memory", rankOutOfMemory, nil)
	}
	return dev.refused
}

// heapName is what a heap profile is called.
func heapName(layer event.Layer, d event.Device) string {
	return strings.Join([]string{d.String(), layerNames[layer]}, " ")
}
