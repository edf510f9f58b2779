// SPDX-License-Identifier: Apache-2.0

package ring

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/gputrace/gputrace/export"
	"github.com/gputrace/gputrace/recorder"
	"github.com/gputrace/gputrace/recording"
)

// Limits of pages. They are made one at a time.
const (
	maxPage    = 64 << 20 // bytes
	maxWaiting = 8        // requests
)

// Errors of requests.
var (
	ErrNone    = errors.New("no such recording; see /api/v1/recordings")
	errTooMany = errors.New("too many requests wait for a page: try again later")
	errEarly   = errors.New("nothing is in this recording yet: try again in a second")
	errLarge   = fmt.Errorf("the page is larger than %d MiB: make it from the recording with gputrace export", maxPage>>20)
)

// Listed is a process with its segments, the oldest first.
type Listed struct {
	Target
	Segments []Segment `json:"segments"`
}

// Segment is a recording of a ring.
type Segment struct {
	Name  string     `json:"name"`
	Began time.Time  `json:"began"`
	Ended *time.Time `json:"ended"` // nil: it is being written
	Bytes int64      `json:"bytes"`
}

// Latest is the name of the last segment of a process in requests.
const Latest = "latest"

// List returns the processes that have recordings, by ID.
func (r *Ring) List() []Listed {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := []Listed{}
	for _, id := range slices.Sorted(maps.Keys(r.targets)) {
		if t := r.targets[id]; len(t.segments) > 0 {
			out = append(out, t.listed())
		}
	}
	return out
}

// IDOf returns the ID of a process that is traced; empty: r is nil, or the process is not known.
func (r *Ring) IDOf(p *recorder.Process) string {
	if r == nil {
		return ""
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if l := r.live[p]; l != nil {
		return l.target.id
	}
	return ""
}

// listed copies a process. The lock is held.
func (t *kept) listed() Listed {
	l := Listed{Target: t.about, Segments: []Segment{}}
	for _, s := range t.segments {
		x := Segment{Name: s.name, Began: s.began.UTC(), Bytes: s.bytes}
		if !s.ended.IsZero() {
			ended := s.ended.UTC()
			x.Ended = &ended
		}
		l.Segments = append(l.Segments, x)
	}
	return l
}

// Find returns a process by its ID, with one segment, by its name or Latest. The error is ErrNone.
func (r *Ring) Find(id, name string) (*Listed, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.targets[id]
	if t == nil {
		return nil, ErrNone
	}
	l := t.listed()
	k := slices.IndexFunc(l.Segments, func(s Segment) bool { return s.Name == name })
	if name == Latest {
		k = len(l.Segments) - 1
	}
	if k < 0 {
		return nil, ErrNone
	}
	l.Segments = l.Segments[k : k+1]
	return &l, nil
}

// Open opens the recording of a process that Find returned.
func (r *Ring) Open(l *Listed) (*os.File, error) {
	root, err := os.OpenRoot(r.options.Dir)
	if err != nil {
		return nil, errors.Join(ErrNone, err)
	}
	defer root.Close()
	f, err := openRegular(root, path.Join(l.ID, l.Segments[0].Name, export.TraceName))
	if err != nil {
		return nil, errors.Join(ErrNone, err)
	}
	return f, nil
}

// Page returns the page of a recording that Find returned, as gputrace export -f html writes it. It reads no Python file of this machine.
func (r *Ring) Page(ctx context.Context, l *Listed, version string) ([]byte, error) {
	if r.waiting.Add(1) > maxWaiting {
		r.waiting.Add(-1)
		return nil, errTooMany
	}
	defer r.waiting.Add(-1)
	select {
	case r.pages <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-r.pages }()
	defer debug.FreeOSMemory() // the agent's own memory is limited
	b, err := r.page(ctx, l, version)
	return b, cmp.Or(ctx.Err(), err)
}

func (r *Ring) page(ctx context.Context, l *Listed, version string) (out []byte, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("gputrace crashed while reading this recording, please report it: %v", p)
		}
	}()
	f, err := r.Open(l)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	formats, err := export.Find("html")
	if err != nil {
		return nil, err
	}
	watch := func(io.ReaderAt, int64, string) io.ReaderAt { return &untilDone{ctx, f} }
	path := r.path(&segment{target: &kept{id: l.ID}, name: l.Segments[0].Name})
	in, err := export.Open(path, &export.OpenOptions{Alone: true, Watch: watch})
	var damage *recording.DamageError
	if errors.As(err, &damage) && l.Segments[0].Ended == nil {
		return nil, errEarly
	}
	if err != nil {
		return nil, errors.New(strings.ReplaceAll(err.Error(), r.options.Dir+string(filepath.Separator), ""))
	}
	defer in.Close()
	input, err := in.Input(&export.Window{}, version, func(error) {})
	if err != nil {
		return nil, err
	}
	b := &page{}
	if err := formats[0].Write(b, input); err != nil {
		return nil, err
	}
	return []byte(b.String()), nil
}

// page is a page of at most maxPage bytes.
type page struct{ strings.Builder }

// Write implements io.Writer.
func (p *page) Write(b []byte) (int, error) {
	if p.Len()+len(b) > maxPage {
		return 0, errLarge
	}
	return p.Builder.Write(b)
}

// untilDone is a file that cannot be read after its context is done.
type untilDone struct {
	ctx  context.Context
	file io.ReaderAt
}

// ReadAt implements io.ReaderAt.
func (u *untilDone) ReadAt(b []byte, at int64) (int, error) {
	if err := u.ctx.Err(); err != nil {
		return 0, err
	}
	return u.file.ReadAt(b, at)
}
