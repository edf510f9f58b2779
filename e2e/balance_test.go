// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/balance"
	exports "github.com/gputrace/gputrace/export"
)

// balanceJob trains on device 1 with gradients reduced by NCCL, and holds memory of every kind: blocks, splits, blocks that
// wait for a stream, segments without a block, a library's, its own on both devices, and pinned memory. It waits before it
// loads anything. What PyTorch says at the end goes to a file.
const balanceJob = `
import ctypes, json, os, time
print("START", flush=True)
while not os.path.exists("DIR/start"):
    time.sleep(0.005)
import torch
import torch.distributed as dist
torch.cuda.init()
print("READY", os.getpid(), flush=True)
while not os.path.exists("DIR/go"):
    time.sleep(0.005)
MIB = 1 << 20
runtime = ctypes.CDLL(next(l.split()[-1] for l in open("/proc/self/maps") if "libcudart" in l))

def raw(device, size):
    torch.cuda.set_device(device)
    pointer = ctypes.c_void_p()
    assert runtime.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(size)) == 0

def total(field, state):
    return sum(b[field] for s in torch.cuda.memory_snapshot() for b in s["blocks"] if b["state"] == state)

def block(size):
    return torch.empty(size, dtype=torch.uint8, device="cuda")

if RAW0:
    raw(0, 6 * MIB)
raw(1, 10 * MIB)
torch.cuda.set_device(1)
dist.init_process_group("nccl", init_method="tcp://127.0.0.1:PORT", rank=0, world_size=1, device_id=torch.device("cuda:1"))
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(1024, 3000).cuda(), device_ids=[1])
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(5):
    model(torch.randn(64, 1024, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
held = [block(n) for n in (1, 1000, 3 * MIB + 1, 7 * MIB, 5 * MIB, 30 * MIB)]
pinned = torch.empty(MIB, dtype=torch.uint8, pin_memory=True)
unused = block(90 * MIB)
side = torch.cuda.Stream()
held[2].record_stream(side)
del unused, held[3], held[2]  # nothing is allocated from here on: the allocator does not look whether the stream is done
stats = torch.cuda.memory_stats(1)
json.dump(dict({name: stats[name + ".all.current"] for name in STATS},
               inactive=total("size", "inactive"), pending_requested=total("requested_size", "active_pending_free")),
          open("DIR/stats.json", "w"))
print("DONE", flush=True)
while not os.path.exists("DIR/hold"):
    time.sleep(0.005)
`

const balanceStats = `("requested_bytes", "allocated_bytes", "active_bytes", "reserved_bytes", "inactive_split_bytes")`

// Memory that the stand-in's libraries own, bytes. The stand-in's driver, as a real one, gives out 2 MiB at least.
const (
	contextMemory = 300 << 20
	ncclMemory    = 96 << 20
	cublasMemory  = 24 << 20
)

// balanced is a job whose memory is to be balanced, and the settings with which the stand-in's driver tells of it.
type balanced struct {
	*target
	environment []string
}

func startBalanced(t *testing.T, raw0 bool) *balanced {
	t.Helper()
	code := strings.NewReplacer("RAW0", map[bool]string{true: "True", false: "False"}[raw0], "STATS", balanceStats, "PORT",
		freePort(t)).Replace(balanceJob)
	return startBalancedCode(t, code)
}

func startBalancedCode(t *testing.T, code string) *balanced {
	t.Helper()
	settings := []string{
		"STANDIN_SHM=" + filepath.Join(t.TempDir(), "totals"), "STANDIN_GPUS=2", "STANDIN_COPY_MAX=64KiB",
		fmt.Sprint("STANDIN_CTX_MEM=", contextMemory), fmt.Sprint("STANDIN_NCCL_MEM=", ncclMemory),
		fmt.Sprint("STANDIN_CUBLAS_MEM=", cublasMemory),
	}
	return &balanced{startPythonIn(t, settings, code), settings}
}

// freePort is a TCP port that nobody listens on.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	require.NoError(t, err)
	return port
}

