// SPDX-License-Identifier: Apache-2.0

package recording

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"
)

// trim copies the part of a file that is kept into another file, which then replaces it. There is a complete recording
// under the file's name at any time. Most of the copying runs concurrently with the recording.
type trim struct {
	first int // the first epoch that is kept
	from  int64
	to    int64 // copied up to here
	file  *os.File
	done  chan error
}

// startTrim starts to drop the oldest epochs, when it is due.
func (w *Writer) startTrim(now time.Time) {
	if w.err != nil || w.trim != nil || w.path == "" {
		return
	}
	first := w.dropped(now)
	if first == 0 {
		return
	}
	f, err := createBeside(w.path)
	if err != nil {
		w.fail(fmt.Errorf("drop its oldest part: %w", err))
		return
	}
	t := &trim{first: first, from: w.epochs[first].offset, to: w.size, file: f, done: make(chan error, 1)}
	w.trim = t
	old, prefix := w.file, w.prefix
	go func() { t.done <- errors.Join(copyRange(f, old, 0, prefix), copyRange(f, old, t.from, t.to)) }()
}

// createBeside creates the file for the copy with the owner of the original, because gputrace gives files to the user
// who called sudo.
func createBeside(path string) (*os.File, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	f, err := os.OpenFile(path+".tmp", os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return nil, err
	}
	if owner, ok := st.Sys().(*syscall.Stat_t); ok {
		if err := f.Chown(int(owner.Uid), int(owner.Gid)); err != nil {
			return nil, errors.Join(err, f.Close(), os.Remove(path+".tmp"))
		}
	}
	return f, nil
}

// finishTrim replaces the file by the copy when it is complete; with wait it waits for that.
func (w *Writer) finishTrim(wait bool) {
	t := w.trim
	if t == nil {
		return
	}
	var err error
	select {
	case err = <-t.done:
	default:
		if !wait {
			return
		}
		err = <-t.done
	}
	w.trim = nil
	if err == nil && w.err == nil {
		err = w.replace(t)
	}
	if err == nil && w.err == nil {
		return
	}
	if err := errors.Join(err, t.file.Close(), os.Remove(w.path+".tmp")); w.err == nil {
		w.fail(fmt.Errorf("drop its oldest part: %w", err))
	}
}

func (w *Writer) replace(t *trim) error {
	if w.syncing != nil {
		<-w.syncing
		w.syncing = nil
	}
	if err := copyRange(t.file, w.file, t.to, w.size); err != nil {
		return err
	}
	if err := os.Rename(w.path+".tmp", w.path); err != nil {
		return err
	}
	_ = w.file.Close() // the file has no name any more
	w.file = t.file
	shift := t.from - w.prefix
	w.size -= shift
	w.epochs = append([]epochStart(nil), w.epochs[t.first:]...)
	for i := range w.epochs {
		w.epochs[i].offset -= shift
	}
	return nil
}

func copyRange(to io.Writer, from io.ReaderAt, start, end int64) error {
	_, err := io.Copy(to, io.NewSectionReader(from, start, end-start))
	return err
}
