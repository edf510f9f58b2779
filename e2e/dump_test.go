// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// dumped is what dump -f json writes, as far as it is compared here.
type dumped struct {
	Format  string
	Version int
	PID     int
	Notes   []string
	Devices []struct {
		Device      int
		Name        string
		Host        bool
		Memory      map[string]uint64
		Counted     map[string]uint64
		Unexplained *int64
		Changing    *changingPart
		Segments    []struct {
			Address, Size, Stream, Allocated, Pending, Free uint64
			Pool                                            struct {
				Kind string
				ID   [2]uint64
			}
			Expandable bool
			Blocks     []struct {
				Address, Size uint64
				Requested     *uint64
				ID            uint64 `json:"allocation_id"`
				State         string
				Holder        string
			}
		}
	}
}

// changingPart is what changed while it was read, in the output of dump and of who.
type changingPart struct {
	Blocks     uint64
	BlocksHigh uint64 `json:"blocks_high"`
	Low        uint64 `json:"bytes_low"`
	High       uint64 `json:"bytes_high"`
	RangeBytes uint64 `json:"range_bytes"`
}

// bounds are 0 where nothing changed.
func (c *changingPart) bounds() (low, high uint64) {
	if c == nil {
		return 0, 0
	}
	return c.Low, c.High
}

// block and segment are what both sides say, in one form. Requested is 0 for a free block.
type block struct {
	Address, Size, Requested uint64
	State                    string
}

type segment struct {
	Device        int
	Address, Size uint64
	Stream        *uint64 // nil: not known
	Kind          string
	Pool          *[2]uint64 // nil: not known
	Expandable    bool
	Blocks        []block
}

// dump runs gputrace dump and gives its output and exit code.
func dump(t *testing.T, pid int, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	return dumpAs(t, nil, pid, args...)
}

// capDACReadSearch lets a process read files whatever their permissions are (linux/capability.h).
const capDACReadSearch = 2

// dumpAs does so as another user; nil: as the one who runs the test.
func dumpAs(t *testing.T, user *syscall.Credential, pid int, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	return lookAs(t, user, "dump", pid, args...)
}

// lookAs runs a command of gputrace that looks into a process. Another user may read all files: a checkout can lie below a
// folder that only root may enter, and which files a job has is not what these tests are about.
func lookAs(t *testing.T, user *syscall.Credential, command string, pid int, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, said bytes.Buffer
	cmd := exec.Command(env.binary, append([]string{command, "-p", itoa(pid)}, args...)...)
	cmd.Stdout, cmd.Stderr, cmd.Dir = &out, &said, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: user}
	if user != nil {
		cmd.SysProcAttr.AmbientCaps = []uintptr{capDACReadSearch}
	}
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) {
		require.NoError(t, err)
	}
	return out.String(), said.String(), cmd.ProcessState.ExitCode()
}

func dumpJSON(t *testing.T, pid int) *dumped {
	t.Helper()
	stdout, stderr, code := dump(t, pid, "-f", "json")
	require.Zero(t, code, stderr)
	require.Empty(t, stderr)
	return parseDumped(t, stdout)
}

func parseDumped(t *testing.T, text string) *dumped {
	t.Helper()
	var d dumped
	require.NoError(t, json.Unmarshal([]byte(text), &d))
	require.Equal(t, "gputrace dump", d.Format)
	require.Equal(t, 2, d.Version)
	return &d
}

func (d *dumped) segments() []segment {
	var out []segment
	for _, device := range d.Devices {
		for _, s := range device.Segments {
			seg := segment{Device: device.Device, Address: s.Address, Size: s.Size, Stream: &s.Stream, Kind: s.Pool.Kind, Pool: &s.Pool.ID,
				Expandable: s.Expandable}
			for _, b := range s.Blocks {
				both := block{b.Address, b.Size, 0, b.State}
				if b.Requested != nil {
					both.Requested = *b.Requested
				}
				seg.Blocks = append(seg.Blocks, both)
			}
			out = append(out, seg)
		}
	}
	return out
}

// normalise makes of a memory snapshot's segments what segments gives: PyTorch keeps in a free block what its last owner
// asked for. Older versions say less: 2.0 nothing of pools and addresses of blocks, 1.13 nothing of streams and of what was
// asked for.
const normalise = `
def normalise(segments):
    return [dict(device=s["device"], address=s["address"], size=s["total_size"], stream=s.get("stream"), kind=s["segment_type"],
                 pool=s.get("segment_pool_id"), expandable=s.get("is_expandable", False), blocks=list(blocks_of(s)))
            for s in sorted(segments, key=lambda s: (s["device"], s["address"]))]
def blocks_of(segment):
    address = segment["address"]
    for b in segment["blocks"]:
        assert b.get("address", address) == address
        yield dict(address=address, size=b["size"], state=b["state"].replace("awaiting", "pending"),
                   requested=b.get("requested_size", 0) if b["state"] != "inactive" else 0)
        address += b["size"]
`