// command is gputrace where the stand-in's NVML is the driver's.
func (b *balanced) command(t *testing.T, settings []string, args ...string) *command {
	t.Helper()
	c := newCommand(t, args...)
	lib, err := output(filepath.Join(env.testdata, "setup.sh"), "--print", "standin")
	require.NoError(t, err)
	c.cmd.Env = append(append(append(c.cmd.Env, b.environment...), "LD_LIBRARY_PATH="+lib), settings...)
	return c
}

// watch traces the job from before it has loaded anything until it is done, and returns the command.
func (b *balanced) watch(t *testing.T, settings ...string) *command {
	t.Helper()
	c := b.command(t, settings, "-p", itoa(b.pid), "--wait", "-o", "OUT").start(t)
	b.await(t, "START")
	eventually(t, "gputrace to wait", func() bool { return strings.Contains(c.stderr.String(), "waiting for pid") })
	b.touch(t, "start")
	c.ready(t)
	b.ready(t)
	b.release(t)
	b.done(t)
	c.interrupt(t)
	return c
}

// figures is the balance of one device in a recording: bytes by the names that the summary has for them.
func (c *command) figures(t *testing.T, device string) map[string]int64 {
	t.Helper()
	in, err := exports.Open(filepath.Join(c.out(), traceFile), &exports.OpenOptions{})
	require.NoError(t, err)
	defer in.Close()
	summary := exports.Summary(in.Trace.End(), in.Info, in.End)
	require.NotNil(t, summary.Balance, "the recording has no balance")
	for i := range summary.Balance.Devices {
		if d := &summary.Balance.Devices[i]; d.Device.String() == device {
			return figuresOf(t, d)
		}
	}
	require.FailNow(t, "no such device", device)
	return nil
}

func figuresOf(t *testing.T, d *balance.Device) map[string]int64 {
	t.Helper()
	rest, known := d.Remainder()
	require.True(t, known)
	out := map[string]int64{"device": int64(d.Used), "context and unexplained": rest}
	if x := &d.Torch; x.Reserved > 0 {
		for name, n := range map[string]uint64{
			"torch": x.Requested, "rounding": x.Rounding(), "pending": x.Pending, "inactive split": x.InactiveSplit, "free segments": x.Free,
		} {
			out[name] = int64(n)
		}
	}
	for i := range d.Owners {
		require.NotContains(t, out, d.Owners[i].Name)
		out[d.Owners[i].Name] = int64(d.Owners[i].Bytes)
	}
	return out
}

// stats are PyTorch's own figures of device 1 at the end, bytes.
func (b *balanced) stats(t *testing.T) map[string]int64 {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(b.dir, "stats.json"))
	require.NoError(t, err)
	var out map[string]int64
	require.NoError(t, json.Unmarshal(text, &out))
	return out
}

// requireTorch compares the caching allocator's part with PyTorch's own figures.
func (b *balanced) requireTorch(t *testing.T, rows map[string]int64) {
	t.Helper()
	s := b.stats(t)
	requested := s["requested_bytes"] - s["pending_requested"] // PyTorch counts what it was asked for until the memory is free
	require.Equal(t, requested, rows["torch"])
	require.Equal(t, s["allocated_bytes"]-requested, rows["rounding"])
	require.Equal(t, s["active_bytes"]-s["allocated_bytes"], rows["pending"])
	require.Equal(t, s["inactive_split_bytes"], rows["inactive split"])
	require.Equal(t, s["inactive"]-s["inactive_split_bytes"], rows["free segments"])
	require.Equal(t, s["reserved_bytes"], rows["torch"]+rows["rounding"]+rows["pending"]+rows["inactive split"]+rows["free segments"])
	for _, name := range []string{"torch", "rounding", "pending", "inactive split", "free segments"} {
		require.Positive(t, rows[name], name)
	}
}

// balanceRow is a row of a balance: name, rounded and exact bytes, what it is.
var balanceRow = regexp.MustCompile(`^  (\S.{0,25}\S) +[-+]?[\d.]+ [KMGT]?i?B +([-+]?[\d,]+) B  `)

