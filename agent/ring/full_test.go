// SPDX-License-Identifier: Apache-2.0

//go:build linux

package ring

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/recording"
)

// TestDiskFull: a full disk ends a segment, which remains readable, and the next one begins when there is room.
func TestDiskFull(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=256k"); err != nil {
		t.Skipf("no file system can be mounted: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, syscall.Unmount(dir, syscall.MNT_DETACH)) })
	m := newMade(t, dir, nil)
	p := m.begin("pid1-1")
	var err error
	for i := 0; i < 100 && err == nil; i++ {
		err = m.write(p, 1000)
		m.pass(time.Second)
	}
	require.ErrorIs(t, err, syscall.ENOSPC)
	m.Wait()
	require.NotZero(t, m.Counts.Failures.Load())
	require.Contains(t, m.log.String(), "no space left on device")
	for i := 0; i < 10 && m.writers[p] == nil; i++ { // also while there is no room
		m.pass(time.Second)
		_ = m.write(p, 1000)
	}
	m.Wait()
	all, _ := m.files("*")
	r, err := recording.Open(all[0])
	require.NoError(t, err)
	buf := make([]event.Event, 0, 1<<16)
	buf, err = r.Read(buf)
	require.NoError(t, err)
	require.NotEmpty(t, buf)
	require.NoError(t, r.Close())
	require.NoError(t, os.RemoveAll(filepath.Dir(all[0])))
	m.forgetMissing()
	m.pass(time.Hour)
	require.NoError(t, m.write(p, 0))
	require.NotNil(t, m.writers[p])
	require.NoError(t, m.write(p, 100))
}
