// SPDX-License-Identifier: Apache-2.0

//go:build linux

package inspect

import (
	"bufio"
	"bytes"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/inspect/internal/deviceobject"
	"github.com/gputrace/gputrace/process"
)

// oracle is what testdata/oracle.py writes: PyTorch's own view.
type oracle struct {
	Version             string
	Allocated, Reserved []uint64
	Limits              []uint64    // empty: the program has set none
	Sizes               []uint64    // total_memory of each device
	Held                [][2]uint64 // address, bytes asked for
	Segments            []oracleSegment
}

type oracleSegment struct {
	Device       int
	Address      uint64
	TotalSize    uint64     `json:"total_size"`
	ActiveSize   uint64     `json:"active_size"`
	Stream       *uint64    `json:"stream"` // nil before 2.0
	SegmentType  string     `json:"segment_type"`
	PoolID       *[2]uint64 `json:"segment_pool_id"` // nil before 2.1
	IsExpandable bool       `json:"is_expandable"`
	Blocks       []struct {
		Size      uint64
		Requested *uint64 `json:"requested_size"` // nil before 2.0
		State     string
	}
}

// start runs the oracle on the stand-in until it is ready. It ends when the test does.
func start(t testing.TB, scenario string, env ...string) (*process.Process, *oracle) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "oracle.json")
	cmd := exec.Command("../testdata/run", "testdata/oracle.py", scenario, file)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		stdin.Close()
		cmd.Wait()
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != io.EOF {
		require.NoError(t, err)
	}
	require.Equal(t, "ready\n", line, "the oracle did not start: %s", scenario)
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	var o oracle
	require.NoError(t, json.Unmarshal(b, &o))
	p, err := process.Open(cmd.Process.Pid)
	require.NoError(t, err)
	return p, &o
}

// stateNames are older spellings of PyTorch.
var stateNames = map[string]string{"active_awaiting_free": "active_pending_free"}

// normal brings PyTorch's view into the form of ours.
func (o *oracle) normal(device int) []Segment {
	var out []Segment
	for _, s := range o.Segments {
		if s.Device != device {
			continue
		}
		seg := Segment{Addr: s.Address, Size: s.TotalSize, Stream: orZero(s.Stream), Pool: Pool{Small: s.SegmentType == "small"},
			Expandable: s.IsExpandable}
		if s.PoolID != nil {
			seg.Pool.ID = *s.PoolID
		}
		at := s.Address
		for _, b := range s.Blocks {
			block := Block{Addr: at, Size: b.Size, Stream: seg.Stream}
			for _, state := range []State{StateFree, StateAllocated, StatePending} {
				if name := b.State; name == state.String() || stateNames[name] == state.String() {
					block.State = state
				}
			}
			switch {
			case block.State != StateFree && b.Requested == nil:
				block.Requested = Unknown
			case block.State != StateFree:
				block.Requested = *b.Requested
			}
			seg.Blocks = append(seg.Blocks, block)
			at += b.Size
		}
		out = append(out, seg)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Addr < out[j].Addr })
	return out
}

func orZero(v *uint64) uint64 {
	if v == nil {
		return 0
	}
	return *v
}

// check compares a map with PyTorch's view, as far as that goes: older versions show no pools and no streams.
func (o *oracle) check(t *testing.T, device int, got []Segment) {
	t.Helper()
	if len(o.Segments) > 0 {
		got = withoutUnseen(got, o.Segments[0].PoolID == nil, o.Segments[0].Stream == nil)
	}
	assert.Equal(t, o.normal(device), got)
}

func withoutUnseen(segments []Segment, pools, streams bool) []Segment {
	out := slices.Clone(segments)
	for i := range out {
		s := &out[i]
		s.Blocks = slices.Clone(s.Blocks)
		if pools {
			s.Pool.ID = [2]uint64{}
		}
		for j := range s.Blocks {
			if streams {
				s.Stream, s.Blocks[j].Stream = 0, 0
			}
		}
	}
	return out
}

