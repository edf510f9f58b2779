// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// hanging is a library that does not answer before the test lets it.
type hanging struct {
	release chan struct{}
	reads   int
}

func (h *hanging) read() (*Reading, error) {
	h.reads++
	<-h.release
	return &Reading{}, nil
}

func (h *hanging) close() error { <-h.release; return nil }

// TestTimeout: a driver that does not answer is asked once.
func TestTimeout(t *testing.T) {
	h := &hanging{release: make(chan struct{})}
	defer close(h.release)
	l := &Library{backend: h, limit: time.Nanosecond}
	_, err := l.Read()
	require.ErrorIs(t, err, ErrTimeout)
	l.limit = time.Hour // would show as a test that hangs
	for range 3 {
		_, err = l.Read()
		require.ErrorIs(t, err, ErrTimeout)
	}
	require.NoError(t, l.Close())
}

func TestWithin(t *testing.T) {
	v, err := within(time.Hour, func() (int, error) { return 7, nil })
	require.NoError(t, err)
	require.Equal(t, 7, v)
	want := errors.New("no")
	_, err = within(time.Hour, func() (int, error) { return 7, want })
	require.ErrorIs(t, err, want)
	_, err = within(time.Hour, func() (int, error) {
		var none []int
		return none[7], nil
	})
	require.ErrorContains(t, err, "cannot be meant")
}

func TestNoLibrary(t *testing.T) {
	_, err := Open(&Options{Library: "/nonexistent/libnvidia-ml.so.1"})
	require.ErrorIs(t, err, ErrNoLibrary)
}
