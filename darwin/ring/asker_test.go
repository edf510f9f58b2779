// SPDX-License-Identifier: Apache-2.0

package ring

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// hostile answers each question at once, as it likes.
type hostile struct {
	*memory
	answer func(question []byte) (answer []byte, got uint64)
}

func (h *hostile) WriteAt(b []byte, at int64) (int, error) {
	n, err := h.memory.WriteAt(b, at)
	if at == int64(offAsked) {
		answer, got := h.answer(h.b[offAsked : offName+nameBytes])
		copy(h.b[len(h.b)-answerBytes:], answer)
		binary.LittleEndian.PutUint64(h.b[offGot:], got)
		copy(h.b[offAnswered:offAnswered+8], b)
	}
	return n, err
}

func askerOf(t *testing.T, answer func([]byte) ([]byte, uint64)) *Asker {
	t.Helper()
	m := made(minCapacity, nil)
	m.b = append(m.b, make([]byte, answerBytes)...)
	r, err := New(&hostile{m, answer})
	require.NoError(t, err)
	a, err := r.Asker(t.Context())
	require.NoError(t, err)
	return a
}

// TestAnswerTooLong: no more is read than was asked for, and nothing more is asked.
func TestAnswerTooLong(t *testing.T) {
	asked := 0
	a := askerOf(t, func([]byte) ([]byte, uint64) { asked++; return nil, 9 })
	_, err := a.ReadAt(make([]byte, 8), 4096)
	require.ErrorContains(t, err, "9 bytes, of at most 8")
	_, err = a.Symbol("x")
	require.ErrorContains(t, err, "9 bytes, of at most 8")
	require.Equal(t, 1, asked)
}

// TestSizes: many are more than one question, each of as many as fit; the answers are in order.
func TestSizes(t *testing.T) {
	var asked []uint64
	le := binary.LittleEndian
	a := askerOf(t, func(question []byte) ([]byte, uint64) {
		n := le.Uint64(question[32:])
		asked = append(asked, n)
		out := make([]byte, n*sizeBytes)
		for i := range n {
			le.PutUint64(out[i*sizeBytes:], uint64(len(asked))<<32|i)
			le.PutUint64(out[i*sizeBytes+8:], i+1)
		}
		return out, uint64(len(out))
	})
	answers, err := a.Sizes(make([][2]uint64, maxSizes+3))
	require.NoError(t, err)
	require.Equal(t, []uint64{maxSizes, 3}, asked)
	require.Len(t, answers, maxSizes+3)
	require.Equal(t, [2]uint64{1<<32 | maxSizes - 1, maxSizes}, answers[maxSizes-1])
	require.Equal(t, [2]uint64{2<<32 | 2, 3}, answers[maxSizes+2])
}

// TestRegionsEnd: regions that do not ascend are refused: the list would have no end.
func TestRegionsEnd(t *testing.T) {
	le := binary.LittleEndian
	full := make([]byte, answerBytes)
	for i := 0; i < len(full); i += regionBytes {
		le.PutUint64(full[i:], 1)
		le.PutUint64(full[i+8:], 2)
	}
	_, err := askerOf(t, func([]byte) ([]byte, uint64) { return full, answerBytes }).Regions()
	require.ErrorContains(t, err, "region 1 is from 0x1 to 0x2")
	at := uint64(0)
	_, err = askerOf(t, func([]byte) ([]byte, uint64) {
		for i := 0; i < len(full); i += regionBytes {
			le.PutUint64(full[i:], at)
			at++
			le.PutUint64(full[i+8:], at)
		}
		return full, answerBytes
	}).Regions()
	require.ErrorContains(t, err, "region 262144")
}

// TestAnswersOfAnything: whatever comes, each question ends, with what fits.
func TestAnswersOfAnything(t *testing.T) {
	random := rand.NewChaCha8([32]byte{})
	for range 50 {
		answer := make([]byte, 1<<12)
		_, _ = random.Read(answer)
		got := random.Uint64() % (1 << 12)
		ask := func() *Asker { return askerOf(t, func([]byte) ([]byte, uint64) { return answer, got }) }
		_, _ = ask().Regions()
		images, _ := ask().Images()
		require.LessOrEqual(t, len(images), int(got)/imageBytes)
		pages, _, _ := ask().Present(0, 1<<40)
		require.LessOrEqual(t, len(pages), int(got))
		_, _, err := ask().ReadPages([]uint64{1, 2}, make([]byte, 2*pageBytes))
		require.Error(t, err, "8,194 bytes are the answer")
		sizes, err := ask().Sizes(make([][2]uint64, 7))
		require.Equal(t, got == 7*sizeBytes, err == nil)
		require.True(t, err != nil || len(sizes) == 7)
	}
}

// TestNoAnswer: who does not answer is waited for once, not longer than is said, and no longer than who asks wants to.
func TestNoAnswer(t *testing.T) {
	m := made(minCapacity, nil)
	m.b = append(m.b, make([]byte, answerBytes)...)
	r, err := New(m)
	require.NoError(t, err)
	a, err := r.Asker(t.Context())
	require.NoError(t, err)
	begun := time.Now()
	for range 3 {
		_, err = a.Images()
		require.ErrorIs(t, err, ErrNoAnswer)
	}
	require.Less(t, time.Since(begun), 2*answerTime)
	ctx, cancel := context.WithCancelCause(t.Context())
	over := errors.New("over")
	cancel(over)
	a, err = r.Asker(ctx)
	require.NoError(t, err)
	_, err = a.Images()
	require.ErrorIs(t, err, over)
}
