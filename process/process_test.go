//go:build linux

package process

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// child starts a shell that prints a line and then waits for its input to end.
func child(t *testing.T, script string) (cmd *exec.Cmd, line string) {
	t.Helper()
	cmd = exec.Command("/bin/sh", "-c", script)
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		in.Close()
		_ = cmd.Wait()
	})
	line, err = bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	return cmd, strings.TrimSpace(line)
}

func TestOpenSelf(t *testing.T) {
	p := self(t)
	require.Equal(t, os.Getpid(), p.PID)
	require.True(t, p.Alive())

	uid, err := p.UID()
	require.NoError(t, err)
	require.Equal(t, os.Geteuid(), uid)
	exe, err := p.Exe()
	require.NoError(t, err)
	want, err := os.Executable()
	require.NoError(t, err)
	require.Equal(t, want, exe)
	cwd, err := os.Getwd()
	require.NoError(t, err)
	require.Equal(t, cwd, p.Cwd())
	require.Equal(t, os.Args, p.Cmdline(1000))
	require.Equal(t, os.Args[:1], p.Cmdline(1))
	require.Equal(t, truncate(filepath.Base(want), 15), p.Name()) // TASK_COMM_LEN of linux/sched.h, with its zero, is 16
}

func truncate(s string, n int) string { return s[:min(n, len(s))] }

// TestOpenOddName: the name that a process gives itself must not shift the fields of its stat line.
func TestOpenOddName(t *testing.T) {
	name := filepath.Join(t.TempDir(), "a) R 1 (b")
	require.NoError(t, os.Symlink("/bin/cat", name))
	cmd := exec.Command(name)
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	defer func() {
		in.Close()
		_ = cmd.Wait()
	}()
	_, err = in.Write([]byte("x"))
	require.NoError(t, err)
	_, err = io.ReadFull(out, make([]byte, 1)) // it is cat by now
	require.NoError(t, err)

	p, err := Open(cmd.Process.Pid)
	require.NoError(t, err)
	require.Equal(t, "a) R 1 (b", p.Name())
	require.GreaterOrEqual(t, p.StartTime, self(t).StartTime)
	require.True(t, p.Alive())
}

// TestStartTime compares with ps.
func TestStartTime(t *testing.T) {
	// Ticks are 1/100 s for every architecture of Linux that user space sees (USER_HZ).
	out, err := exec.Command("ps", "-o", "etimes=", "-p", strconv.Itoa(os.Getpid())).Output()
	require.NoError(t, err)
	age, err := strconv.ParseFloat(strings.TrimSpace(string(out)), 64)
	require.NoError(t, err)
	var ts unix.Timespec
	require.NoError(t, unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts))
	require.InDelta(t, age, float64(ts.Nano())/1e9-float64(self(t).StartTime)/100, 2)
}

func TestOpenThread(t *testing.T) {
	tids := make(chan int)
	done := make(chan struct{})
	go func() {
		runtime.LockOSThread()
		tids <- unix.Gettid()
		<-done
	}()
	defer close(done)
	tid := <-tids
	if tid == os.Getpid() { // the goroutine got the main thread: any other will do
		tasks, err := os.ReadDir("/proc/self/task")
		require.NoError(t, err)
		tid, err = strconv.Atoi(tasks[len(tasks)-1].Name())
		require.NoError(t, err)
	}
	_, err := Open(tid)
	require.ErrorIs(t, err, ErrNotExist)
	require.ErrorContains(t, err, fmt.Sprintf("thread of process %d", os.Getpid()))
}

func TestGone(t *testing.T) {
	cmd, _ := child(t, "echo ready; read x")
	p, err := Open(cmd.Process.Pid)
	require.NoError(t, err)
	fd, err := p.Pidfd()
	require.NoError(t, err)
	defer unix.Close(fd)
	require.True(t, p.Alive())
	require.NoError(t, cmd.Process.Kill())
	waitReadable(t, fd)

	// Until it is waited for, it is a zombie.
	require.False(t, p.Alive(), "a zombie")
	maps, err := p.Maps()
	if err == nil {
		require.Empty(t, maps)
	}
	_ = cmd.Wait()
	require.False(t, p.Alive(), "gone")
	_, err = p.Maps()
	require.ErrorIs(t, err, ErrNotExist)
	_, err = p.UID()
	require.ErrorIs(t, err, ErrNotExist)
	_, err = p.ReadAt(make([]byte, 8), 0x1000)
	require.ErrorIs(t, err, ErrNotExist)
	_, err = p.OpenPath("/etc/passwd")
	require.ErrorIs(t, err, ErrNotExist)
	require.Empty(t, p.Name())
	require.Empty(t, p.Cmdline(10))
	require.Empty(t, p.Children())
	_, err = Open(p.PID)
	require.ErrorIs(t, err, ErrNotExist)
}