// requireSegments compares with PyTorch's view, as far as that goes.
func requireSegments(t *testing.T, want, got []segment) {
	t.Helper()
	require.Len(t, got, len(want))
	for i := range want {
		if want[i].Stream == nil {
			got[i].Stream = nil
		}
		if want[i].Pool == nil {
			got[i].Pool = nil
		}
	}
	require.Equal(t, want, got)
}

// unpickle reads the segments of a snapshot file with CPython's pickle.
func unpickle(t *testing.T, file string) []segment {
	t.Helper()
	out, err := output("python3", "-c", "import json, pickle, sys"+normalise+
		`print(json.dumps(normalise(pickle.load(open(sys.argv[1], "rb"))["segments"])))`, file)
	require.NoError(t, err)
	var s []segment
	require.NoError(t, json.Unmarshal([]byte(out), &s))
	return s
}

// allKinds makes blocks of all states, on two streams and two devices and in private pools, and writes down PyTorch's view.
const allKinds = `
import json, os, time, torch
` + normalise + `
MIB = 1 << 20
def keep(*sizes):
    held.extend(torch.empty(n, dtype=torch.uint8, device="cuda") for n in sizes)
held = []
keep(1, 512, 1000, MIB, MIB + 1, 5 * MIB, 10 * MIB, 300 * MIB, *(7 * MIB for _ in range(20)))
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    keep(100, 40 * MIB)
    torch.empty(400 * MIB, dtype=torch.uint8, device="cuda")
with torch.cuda.device(1):
    keep(77, 30 * MIB)
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    keep(10, 3 * MIB, 30 * MIB)
for tensor in held[:3]:
    tensor.record_stream(side)
del tensor, held[:2], held[8], held[11]
json.dump(dict(segments=normalise(torch.cuda.memory_snapshot()),
               allocated=[torch.cuda.memory_allocated(d) for d in (0, 1)],
               reserved=[torch.cuda.memory_reserved(d) for d in (0, 1)]), open("DIR/oracle.json", "w"))
print("READY", os.getpid(), flush=True)
time.sleep(600)
`

// dumpEnvironment sets its devices, and lets a block wait for another stream's work longer than the test lasts.
var dumpEnvironment = []string{"STANDIN_GPUS=2", "STANDIN_EVENT_US=3600000000"}

// TestDump compares the map with torch.cuda.memory_snapshot(), block for block, and the totals with PyTorch's.
func TestDump(t *testing.T) {
	for _, setting := range []string{"", "expandable_segments:True"} {
		t.Run("conf "+setting, func(t *testing.T) {
			if setting != "" {
				needsTorch(t, 2, 1)
			}
			checkDump(t, setting)
		})
	}
}

func checkDump(t *testing.T, setting string) {
	t.Helper()
	p := startPythonIn(t, append([]string{"PYTORCH_CUDA_ALLOC_CONF=" + setting}, dumpEnvironment...), allKinds).ready(t)
	b, err := os.ReadFile(filepath.Join(p.dir, "oracle.json"))
	require.NoError(t, err)
	var want struct {
		Segments            []segment
		Allocated, Reserved []uint64
	}
	require.NoError(t, json.Unmarshal(b, &want))
	got := dumpJSON(t, p.pid)
	requireSegments(t, want.Segments, got.segments())
	require.Equal(t, p.pid, got.PID)
	states := map[string]int{}
	for _, s := range want.Segments {
		for _, b := range s.Blocks {
			states[b.State]++
		}
	}
	require.Len(t, states, 3, "the job has blocks of every state: %v", states)
	for i := range want.Allocated {
		require.Equal(t, want.Allocated[i], got.Devices[i].Memory["allocated"])
		require.Equal(t, want.Reserved[i], got.Devices[i].Memory["reserved"])
		require.Zero(t, *got.Devices[i].Unexplained)
	}
	checkText(t, p.pid)
	file := filepath.Join(t.TempDir(), "map.pickle")
	_, stderr, code := dump(t, p.pid, "-f", "snapshot", "-o", file)
	require.Zero(t, code, stderr)
	requireSegments(t, want.Segments, unpickle(t, file))
	_, stderr, code = dump(t, p.pid, "-f", "snapshot", "-o", file)
	require.Equal(t, 2, code)
	require.Contains(t, stderr, "exists already")
	requireNoLeftovers(t, filepath.Dir(file))
}

func checkText(t *testing.T, pid int) {
	t.Helper()
	text, stderr, code := dump(t, pid)
	require.Zero(t, code, stderr)
	require.Contains(t, text, "counted by the allocator = 0 B")
	require.NotContains(t, text, "blocks - allocated", "a difference")
	require.Contains(t, text, "pinned")
	require.Contains(t, text, "waiting for another stream")
}