// section returns the balance of the only device in a summary: exact bytes by name. It is for tests of the words, and of a job in which
// nothing happened while it was traced: there is no recording of that.
func section(t *testing.T, summary string) map[string]int64 {
	t.Helper()
	out := map[string]int64{}
	for _, l := range strings.Split(summary, "\n") {
		if m := balanceRow.FindStringSubmatch(l); m != nil {
			n, err := strconv.ParseInt(strings.ReplaceAll(m[2], ",", ""), 10, 64)
			require.NoError(t, err)
			require.NotContains(t, out, m[1])
			out[m[1]] = n
		}
	}
	return out
}

// byLine is the memory of the rows whose name ends so: lines of the job, whose numbers say nothing.
func byLine(rows map[string]int64, function string) int64 {
	var out int64
	for name, n := range rows {
		if strings.HasSuffix(name, " "+function) {
			out += n
		}
	}
	return out
}

// TestBalance: everything that the driver counts is explained to the byte, with owners, and the rest is the context.
func TestBalance(t *testing.T) {
	b := startBalanced(t, false)
	c := b.watch(t)
	summary, rows := c.stdout.String(), c.figures(t, "cuda:1")
	require.Equal(t, section(t, summary), rows, "the table has the same figures")
	b.requireTorch(t, rows)
	require.Contains(t, summary, "what the allocator reports differs by 0 B")
	require.EqualValues(t, ncclMemory, rows["NCCL"])
	require.Zero(t, rows["cuBLAS"]%cublasMemory)
	require.Positive(t, rows["cuBLAS"])
	require.EqualValues(t, 10<<20, byLine(rows, "raw"), "its own call, by its line:\n%s", summary)
	require.EqualValues(t, contextMemory, rows["context and unexplained"], summary)
	require.Equal(t, []int64{0, rows["device"]}, standinUsed(t, b), "as the stand-in counts")
	require.Contains(t, summary, "context, and unexplained memory")
	require.Contains(t, summary, "pinned host memory")
}

// TestBalanceTwoDevices: each device has its own sum.
func TestBalanceTwoDevices(t *testing.T) {
	b := startBalanced(t, true)
	c := b.watch(t)
	used := standinUsed(t, b)
	summary, first, second := c.stdout.String(), c.figures(t, "cuda:0"), c.figures(t, "cuda:1")
	require.Equal(t, used, []int64{first["device"], second["device"]})
	require.EqualValues(t, 6<<20, byLine(first, "raw"), summary)
	require.EqualValues(t, 10<<20, byLine(second, "raw"), summary)
	require.EqualValues(t, contextMemory, first["context and unexplained"])
	require.EqualValues(t, contextMemory, second["context and unexplained"])
	require.NotContains(t, first, "torch")
	b.requireTorch(t, second)
}

// TestBalanceLate: of what was there before the attach only the sum is known, and the text says so. dump says the same.
func TestBalanceLate(t *testing.T) {
	b := startBalanced(t, false)
	b.touch(t, "start")
	b.ready(t)
	b.release(t)
	b.done(t)
	c := b.command(t, nil, "-p", itoa(b.pid), "-o", "OUT").start(t).ready(t)
	c.interrupt0(t)
	summary := c.stdout.String()
	rows := section(t, summary)
	b.requireTorch(t, rows)
	used := standinUsed(t, b)[1]
	rest := used - b.stats(t)["reserved_bytes"]
	require.Equal(t, used, rows["device"])
	require.Equal(t, rest, rows["context and unexplained"])
	require.Greater(t, rest, int64(contextMemory+ncclMemory+cublasMemory))
	require.Contains(t, summary, "memory from before the attach")
	require.NotContains(t, summary, "NCCL")

	text, stderr, code := b.dump(t, nil)
	require.Zero(t, code, stderr)
	require.Regexp(t, `\n  device +\S+ \S+ +`+grouped(used)+` B `, text)
	require.Regexp(t, `\n  beside torch +\S+ \S+ +\+`+grouped(rest)+` B `, text)
	require.Contains(t, text, "Stand-in GPU")

	stdout, stderr, code := b.dump(t, nil, "-f", "json")
	require.Zero(t, code, stderr)
	d := driverOf(t, stdout)
	require.Nil(t, d[0].Driver, "the job uses nothing there")
	require.Equal(t, used, *d[1].Driver.Used)
	require.Equal(t, rest, *d[1].BesideTorch)
	var splits, free uint64
	for _, h := range d[1].InactiveSplits {
		for _, class := range h.Classes {
			require.LessOrEqual(t, class.Largest, h.Largest)
			splits += class.Bytes
		}
	}
	free = uint64(rows["free segments"])
	require.EqualValues(t, rows["inactive split"], splits)
	require.EqualValues(t, b.stats(t)["inactive"], splits+free)
}

