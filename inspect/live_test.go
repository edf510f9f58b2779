//go:build linux

package inspect

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sort"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/process"
)

// oracle is what testdata/oracle.py writes: PyTorch's own view.
type oracle struct {
	Version             string
	Allocated, Reserved []uint64
	Held                [][2]uint64 // address, bytes asked for
	Segments            []oracleSegment
}

type oracleSegment struct {
	Device       int
	Address      uint64
	TotalSize    uint64     `json:"total_size"`
	ActiveSize   uint64     `json:"active_size"`
	Stream       uint64     `json:"stream"`
	SegmentType  string     `json:"segment_type"`
	PoolID       *[2]uint64 `json:"segment_pool_id"` // nil before 2.1
	IsExpandable bool       `json:"is_expandable"`
	Blocks       []struct {
		Size      uint64
		Requested uint64 `json:"requested_size"`
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
		seg := Segment{Addr: s.Address, Size: s.TotalSize, Stream: s.Stream, Pool: Pool{Small: s.SegmentType == "small"}, Expandable: s.IsExpandable}
		if s.PoolID != nil {
			seg.Pool.ID = *s.PoolID
		}
		at := s.Address
		for _, b := range s.Blocks {
			block := Block{Addr: at, Size: b.Size, Stream: s.Stream}
			for _, state := range []State{StateFree, StateAllocated, StatePending} {
				if name := b.State; name == state.String() || stateNames[name] == state.String() {
					block.State = state
				}
			}
			if block.State != StateFree {
				block.Requested = b.Requested
			}
			seg.Blocks = append(seg.Blocks, block)
			at += b.Size
		}
		out = append(out, seg)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Addr < out[j].Addr })
	return out
}

// check compares a map with PyTorch's view.
func (o *oracle) check(t *testing.T, device int, got []Segment) {
	t.Helper()
	if len(o.Segments) > 0 && o.Segments[0].PoolID == nil {
		got = slices.Clone(got)
		for i := range got {
			got[i].Pool.ID = [2]uint64{}
		}
	}
	assert.Equal(t, o.normal(device), got)
}

func TestMapEqualsSnapshot(t *testing.T) {
	for _, c := range []struct {
		scenario string
		env      []string
		segments int // at least, so that the comparison cannot be empty
	}{
		{"plain", nil, 4},
		{"many", nil, 100},
		{"streams", []string{"STANDIN_EVENT_US=3600000000"}, 6},
		{"graphs", nil, 6},
		{"pools", nil, 8},
		{"devices", []string{"STANDIN_GPUS=3"}, 4},
		{"reset", nil, 4},
		{"emptied", nil, 0},
		{"initialised", nil, 0},
		{"plain", []string{"PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"}, 2},
		{"streams", []string{"PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", "STANDIN_EVENT_US=3600000000"}, 4},
		{"graphs", []string{"PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"}, 4},
		{"plain", []string{"PYTORCH_CUDA_ALLOC_CONF=roundup_power2_divisions:4,max_split_size_mb:64"}, 4},
	} {
		t.Run(filepath.Join(append([]string{c.scenario}, c.env...)...), func(t *testing.T) {
			p, o := start(t, c.scenario, c.env...)
			t.Log("PyTorch", o.Version)
			a, err := Find(p)
			require.NoError(t, err)
			checkTotals(t, a, o)
			m, err := a.Map()
			require.NoError(t, err)
			require.GreaterOrEqual(t, len(o.Segments), c.segments)
			require.Len(t, m.Devices, len(o.Allocated))
			for i, d := range m.Devices {
				assert.Equal(t, DeviceTotals{i, o.Allocated[i], o.Reserved[i]}, d.DeviceTotals)
				o.check(t, i, d.Segments)
			}
		})
	}
}

func checkTotals(t *testing.T, a *Allocator, o *oracle) {
	t.Helper()
	totals, err := a.Totals()
	require.NoError(t, err)
	require.Len(t, totals, len(o.Allocated))
	for i, d := range totals {
		assert.Equal(t, DeviceTotals{i, o.Allocated[i], o.Reserved[i]}, d)
	}
}

// TestFind tells apart what is not the native allocator, or not there.
func TestFind(t *testing.T) {
	t.Run("cudaMallocAsync", func(t *testing.T) {
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
		totals, err := a.Totals()
		require.NoError(t, err)
		assert.Empty(t, totals)
		m, err := a.Map()
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
		_, err = a.Totals()
		assert.Error(t, err)
		_, err = a.Map()
		assert.Error(t, err)
	})
}

// TestBusy reads the books of jobs at full speed: a map is right or refused, and enough of them are had.
func TestBusy(t *testing.T) {
	for _, scenario := range []string{"busy", "storm"} {
		t.Run(scenario, func(t *testing.T) {
			p, o := start(t, scenario)
			t.Log("PyTorch", o.Version)
			a, err := Find(p)
			require.NoError(t, err)
			good, changed, blocks := 0, 0, 0
			var took time.Duration
			for end := time.Now().Add(5 * time.Second); time.Now().Before(end); {
				t0 := time.Now()
				m, err := a.Map()
				if errors.Is(err, ErrChanged) {
					changed++
					t.Log(err)
					continue
				}
				require.NoError(t, err)
				good++
				took += time.Since(t0)
				blocks += checkSound(t, m, o)
				_, err = a.Totals()
				require.NoError(t, err)
			}
			t.Logf("%d maps, %d refused, %.1f blocks each, %s each", good, changed, float64(blocks)/float64(good), took/time.Duration(max(good, 1)))
			assert.Greater(t, good, changed)
		})
	}
}

// checkSound checks a map of a running job by what must be true of it in any case: it adds up, and the tensors that the job
// holds for good are there. It gives the number of blocks.
func checkSound(t *testing.T, m *Map, o *oracle) int {
	t.Helper()
	at := checkSums(t, &m.Devices[0])
	require.NotEmpty(t, o.Held)
	for _, h := range o.Held {
		require.Equal(t, StateAllocated, at[h[0]].State)
		require.Equal(t, h[1], at[h[0]].Requested)
	}
	return len(at)
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

// BenchmarkMap reads 67,000 blocks and as many holes; BenchmarkTotals the totals.
func BenchmarkMap(b *testing.B) {
	p, _ := start(b, "many")
	a, err := Find(p)
	require.NoError(b, err)
	b.Run("map", func(b *testing.B) {
		for b.Loop() {
			_, err := a.Map()
			require.NoError(b, err)
		}
	})
	b.Run("totals", func(b *testing.B) {
		for b.Loop() {
			_, err := a.Totals()
			require.NoError(b, err)
		}
	})
}
