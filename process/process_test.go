// SPDX-License-Identifier: Apache-2.0

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

func TestEnded(t *testing.T) {
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
	p := rooted(t, root, 0)

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

// TestOpenPathAsTheUser: what the process's user may not read is not read for it, on whatever way it leads there.
func TestOpenPathAsTheUser(t *testing.T) {
	const user, team, other = 1234, 77, 4321
	root := t.TempDir()
	write := func(name string, mode os.FileMode, uid, gid int) {
		path := filepath.Join(root, name)
		require.NoError(t, os.WriteFile(path, []byte("text"), 0o600))
		require.NoError(t, os.Chown(path, uid, gid))
		require.NoError(t, os.Chmod(path, mode))
	}
	for dir, mode := range map[string]os.FileMode{"open": 0o755, "closed": 0o700, "closed/below": 0o755, "search": 0o711} {
		require.NoError(t, os.MkdirAll(filepath.Join(root, dir), 0o755)) // one may come before the one that it is in
		defer os.Chmod(filepath.Join(root, dir), 0o755)
		require.NoError(t, os.Chmod(filepath.Join(root, dir), mode))
	}
	write("open/public", 0o644, other, other)
	write("open/secret", 0o600, other, other)
	write("open/mine", 0o400, user, other)
	write("open/denied", 0o044, user, other) // its owner may not, whatever others may
	write("open/team", 0o640, other, team)
	write("open/team-denied", 0o604, other, team)
	write("closed/public", 0o644, other, other)
	write("closed/below/public", 0o644, other, other)
	write("search/public", 0o644, other, other)
	for link, to := range map[string]string{"to-closed": "closed/below", "open/to-public": "public", "open/to-secret": "/open/secret"} {
		require.NoError(t, os.Symlink(to, filepath.Join(root, link)))
	}
	require.NoError(t, os.Chmod(root, 0o755))
	for path, want := range map[string]map[int]bool{ // by user: root reads all
		"/open/public": {0: true, user: true}, "/open/secret": {0: true}, "/open/mine": {0: true, user: true}, "/open/denied": {0: true},
		"/open/team": {0: true, user: true}, "/open/team-denied": {0: true}, "/closed/public": {0: true}, "/closed/below/public": {0: true},
		"/search/public": {0: true, user: true}, "/to-closed/public": {0: true}, "/open/to-public": {0: true, user: true},
		"/open/to-secret": {0: true}, "/open/../open/public": {0: true, user: true},
	} {
		for _, uid := range []int{0, user} {
			f, err := rooted(t, root, uid, 5, team).OpenPath(path)
			require.Equal(t, want[uid], err == nil, "%s by %d: %v", path, uid, err)
			if err == nil {
				f.Close()
			} else {
				require.ErrorIs(t, err, ErrPermission)
			}
		}
	}
}

// TestRootOutlives: a root directory that is held can be looked into when its process has ended.
func TestRootOutlives(t *testing.T) {
	path := filepath.Join(t.TempDir(), "text")
	require.NoError(t, os.WriteFile(path, []byte("text"), 0o644))
	cmd := exec.Command("/bin/sh", "-c", "echo; read x")
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	p, err := Open(cmd.Process.Pid)
	require.NoError(t, err)
	r, err := p.Root()
	require.NoError(t, err)
	defer r.Close()
	in.Close()
	_ = cmd.Wait()
	require.False(t, p.Alive())
	f, err := r.Open(path)
	require.NoError(t, err)
	f.Close()
	_, err = p.OpenPath(path)
	require.ErrorIs(t, err, ErrNotExist)
}

// TestOpenFileStaysInRoot: where the kernel's link to a mapped file cannot be followed, its path leads no further than the
// process's own root directory, and to no other file than the mapped one.
func TestOpenFileStaysInRoot(t *testing.T) {
	root, outside := t.TempDir(), filepath.Join(t.TempDir(), "outside")
	require.NoError(t, os.WriteFile(outside, []byte("outside"), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(root, "inside"), []byte("inside"), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(root, "new\nline"), []byte("inside"), 0o644))
	require.NoError(t, os.Symlink(outside, filepath.Join(root, "escape")))
	require.NoError(t, os.Symlink("../../../../../.."+outside, filepath.Join(root, "climb")))
	p := rooted(t, root, 0)
	inode := func(path string) uint64 {
		var st unix.Stat_t
		require.NoError(t, unix.Stat(path, &st))
		return st.Ino
	}
	for path, ok := range map[string]bool{"/inside": true, "/escape": false, "/climb": false, outside: false, `/new\012line`: true} {
		m := &Mapping{Start: 0x1000, End: 0x2000, Inode: inode(outside), Path: path}
		if ok {
			m.Inode = inode(filepath.Join(root, strings.ReplaceAll(path, `\012`, "\n")))
		}
		f, err := p.OpenFile(m)
		require.Equal(t, ok, err == nil, "%s: %v", path, err)
		require.Equal(t, ok, p.FileID(m) != FileID{}, path)
		if err == nil {
			f.Close()
		}
	}
	_, err := p.OpenFile(&Mapping{Start: 0x1000, End: 0x2000, Inode: inode(outside), Path: "/inside"})
	require.ErrorContains(t, err, "another file")
	require.ErrorContains(t, err, "CAP_CHECKPOINT_RESTORE")
	require.False(t, p.Exists(outside))
	require.False(t, p.Exists("/escape/x"))
	require.True(t, p.Exists("/escape"), "a link at the end is not followed")
}

// rooted returns a process of a user and groups whose /proc entry is a folder in which "root" leads to dir, as the kernel's magic link
// would.
func rooted(t *testing.T, dir string, uid int, gids ...int) *Process {
	t.Helper()
	proc := t.TempDir()
	require.NoError(t, os.Symlink(dir, filepath.Join(proc, "root")))
	ids := append(gids, 9)
	status := fmt.Sprintf("Name:\tx\nUid:\t1\t1\t1\t%d\nGid:\t1\t1\t1\t%d\nGroups:\t%s\n", uid, ids[0],
		strings.Trim(fmt.Sprint(ids[1:]), "[]"))
	require.NoError(t, os.WriteFile(filepath.Join(proc, "status"), []byte(status), 0o644))
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
