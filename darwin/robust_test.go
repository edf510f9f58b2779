// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package darwin

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gputrace/gputrace/darwin/ring"
	"github.com/gputrace/gputrace/export"
	"github.com/gputrace/gputrace/recorder"
)

// TestExec: a process that becomes another program by exec is a recording each, under the one number, and what the
// first had written is not lost.
func TestExec(t *testing.T) {
	f := buildFake(t)
	results, n, o, err := record(t, f, nil, python(t, "3.11"), "testdata/mac/become.py", "3", "0")
	require.NoError(t, err)
	traces := written(t, results, n, o, 3)
	var live []uint64
	for _, trace := range traces {
		in, err := export.Open(trace, nil)
		require.NoError(t, err)
		input, err := in.Input(nil, "test", func(err error) { t.Error(err) })
		require.NoError(t, err)
		v, err := input.View()
		require.NoError(t, err)
		a := &v.Snapshot.Accounts[0]
		require.EqualValues(t, 20_000, a.Frees)
		require.Zero(t, v.Snapshot.LossIntervalCount)
		live = append(live, a.Live.Requested)
		require.NoError(t, in.Close())
	}
	require.ElementsMatch(t, []uint64{1_000_000, 2_000_000, 3_000_000}, live)
}

// busy is an observer that takes long: nothing is read until the process that arrived has ended.
type busy struct {
	*noted
	pid int
}

func (b *busy) Attached(p *recorder.Process) {
	b.pid = p.PID()
	for running(b.pid) {
		time.Sleep(time.Millisecond)
	}
}

// TestEndsUnread: a process that writes more than is taken at once, and ends before that is read, loses nothing.
func TestEndsUnread(t *testing.T) {
	f := buildFake(t)
	var b *busy
	change := func(o *recorder.Options) {
		b = &busy{noted: o.Observer.(*noted)}
		o.Observer = b
	}
	results, n, o, err := record(t, f, change, python(t, "3.11"), "testdata/mac/become.py", "1", "0")
	require.NoError(t, err)
	require.NotZero(t, b.pid)
	in, err := export.Open(written(t, results, n, o, 1)[0], nil)
	require.NoError(t, err)
	defer in.Close()
	input, err := in.Input(nil, "test", func(err error) { t.Error(err) })
	require.NoError(t, err)
	v, err := input.View()
	require.NoError(t, err)
	require.EqualValues(t, 20_000, v.Snapshot.Accounts[0].Frees)
	require.EqualValues(t, 1_000_000, v.Snapshot.Accounts[0].Live.Requested)
}

// ringToRead is where a copy of this test, which reads a ring until it is killed, finds the name of its file.
const ringToRead = "GPUTRACE_TEST_RING"

// TestReaderKilled: when gputrace is killed, the thread of the shim ends, and with it all writing. While gputrace is there it goes on.
func TestReaderKilled(t *testing.T) {
	if path := os.Getenv(ringToRead); path != "" {
		_, err := ring.Open(path)
		require.NoError(t, err)
		fmt.Println("reads")
		select {} // until it is killed
	}
	f := buildFake(t)
	cmd := exec.Command(python(t, "3.11"), "testdata/mac/late.py", f.asked, filepath.Join(t.TempDir(), "hold"))
	cmd.Env = f.environ(t)
	startUntilEnd(t, cmd)
	path := filepath.Join(f.dir, fmt.Sprint(cmd.Process.Pid)+".ring")
	threads := func() int {
		tasks, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", cmd.Process.Pid))
		return len(tasks)
	}
	require.Eventually(t, func() bool { return threads() == 2 }, time.Minute, 10*time.Millisecond, "the program's and the shim's")

	reader := exec.Command(os.Args[0], "-test.run", "^TestReaderKilled$")
	reader.Env = append(os.Environ(), ringToRead+"="+path)
	out, err := reader.StdoutPipe()
	require.NoError(t, err)
	startUntilEnd(t, reader)
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "reads\n", line)
	time.Sleep(3 * time.Second) // the shim looks several times
	require.Equal(t, 2, threads())
	require.NoError(t, reader.Process.Kill())
	_ = reader.Wait() // killed
	require.Eventually(t, func() bool { return threads() == 1 }, time.Minute, 10*time.Millisecond)
}