// version is that of the PyTorch that setup.sh gives: major, minor.
func version(t testing.TB) [2]int {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(strings.TrimSpace(run(t, "../testdata/setup.sh", "--print", "site")), "torch/version.py"))
	require.NoError(t, err)
	var v [2]int
	_, line, _ := strings.Cut(string(b), "__version__ = '")
	_, err = fmt.Sscanf(line, "%d.%d.", &v[0], &v[1])
	require.NoError(t, err)
	return v
}

// needs leaves out a test of what a version of PyTorch does not have.
func needs(t *testing.T, since [2]int) {
	t.Helper()
	if v := version(t); slices.Compare(v[:], since[:]) < 0 {
		t.Skipf("PyTorch %d.%d does not have it: it came with %d.%d", v[0], v[1], since[0], since[1])
	}
}

// When PyTorch got what some of the scenarios need.
var (
	always       = [2]int{}
	sinceAsync   = [2]int{2, 0}
	sinceExpand  = [2]int{2, 1}
	sinceMemPool = [2]int{2, 5}
)

const (
	expandable = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
	slowEvents = "STANDIN_EVENT_US=3600000000" // blocks wait for another stream as long as the test lasts
)

// scenarios are what testdata/oracle.py can do.
var scenarios = []struct {
	name     string
	since    [2]int
	env      []string
	segments int // at least, so that a comparison cannot be empty
}{
	{"plain", always, nil, 4},
	{"many", always, nil, 100},
	{"streams", always, []string{slowEvents}, 6},
	{"graphs", always, nil, 6},
	{"pools", sinceMemPool, nil, 8},
	{"devices", always, []string{"STANDIN_GPUS=3"}, 4},
	{"everywhere", always, []string{"STANDIN_GPUS=3", slowEvents}, 12},
	{"reset", always, nil, 4},
	{"emptied", always, nil, 0},
	{"initialised", always, nil, 0},
	{"plain", sinceExpand, []string{expandable}, 2},
	{"streams", sinceExpand, []string{expandable, slowEvents}, 4},
	{"graphs", sinceExpand, []string{expandable}, 4},
	{"pools", sinceMemPool, []string{expandable}, 6},
	{"everywhere", sinceExpand, []string{expandable, "STANDIN_GPUS=3", slowEvents}, 8},
	{"plain", always, []string{"PYTORCH_CUDA_ALLOC_CONF=roundup_power2_divisions:4,max_split_size_mb:64"}, 4},
	{"plain", always, []string{"ORACLE_FRACTION=0.3"}, 4},
	{"pools", sinceMemPool, []string{"ORACLE_FRACTION=0.123456789"}, 6},
}

func TestMapEqualsSnapshot(t *testing.T) {
	for _, c := range scenarios {
		t.Run(filepath.Join(append([]string{c.name}, c.env...)...), func(t *testing.T) {
			needs(t, c.since)
			p, o := start(t, c.name, c.env...)
			t.Log("PyTorch", o.Version)
			require.GreaterOrEqual(t, len(o.Segments), c.segments)
			checkQuiet(t, p, o)
		})
	}
}

// checkQuiet compares all that can be read of a process which holds still with PyTorch's view.
func checkQuiet(t *testing.T, p *process.Process, o *oracle) {
	t.Helper()
	a, err := Find(p)
	require.NoError(t, err)
	checkTotals(t, a, o)
	checkLimits(t, a, o)
	checkSizes(t, a, o)
	s, err := a.Sweep(t.Context())
	require.NoError(t, err)
	m, err := a.Map(t.Context())
	require.NoError(t, err)
	require.Len(t, m.Devices, len(o.Allocated))
	require.Len(t, s.Devices, len(o.Allocated))
	for i, d := range m.Devices {
		total := DeviceTotals{i, o.Allocated[i], o.Reserved[i]}
		assert.Equal(t, total, d.DeviceTotals)
		o.check(t, i, d.Segments)
		checkWindow(t, d.Window, d.Time)
		swept := s.Devices[i]
		assert.Equal(t, []DeviceTotals{total, total}, []DeviceTotals{swept.Before, swept.After})
		assert.Equal(t, d.Segments, swept.Segments)
		assert.True(t, swept.Balanced)
		assert.Zero(t, swept.Skipped)
		checkWindow(t, swept.Window, swept.Window.To)
		assert.LessOrEqual(t, s.From, swept.Window.From)
		assert.GreaterOrEqual(t, s.To, swept.Window.To)
	}
	checkBusySweep(t, a, m)
}