// TestDumpTraining holds a real training job at its end.
func TestDumpTraining(t *testing.T) {
	needsTorch(t, 2, 1) // its memory history
	p := startTraining(t, "gpt.py", "--steps", "20", "--layers", "2", "--width", "128", "--vocab", "1000",
		"--snapshot", "DIR/snapshot").ready(t)
	p.release(t)
	p.done(t)
	got := dumpJSON(t, p.pid)
	require.Equal(t, unpickle(t, filepath.Join(p.dir, "snapshot")), got.segments())
	var at struct{ Counters *counters } // on the last line of the snapshot's other half
	eachLine(t, filepath.Join(p.dir, "snapshot.json"), func(b []byte) { require.NoError(t, json.Unmarshal(b, &at)) })
	require.NotNil(t, at.Counters)
	require.Equal(t, at.Counters.Allocated, got.Devices[0].Memory["allocated"])
	require.Equal(t, at.Counters.Reserved, got.Devices[0].Memory["reserved"])
}

const storm = `
import itertools, os, torch
passing = [torch.empty(512, dtype=torch.uint8, device="cuda")]
print("READY", os.getpid(), flush=True)
for n in itertools.count():
    passing.append(torch.empty(512 * (1 + n % 4099), dtype=torch.uint8, device="cuda"))
    if len(passing) > 500:
        del passing[:: 1 + n % 3]
`

// TestDumpAtFullSpeed: there is always an answer, and it adds up.
func TestDumpAtFullSpeed(t *testing.T) {
	p := startPython(t, storm).ready(t)
	whole := 0
	for i := range 50 {
		args := []string{"-f", "json"}
		if i%10 > 0 { // names take longer
			args = append(args, "--no-holders")
		}
		stdout, stderr, code := dump(t, p.pid, args...)
		require.Zero(t, code, stderr)
		d := parseDumped(t, stdout)
		checkBalance(t, d)
		if d.Devices[0].Changing == nil {
			whole++
		}
	}
	t.Logf("in %d of 50 maps everything stood still", whole)
}

// checkBalance adds up the blocks by itself.
func checkBalance(t *testing.T, d *dumped) {
	t.Helper()
	require.NotEmpty(t, d.Devices)
	for _, device := range d.Devices {
		var reserved, active, tiles, changing uint64
		for _, s := range device.Segments {
			reserved += s.Size
			at := s.Address
			for _, b := range s.Blocks {
				require.Equal(t, at, b.Address, "a gap between blocks")
				at, tiles = at+b.Size, tiles+b.Size
				switch b.State {
				case "active_allocated", "active_pending_free":
					active += b.Size
				case "changing":
					changing += b.Size
				}
			}
		}
		require.Equal(t, reserved, tiles)
		low, high := device.Changing.bounds()
		require.LessOrEqual(t, active+low, device.Counted["active"]+high-low)
		require.GreaterOrEqual(t, active+high, device.Counted["active"])
		if device.Changing == nil {
			require.Equal(t, device.Counted["reserved"], reserved)
			require.Equal(t, device.Counted["active"], active)
			require.Zero(t, *device.Unexplained)
		}
		require.Equal(t, device.Changing != nil && changing > 0, changing > 0)
	}
}

// TestDumpWithoutRoot: a user may look into a process of their own, as far as the kernel's setting allows, and not into another's.
func TestDumpWithoutRoot(t *testing.T) {
	own := startPython(t, `
import ctypes, os, time, torch
held = [torch.empty(1 << 20 << i % 3, device="cuda") for i in range(20)]
del held[::3]
os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
assert ctypes.CDLL(None).prctl(4, 1, 0, 0, 0) == 0  # PR_SET_DUMPABLE, as it is after a login
print("READY", os.getpid(), flush=True)
time.sleep(600)
`).ready(t)
	user := &syscall.Credential{Uid: nobody, Gid: nobody}
	stdout, stderr, exit := dumpAs(t, user, own.pid, "-f", "json")
	scope, err := os.ReadFile("/proc/sys/kernel/yama/ptrace_scope")
	if err == nil && strings.TrimSpace(string(scope)) != "0" {
		require.Equal(t, 6, exit, stderr)
		require.Contains(t, stderr, "ptrace_scope")
	} else {
		require.Zero(t, exit, stderr)
		checkBalance(t, parseDumped(t, stdout))
	}
	other := startPython(t, storm).ready(t)
	_, stderr, exit = dumpAs(t, user, other.pid)
	require.Equal(t, 6, exit, stderr)
	require.Contains(t, stderr, fmt.Sprint("sudo gputrace dump -p ", other.pid))
}

// TestDumpNothing: exit codes and advice where there is no map.
func TestDumpNothing(t *testing.T) {
	_, stderr, code := dump(t, 1<<22)
	require.Equal(t, 7, code, stderr)
	require.Contains(t, stderr, "no process")
	_, stderr, code = dump(t, os.Getpid())
	require.Equal(t, 7, code, stderr)
	require.Contains(t, stderr, "no caching allocator")
	t.Run("another allocator", func(t *testing.T) {
		needsTorch(t, 2, 0)
		other := startPythonIn(t, []string{"PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync"}, storm).ready(t)
		_, stderr, code := dump(t, other.pid)
		require.Equal(t, 7, code, stderr)
		require.Contains(t, stderr, "not the native allocator")
	})
}
