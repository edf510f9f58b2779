// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
)

func made(pid, parent int, command string, devices ...Memory) Process {
	return Process{PID: pid, Parent: parent, Command: []string{"python", command}, Devices: devices, Driver: true}
}

func torch(bytes uint64) Memory {
	return Memory{Driver: event.Unknown, Allocated: bytes, Reserved: bytes}
}

// TestNew: workers belong to the process whose copy they are, others stay, the largest is first.
func TestNew(t *testing.T) {
	listed := made(12, 10, "train.py", torch(1<<20))
	listed.Devices[0].Driver = 1 << 21 // the driver lists it: it was not forked after all
	loaded := Process{PID: 40, Command: []string{"python", "serve.py"}}
	r := New([]Process{
		made(20, 1, "small.py", torch(512)),
		made(10, 1, "train.py", torch(1<<30)),
		made(11, 10, "train.py", torch(1<<20)), // a worker, with the totals of when it began
		made(13, 11, "train.py", torch(1<<20)), // and its own
		listed,
		made(14, 10, "evaluate.py", torch(1<<10)), // started by it: another program
		made(30, 1, "launch.py", Memory{Driver: event.Unknown}),
		made(31, 30, "launch.py", torch(1<<25)), // of one that had not used the GPU
		made(50, 1, "nothing.py"),
		loaded,
	})
	var pids []int
	for i := range r.Processes {
		pids = append(pids, r.Processes[i].PID)
	}
	require.Equal(t, []int{10, 31, 12, 14, 20, 30, 50}, pids)
	require.Equal(t, []int{11, 13}, r.Processes[0].Workers)
	require.Len(t, r.Idle, 1)
	require.Equal(t, 40, r.Idle[0].PID)
}

// TestSums: one unknown part makes a sum unknown, and no device makes it unknown too: it is never 0 for want of knowing.
func TestSums(t *testing.T) {
	p := made(1, 0, "x", torch(2), torch(3))
	require.EqualValues(t, 5, p.Allocated())
	require.EqualValues(t, 5, p.Reserved())
	require.EqualValues(t, uint64(event.Unknown), p.DriverBytes())
	p = made(1, 0, "x")
	require.EqualValues(t, uint64(event.Unknown), p.Allocated())
}