func checkWindow(t *testing.T, w Window, moment uint64) {
	t.Helper()
	assert.NotZero(t, w.From)
	assert.LessOrEqual(t, w.From, moment)
	assert.LessOrEqual(t, moment, w.To)
	assert.True(t, w.Settled)
}

// checkBusySweep takes the way of a sweep that found no quiet moment: it must see the same.
func checkBusySweep(t *testing.T, a *Allocator, m *Map) {
	t.Helper()
	fresh := *a
	fresh.places = nil // as if no map had been read before
	for _, allocator := range []*Allocator{a, &fresh} {
		devices, err := allocator.devices(t.Context())
		require.NoError(t, err)
		for i, d := range devices {
			before, err := allocator.stats(t.Context(), d)
			require.NoError(t, err)
			s, err := allocator.sweepBusy(t.Context(), newPages(a.memory), d, i, before, Window{})
			require.NoError(t, err)
			assert.Equal(t, m.Devices[i].Segments, s.Segments)
			assert.False(t, s.Balanced)
			assert.Zero(t, s.Skipped)
		}
	}
}

// strip copies a library and wipes its symbols out, but for the exported ones. strip(1) damages some wheels. Those of the
// CUDA runtime that is in PyTorch 1.13's library stay: the stand-in needs them.
func strip(t *testing.T, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	require.NoError(t, err)
	f, err := elf.NewFile(bytes.NewReader(b))
	require.NoError(t, err)
	symbols, err := f.Symbols()
	require.NoError(t, err)
	table := b[f.SectionByType(elf.SHT_SYMTAB).Offset:]
	wiped := 0
	for i, s := range symbols {
		if !strings.HasPrefix(s.Name, "cuda") && !strings.HasPrefix(s.Name, "__cuda") {
			clear(table[(i+1)*elf.Sym64Size : (i+2)*elf.Sym64Size]) // the first entry is not listed
			wiped++
		}
	}
	require.Greater(t, wiped, 500)
	require.NoError(t, os.WriteFile(to, b, 0o700))
	require.NotContains(t, run(t, "nm", to), "CachingAllocator")
}

// TestStripped reads the allocator state of a program whose allocator's library has no symbols but the exported ones.
func TestStripped(t *testing.T) {
	lib := library(t)
	stripped := filepath.Join(t.TempDir(), "libc10_cuda.so")
	strip(t, lib, stripped)
	p, o := start(t, "mixed", slowEvents, "ORACLE_LIBRARY="+stripped, "LD_LIBRARY_PATH="+filepath.Dir(lib))
	maps, err := p.Maps()
	require.NoError(t, err)
	require.True(t, slices.ContainsFunc(maps, func(m process.Mapping) bool { return m.Path == stripped }))
	require.False(t, slices.ContainsFunc(maps, func(m process.Mapping) bool { return m.Path == lib }))
	checkQuiet(t, p, o)
}

func checkTotals(t *testing.T, a *Allocator, o *oracle) {
	t.Helper()
	totals, err := a.Totals(t.Context())
	require.NoError(t, err)
	require.Len(t, totals, len(o.Allocated))
	for i, d := range totals {
		assert.Equal(t, DeviceTotals{i, o.Allocated[i], o.Reserved[i]}, d)
	}
}