// interrupt0 is Ctrl-C before anything has happened.
func (c *command) interrupt0(t *testing.T) {
	t.Helper()
	c.signal(t, syscall.SIGINT)
	require.Equal(t, 130, c.code(t), c.stderr.String())
}

// grouped is a number as tables print it.
func grouped(n int64) string {
	text := itoa(int(n))
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// dump runs gputrace dump where the stand-in's NVML is the driver's.
func (b *balanced) dump(t *testing.T, settings []string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	c := b.command(t, settings)
	c.cmd.Args = append([]string{env.binary, "dump", "-p", itoa(b.pid)}, args...)
	c.start(t)
	code = c.code(t)
	return c.stdout.String(), c.stderr.String(), code
}

// dumpedDriver is what dump -f json says of a device's driver.
type dumpedDriver struct {
	Driver *struct {
		Used *int64
		Why  string
	}
	BesideTorch    *int64 `json:"beside_torch"`
	InactiveSplits []struct {
		Largest uint64
		Classes []struct{ Bytes, Largest uint64 }
	} `json:"inactive_splits"`
}

func driverOf(t *testing.T, text string) []dumpedDriver {
	t.Helper()
	var out struct{ Devices []dumpedDriver }
	require.NoError(t, json.Unmarshal([]byte(text), &out))
	require.Len(t, out.Devices, 2)
	return out.Devices
}

// TestBalanceBlind: without the driver's figure the parts are shown, and what cannot be known is unknown, with the reason.
func TestBalanceBlind(t *testing.T) {
	b := startBalanced(t, false)
	b.touch(t, "start")
	b.ready(t)
	b.release(t)
	b.done(t)
	for _, tt := range []struct{ name, setting, why string }{
		{"no library", "LD_LIBRARY_PATH=", "NVML is not there"},
		{"not listed", "STANDIN_SHM=" + filepath.Join(t.TempDir(), "others"), "does not list the process"},
		{"blind", "STANDIN_NVML=blind", "does not list the process"},
		{"without figures", "STANDIN_NVML=unavailable", "lists the process without its memory"},
		{"fails", "STANDIN_NVML=fail", "the driver is not loaded"},
		{"hangs", "STANDIN_NVML=hang", "NVML does not answer"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := b.command(t, []string{tt.setting}, "-p", itoa(b.pid), "-o", "OUT").start(t).ready(t)
			c.interrupt0(t)
			summary := c.stdout.String()
			rows := section(t, summary)
			b.requireTorch(t, rows)
			require.NotContains(t, rows, "device")
			require.NotContains(t, rows, "context and unexplained")
			require.Regexp(t, `(?m)^device   unknown \(.*`+tt.why, summary)
			require.Regexp(t, `(?m)^  context and unexplained +unknown`, summary)

			stdout, stderr, code := b.dump(t, []string{tt.setting}, "-f", "json")
			require.Zero(t, code, stderr)
			d := driverOf(t, stdout)
			require.Nil(t, d[1].Driver.Used)
			require.Contains(t, d[1].Driver.Why, tt.why)
			require.Nil(t, d[1].BesideTorch)
		})
	}
}