// startUntilEnd starts a program that is killed, if it still runs, when the test ends.
func startUntilEnd(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
}

// TestFullDisk: where there is no room for the ring the program goes on, untraced, and gputrace says why. To write
// to a mapping without room would end it.
func TestFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("to mount a small disk needs root")
	}
	f := buildFake(t)
	disk := t.TempDir()
	require.NoError(t, unix.Mount("none", disk, "tmpfs", 0, "size=1m"))
	t.Cleanup(func() { require.NoError(t, unix.Unmount(disk, 0)) })
	t.Setenv("TMPDIR", disk)
	done := filepath.Join(filepath.Dir(f.asked), "done")
	_, n, _, err := record(t, f, nil,
		python(t, "3.11"), "-c", "import sys; exec(open('testdata/mac/become.py').read()); open(sys.argv[3], 'w').write('yes')", "1", "0", done)
	require.ErrorIs(t, err, recorder.ErrEndedEarly)
	require.Contains(t, strings.Join(n.warnings, "\n"), "no room for the events")
	text, err := os.ReadFile(done)
	require.NoError(t, err, "the program was not let go on")
	require.Equal(t, "yes", string(text))
}

// TestForkedDevice: a child of fork that asks for the device gets no ring of its own, and does not wait for one.
func TestForkedDevice(t *testing.T) {
	f := buildFake(t)
	cmd := exec.Command(python(t, "3.11"), "testdata/mac/become.py", "1", "0", "fork")
	cmd.Env = f.environ(t)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	rings, err := filepath.Glob(filepath.Join(f.dir, "*.ring"))
	require.NoError(t, err)
	require.Len(t, rings, 1)
}

// TestHostileRing: a program that writes over its own ring costs its own recording, from there on, and no more:
// what was written over is a loss, and gputrace ends as it would.
func TestHostileRing(t *testing.T) {
	f := buildFake(t)
	program := `
import glob, mmap, os, sys
exec(open('testdata/mac/become.py').read())
path, = glob.glob(os.environ['GPUTRACE_DIR'] + '/*.ring')
with open(path, 'r+b') as f:
    m = mmap.mmap(f.fileno(), 0)
%s
for i in range(1000):
    lib.torch_free(lib.torch_empty(50_000, 0))
`
	for name, change := range map[string]string{
		"records":  "m[16384:] = os.urandom(len(m) - 16384)",
		"head":     "m[64:72] = (1 << 63).to_bytes(8, 'little')",
		"tail":     "m[128:136] = (1 << 62).to_bytes(8, 'little')",
		"header":   "m[0:64] = os.urandom(64)",
		"counters": "m[208:656] = b'\\xff' * 448",
	} {
		t.Run(name, func(t *testing.T) {
			results, _, _, err := record(t, f, nil, python(t, "3.11"), "-c", fmt.Sprintf(program, change), "1", "0")
			if err == nil {
				require.NoError(t, results.Err())
				_, err = results.Write()
			}
			require.NoError(t, err)
		})
	}
}

// TestGarbageIsLost: of a ring that makes no sense any more, what the program emits is counted as lost.
func TestGarbageIsLost(t *testing.T) {
	f := buildFake(t)
	cmd := exec.Command(python(t, "3.11"), "testdata/mac/become.py", "1", "0")
	cmd.Env = f.environ(t)
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	path := filepath.Join(f.dir, fmt.Sprint(cmd.Process.Pid)+".ring")
	ring, err := os.OpenFile(path, os.O_RDWR, 0)
	require.NoError(t, err)
	_, err = ring.WriteAt(binary.LittleEndian.AppendUint32(nil, 7), 16384) // the size of the first record
	require.NoError(t, err)
	require.NoError(t, ring.Close())
	n := &noted{}
	s := &source{options: &recorder.Options{Observer: n}, dir: f.dir, known: map[string]bool{}}
	s.look(true)
	require.False(t, s.readRings())
	require.Contains(t, strings.Join(n.warnings, "\n"), "a record of 7 bytes")
	s.readRings()
	require.Greater(t, s.Lost(), uint64(40_000), "all that was emitted")
	require.Len(t, n.warnings, 1)
}