// checkLimits expects the program's own limit among what is found, where it has set one.
func checkLimits(t *testing.T, a *Allocator, o *oracle) {
	t.Helper()
	limits, err := a.Limits(t.Context())
	require.NoError(t, err)
	require.Len(t, limits, len(o.Allocated))
	for i := range limits {
		assert.Less(t, len(limits[i]), deviceobject.MaxLimits)
		if len(o.Limits) > 0 {
			want := []uint64{o.Limits[i], o.Limits[i] + 1} // 2.6.0 cuts off, 2.15.0 rounds
			assert.True(t, slices.ContainsFunc(limits[i], func(l uint64) bool { return slices.Contains(want, l) }), "%d in %d", want, limits[i])
		}
	}
}

// checkSizes expects the memory of each device, without NVML.
func checkSizes(t *testing.T, a *Allocator, o *oracle) {
	t.Helper()
	sizes, err := a.DeviceSizes(t.Context())
	require.NoError(t, err)
	assert.Equal(t, o.Sizes, sizes)
}

// TestFind tells apart what is not the native allocator, or not there.
func TestFind(t *testing.T) {
	t.Run("cudaMallocAsync", func(t *testing.T) {
		needs(t, sinceAsync)
		p, _ := start(t, "plain", "PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync")
		_, err := Find(p)
		require.ErrorIs(t, err, ErrOtherBackend)
		assert.ErrorContains(t, err, "CudaMallocAsyncAllocator")
		assert.ErrorContains(t, err, "libc10_cuda.so")
	})
	t.Run("not initialised", func(t *testing.T) {
		p, _ := start(t, "nothing")
		a, err := Find(p)
		require.NoError(t, err)
		totals, err := a.Totals(t.Context())
		require.NoError(t, err)
		assert.Empty(t, totals)
		m, err := a.Map(t.Context())
		require.NoError(t, err)
		assert.Empty(t, m.Devices)
	})
	t.Run("no PyTorch", func(t *testing.T) {
		p, err := process.Open(os.Getpid())
		require.NoError(t, err)
		_, err = Find(p)
		assert.ErrorIs(t, err, ErrNoAllocator)
	})
	t.Run("ended", func(t *testing.T) {
		p, _ := start(t, "plain")
		a, err := Find(p)
		require.NoError(t, err)
		target, err := os.FindProcess(p.PID)
		require.NoError(t, err)
		require.NoError(t, target.Kill())
		require.Eventually(t, func() bool { return !p.Alive() }, 10*time.Second, 10*time.Millisecond)
		_, err = a.Totals(t.Context())
		assert.Error(t, err)
		_, err = a.Map(t.Context())
		assert.Error(t, err)
	})
}

// TestBusy reads the allocator state of jobs at full speed: a map is right or refused, and a sweep has all that stays.
func TestBusy(t *testing.T) {
	for _, c := range []struct {
		scenario string
		since    [2]int
		env      []string
		must     bool // at least one map is had; not where so many blocks lie beside those that come and go
	}{
		{"busy", always, nil, true},
		{"storm", always, nil, true},
		{"storm", sinceExpand, []string{expandable}, true},
		{"threads", always, nil, true},
		{"flood", always, nil, false},
	} {
		t.Run(filepath.Join(append([]string{c.scenario}, c.env...)...), func(t *testing.T) {
			needs(t, c.since)
			p, o := start(t, c.scenario, c.env...)
			t.Log("PyTorch", o.Version)
			a, err := Find(p)
			require.NoError(t, err)
			good, changed, balanced, blocks := 0, 0, 0, 0
			end := time.Now().Add(3 * time.Second)
			late := end.Add(time.Minute) // on a machine that is busy with other work, a still moment can take a while to come
			for now := time.Now(); good+changed < 5 || now.Before(end) || c.must && good == 0 && now.Before(late); now = time.Now() {
				s, err := a.Sweep(t.Context())
				require.NoError(t, err)
				if checkSweep(t, s, o) {
					balanced++
				}
				m, err := a.Map(t.Context())
				if errors.Is(err, ErrChanged) {
					changed++
					t.Log(err)
					continue
				}
				require.NoError(t, err)
				good++
				blocks += checkSound(t, m, o)
				_, err = a.Totals(t.Context())
				require.NoError(t, err)
			}
			t.Logf("%d maps of %.1f blocks, %d refused; of %d sweeps %d were quiet", good, float64(blocks)/float64(max(good, 1)), changed,
				good+changed, balanced)
			assert.True(t, good > 0 || !c.must)
		})
	}
}