// rawJob has no PyTorch: memory in small pieces, and a piece that it has given back to a pool.
const rawJob = `
import ctypes, os, time
print("START", flush=True)
while not os.path.exists("DIR/start"):
    time.sleep(0.005)
runtime = ctypes.CDLL("libcudart.so.13")
print("READY", os.getpid(), flush=True)
while not os.path.exists("DIR/go"):
    time.sleep(0.005)
pointer = ctypes.c_void_p()

def small():
    assert runtime.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(1000)) == 0

def pooled(size):
    assert runtime.cudaMallocAsync(ctypes.byref(pointer), ctypes.c_size_t(size), None) == 0

for _ in range(3):
    small()
pooled(8 << 20)
pooled(32 << 20)
assert runtime.cudaFreeAsync(pointer, None) == 0
pool, reserved = ctypes.c_void_p(), ctypes.c_uint64()
assert runtime.cudaDeviceGetDefaultMemPool(ctypes.byref(pool), 0) == 0
assert runtime.cudaMemPoolGetAttribute(pool, 5, ctypes.byref(reserved)) == 0  # cudaMemPoolAttrReservedMemCurrent
print("POOL", reserved.value, flush=True)
print("DONE", flush=True)
while not os.path.exists("DIR/hold"):
    time.sleep(0.005)
`

// TestBalanceRaw: what is left over beside the context is what the text says that it is.
func TestBalanceRaw(t *testing.T) {
	b := startBalancedCode(t, rawJob)
	c := b.watch(t)
	summary := c.stdout.String()
	rows := section(t, summary)
	require.EqualValues(t, 3*1000, byLine(rows, "small"), summary)
	require.EqualValues(t, 8<<20, byLine(rows, "pooled"), summary)
	var pool int64 // what it has of the driver
	_, err := fmt.Sscanf(b.await(t, "POOL"), "POOL %d", &pool)
	require.NoError(t, err)
	require.GreaterOrEqual(t, pool, int64(40<<20))
	const page = 2 << 20
	require.Equal(t, contextMemory+page-3*1000+pool-8<<20, rows["context and unexplained"], summary)
	require.Equal(t, []int64{rows["device"], 0}, standinUsed(t, b))
	require.Contains(t, summary, "stream-ordered pool")
	require.NotContains(t, rows, "torch")
}

// TestBalanceVisible: a program that chooses its devices itself numbers them otherwise than the driver.
func TestBalanceVisible(t *testing.T) {
	b := startBalancedCode(t, `
import os
os.environ["CUDA_VISIBLE_DEVICES"] = "1,0"
import time, torch
held = torch.empty(3 << 20, device="cuda:0")
print("READY", os.getpid(), flush=True)
time.sleep(600)
`)
	b.ready(t)
	stdout, stderr, code := b.dump(t, nil, "-f", "json")
	require.Zero(t, code, stderr)
	used := standinUsed(t, b)
	require.Equal(t, []int64{0, contextMemory + 12<<20}, used, "on the driver's second device")
	d := driverOf(t, stdout)
	require.Equal(t, used[1], *d[0].Driver.Used)
	require.EqualValues(t, contextMemory, *d[0].BesideTorch)
	require.Nil(t, d[1].Driver)
}

// standinUsed is the account that the stand-in's driver keeps of the job (in testdata/standin/standin.h): bytes
// by device.
func standinUsed(t *testing.T, b *balanced) []int64 {
	t.Helper()
	const devices = 8
	text, err := os.ReadFile(strings.TrimPrefix(b.environment[0], "STANDIN_SHM="))
	require.NoError(t, err)
	for slot := range len(text) / (8 + 8*devices) {
		fields := text[slot*(8+8*devices):]
		if binary.LittleEndian.Uint32(fields) != uint32(b.pid) {
			continue
		}
		out := make([]int64, 2)
		for i := range out {
			out[i] = int64(binary.LittleEndian.Uint64(fields[8+8*i:]))
		}
		return out
	}
	require.FailNow(t, "the job is not in the stand-in's account")
	return nil
}