func waitReadable(t *testing.T, fd int) {
	t.Helper()
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 10_000)
	require.NoError(t, err)
	require.Equal(t, 1, n)
}

// TestReusedNumber: another process under the same number is not ours.
func TestReusedNumber(t *testing.T) {
	p := self(t)
	p.StartTime++
	require.False(t, p.Alive())
}

func TestOpenRefuses(t *testing.T) {
	for _, pid := range []int{-1, 0, 1 << 30} {
		_, err := Open(pid)
		require.ErrorIs(t, err, ErrNotExist, "pid %d", pid)
	}
}

func TestChildren(t *testing.T) {
	cmd, line := child(t, "sleep 60 & echo $!; read x; kill $!")
	want, err := strconv.Atoi(line)
	require.NoError(t, err)
	p, err := Open(cmd.Process.Pid)
	require.NoError(t, err)
	require.Equal(t, []int{want}, p.Children())
}

// TestOpenPathStaysInRoot uses a process whose root directory is a folder of ours.
func TestOpenPathStaysInRoot(t *testing.T) {
	root := t.TempDir()
	outside := filepath.Join(t.TempDir(), "secret")
	require.NoError(t, os.WriteFile(outside, []byte("outside"), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(root, "inside"), []byte("inside"), 0o644))
	require.NoError(t, os.Mkdir(filepath.Join(root, "dir"), 0o755))
	for link, to := range map[string]string{
		"relative": "inside", "absolute": "/inside", "escape": outside, "climb": "../../../../../../.." + outside, "loop": "loop",
	} {
		require.NoError(t, os.Symlink(to, filepath.Join(root, link)))
	}
	require.NoError(t, unix.Mkfifo(filepath.Join(root, "pipe"), 0o644))
	p := rooted(t, root)

	for _, path := range []string{"/inside", "inside", "/relative", "/absolute", "/dir/../../../inside"} {
		f, err := p.OpenPath(path)
		require.NoError(t, err, path)
		b, err := io.ReadAll(f)
		f.Close()
		require.NoError(t, err)
		require.Equal(t, "inside", string(b), path)
	}
	for _, path := range []string{"/escape", "/climb", "../" + outside, outside, "/loop", "/dir", "/pipe", "/", ""} {
		f, err := p.OpenPath(path)
		require.Error(t, err, path)
		require.Nil(t, f, path)
	}
}

// rooted gives a process whose /proc entry is a folder in which "root" leads to dir, as the kernel's magic link would.
func rooted(t *testing.T, dir string) *Process {
	t.Helper()
	proc := t.TempDir()
	require.NoError(t, os.Symlink(dir, filepath.Join(proc, "root")))
	return &Process{PID: os.Getpid(), root: proc}
}

func TestReadAt(t *testing.T) {
	p := self(t)
	words := [2]uint64{0x0123456789abcdef, 42}
	addr := uint64(uintptr(unsafe.Pointer(&words)))
	got, err := Uint64(p, addr)
	require.NoError(t, err)
	require.Equal(t, words[0], got)
	b := make([]byte, 16)
	n, err := p.ReadAt(b, addr)
	require.NoError(t, err)
	require.Equal(t, 16, n)
	require.Equal(t, byte(42), b[8])
	n, err = p.ReadAt(nil, 0)
	require.NoError(t, err)
	require.Zero(t, n)
	runtime.KeepAlive(&words)
}

// TestReadAtEnd reads over the end of a mapping: what is there is given, with the error that says so.
func TestReadAtEnd(t *testing.T) {
	page := os.Getpagesize()
	b, err := unix.Mmap(-1, 0, 2*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	require.NoError(t, err)
	defer func() { require.NoError(t, unix.Munmap(b)) }()
	b[page-1] = 7
	require.NoError(t, unix.Mprotect(b[page:], unix.PROT_NONE))
	end := uint64(uintptr(unsafe.Pointer(&b[0]))) + uint64(page)

	got := make([]byte, 8)
	n, err := self(t).ReadAt(got, end-4)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.Equal(t, 4, n)
	require.Equal(t, byte(7), got[3])
	_, err = Uint64(self(t), end)
	require.Error(t, err)
}

func TestReadAtRefuses(t *testing.T) {
	for _, addr := range []uint64{0, 1 << 63, 1<<64 - 1} {
		_, err := self(t).ReadAt(make([]byte, 8), addr)
		require.Error(t, err, "%#x", addr)
	}
}