// checkSound checks a map of a running job by what must be true of it in any case: it adds up, and the tensors that the job
// holds for good are there. It gives the number of blocks.
func checkSound(t *testing.T, m *Map, o *oracle) int {
	t.Helper()
	at := checkSums(t, &m.Devices[0])
	checkHeld(t, at, o)
	return len(at)
}

// checkSweep does the same for a sweep, which need not add up, and tells whether it does.
func checkSweep(t *testing.T, s *Sweep, o *oracle) bool {
	t.Helper()
	d := &s.Devices[0]
	require.True(t, s.Settled)
	if d.Balanced {
		active := uint64(0)
		for i := range d.Segments {
			for _, b := range d.Segments[i].Blocks {
				if b.State != StateFree {
					active += b.Size
				}
			}
		}
		checkHeld(t, checkSums(t, &DeviceMap{DeviceTotals: d.Before, Active: active, Segments: d.Segments}), o)
		return true
	}
	at := checkApart(t, d.Segments)
	checkHeld(t, at, o)
	return false
}

func checkHeld(t *testing.T, at map[uint64]Block, o *oracle) {
	t.Helper()
	require.NotEmpty(t, o.Held)
	for _, h := range o.Held {
		b := at[h[0]]
		require.Equal(t, StateAllocated, b.State, "block at %#x", h[0])
		if b.Requested != Unknown {
			require.Equal(t, h[1], b.Requested)
		}
	}
}

// checkSums checks that segments are full of blocks and that these add up to the totals. It gives the blocks by address.
func checkSums(t *testing.T, d *DeviceMap) map[uint64]Block {
	t.Helper()
	at := map[uint64]Block{}
	bytes := map[State]uint64{}
	for _, s := range d.Segments {
		end := s.Addr
		for _, b := range s.Blocks {
			require.Equal(t, end, b.Addr)
			end += b.Size
			bytes[b.State] += b.Size
			at[b.Addr] = b
		}
		require.Equal(t, s.Addr+s.Size, end)
	}
	active := bytes[StateAllocated] + bytes[StatePending]
	require.Equal(t, []uint64{d.Allocated, d.Active, d.Reserved}, []uint64{bytes[StateAllocated], active, active + bytes[StateFree]})
	return at
}

// BenchmarkMap reads as many blocks and half as many free ones in the ways that there are; the last is that of a sweep which
// finds no quiet moment.
func BenchmarkMap(b *testing.B) {
	for _, blocks := range []int{1_000, 10_000, 100_000} {
		p, _ := start(b, "many", fmt.Sprint("ORACLE_BLOCKS=", blocks*3/2))
		a, err := Find(p)
		require.NoError(b, err)
		devices, err := a.devices(b.Context())
		require.NoError(b, err)
		for _, way := range []struct {
			name string
			read func() error
		}{
			{"totals", func() error { _, err := a.Totals(b.Context()); return err }},
			{"map", func() error { _, err := a.Map(b.Context()); return err }},
			{"sweep", func() error { _, err := a.Sweep(b.Context()); return err }},
			{"busy sweep", func() error {
				s, err := a.stats(b.Context(), devices[0])
				if err == nil {
					_, err = a.sweepBusy(b.Context(), newPages(a.memory), devices[0], 0, s, Window{})
				}
				return err
			}},
		} {
			b.Run(fmt.Sprint(blocks, " ", way.name), func(b *testing.B) {
				for b.Loop() {
					require.NoError(b, way.read())
				}
			})
		}
	}
}
