// SPDX-License-Identifier: Apache-2.0

package top

import (
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// fed is a feed that a test gives screens to.
type fed struct {
	next  chan *Screen
	asked chan struct{}
}

func (f *fed) Next(ctx context.Context) (*Screen, error) {
	select {
	case s, ok := <-f.next:
		if !ok {
			return nil, io.EOF
		}
		return s, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (f *fed) ReadHolders() { f.asked <- struct{}{} }

func serve(t *testing.T) (*fed, string, chan error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	f := &fed{next: make(chan *Screen), asked: make(chan struct{}, 1)}
	s, err := Serve(path, f)
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- s.Run(context.Background()) }()
	return f, path, done
}

func take(t *testing.T, r *Remote, want float64) *Screen {
	t.Helper()
	s, err := r.Next(context.Background())
	require.NoError(t, err)
	require.InDelta(t, want, s.Elapsed, 0)
	return s
}

// A client that comes back has all that it missed, and only the newest screen has stacks.
func TestConnectAgain(t *testing.T) {
	f, path, done := serve(t)
	f.next <- made(0)
	first, err := Connect(path, true)
	require.NoError(t, err)
	take(t, first, 0)
	stays, err := Connect(path, false)
	require.NoError(t, err)
	take(t, stays, 0)
	require.NoError(t, first.Close())
	f.next <- made(1)
	take(t, stays, 1)
	f.next <- made(2)
	take(t, stays, 2) // the server has it now

	again, err := Connect(path, true)
	require.NoError(t, err)
	for i := range 2 {
		require.Empty(t, take(t, again, float64(i)).Stacks)
	}
	take(t, again, 2)
	f.next <- made(3)
	s := take(t, again, 3)
	require.Equal(t, made(3).Tables, s.Tables)
	require.Equal(t, made(3).Stacks, s.Stacks)
	now, err := Connect(path, false)
	require.NoError(t, err)
	take(t, now, 3)
	again.ReadHolders()
	<-f.asked
	close(f.next)
	_, err = again.Next(context.Background())
	require.Equal(t, io.EOF, err)
	require.NoError(t, <-done)
	_, err = Connect(path, true)
	require.ErrorContains(t, err, "--serve")
}

// Nobody else has the right, a second server is refused, and a socket that was left over is replaced.
func TestServePlace(t *testing.T) {
	f, path, done := serve(t)
	info, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	_, err = Serve(path, f)
	require.ErrorContains(t, err, "another gputrace")
	close(f.next)
	require.NoError(t, <-done)

	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	require.NoError(t, err)
	l.SetUnlinkOnClose(false)
	require.NoError(t, l.Close())
	s, err := Serve(path, f)
	require.NoError(t, err)
	require.NoError(t, s.Run(context.Background()))

	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, []byte("mine"), 0o644))
	_, err = Serve(file, f)
	require.Error(t, err)
	kept, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, "mine", string(kept))
}

// A client that does not read holds nobody up.
func TestSlowClient(t *testing.T) {
	f, path, done := serve(t)
	slow, err := net.Dial("unix", path)
	require.NoError(t, err)
	defer slow.Close()
	quick, err := Connect(path, true)
	require.NoError(t, err)
	for i := range 400 {
		f.next <- made(i)
		take(t, quick, float64(i))
	}
	require.NoError(t, slow.Close())
	close(f.next)
	require.NoError(t, <-done)
}

// TestRegain: a recorder that ends before its job is waited for, and its successor's screens go on where those of the first ended.
func TestRegain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	first := &fed{next: make(chan *Screen), asked: make(chan struct{}, 1)}
	s, err := Serve(path, first)
	require.NoError(t, err)
	ctx, kill := context.WithCancel(context.Background())
	go func() { _ = s.Run(ctx) }()
	first.next <- made(0)
	r, err := Connect(path, true)
	require.NoError(t, err)
	take(t, r, 0)
	conn, _ := r.get()
	conn.Close() // as when the recorder is killed
	_, err = r.Next(context.Background())
	require.ErrorIs(t, err, ErrLost)
	kill()
	s.listener.Close()

	second := &fed{next: make(chan *Screen), asked: make(chan struct{}, 1)}
	require.Eventually(t, func() bool { s, err = Serve(path, second); return err == nil }, timeLimit, timeLimit/1000)
	done := make(chan error, 1)
	go func() { done <- s.Run(context.Background()) }()
	second.next <- made(0) // was seen
	second.next <- made(5)
	take(t, r, 5)
	close(second.next)
	_, err = r.Next(context.Background())
	require.ErrorIs(t, err, io.EOF, "the job has ended")
	require.NoError(t, r.Close())
	require.NoError(t, <-done)
}

// timeLimit passes only when something is broken.
const timeLimit = time.Minute
