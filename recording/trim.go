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

// trim is the copying of what is kept of a file into another, which then takes its place: at any time there is a complete
// recording under the file's name. Most of it is copied beside the recording.
type trim struct {
	first int // epoch
	from  int64
	to    int64 // so far
	file  *os.File
	done  chan error
}

// startTrim begins to drop the oldest epochs, when it is time.
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

// createBeside makes the copy's file, which belongs to whom the file belongs: gputrace gives it to the user behind sudo.
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

// finishTrim puts the copy in the file's place, once it is there, or when it is waited for.
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
	_ = w.file.Close() // it has no name any more
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
