// SPDX-License-Identifier: Apache-2.0

package servecli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/gputrace/gputrace/export"
	"github.com/gputrace/gputrace/internal/exit"
)

// Limits of what is read and kept.
const (
	maxWaiting = 32 // requests that wait for their recording to be read
	// A recording that is being written is read again after busyAge, and after busyTimes as long as the reading took.
	busyAge, busyTimes = 15 * time.Second, 10
	// errorAge is how long an error is kept that is not one of the file's content.
	errorAge = 30 * time.Second
)

var errTooMany = errors.New("too many requests wait for recordings to be read: try again later")

// conclusion is the first screen of a recording.
type conclusion struct {
	stamp     stamp
	body      []byte   // as report --brief --json prints it
	sentences []string // of a job, one for each group of processes
	seconds   float64  // length; of a job, of the longest recording
	cut       bool     // the recording has no end
	warning   string   // why a part of the recording could not be read; empty: all was read
	err       error
	at        time.Time
	took      time.Duration
}

// current reports whether a conclusion is still valid.
func (c *conclusion) current(f *found) bool {
	age := time.Since(c.at)
	switch {
	case c.err != nil && exit.Code(c.err) != exit.Invalid && age > errorAge:
		return false
	case f.busy && age < max(busyAge, busyTimes*c.took):
		return true
	}
	return c.stamp == f.stamp()
}

// reader reads recordings one at a time. Its methods can be called from several goroutines.
type reader struct {
	open    func() *export.OpenOptions
	version string
	slot    chan struct{} // holds one value while a recording is read
	wake    chan struct{}

	mu        sync.Mutex
	waiting   int
	interrupt context.CancelFunc // ends a reading for which no request waits; nil: no such reading
	ahead     string             // key of the recording that is read then
	known     map[string]*conclusion
	kept      files
	wanted    []*found // to be read when there is time
}

func newReader(open func() *export.OpenOptions, version string) *reader {
	return &reader{
		open: open, version: version, slot: make(chan struct{}, 1), wake: make(chan struct{}, 1),
		known: map[string]*conclusion{}, kept: files{most: maxKept},
	}
}

// key identifies a recording or a job in maps.
func (f *found) key() string { return filepath.Join(f.place.dir, f.dir, "\x00", f.file) }

// last returns the last conclusion of a recording, nil if it was not read, and whether it is current.
func (r *reader) last(f *found) (c *conclusion, current bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c = r.known[f.key()]
	return c, c != nil && c.current(f)
}

// forget drops what is kept of recordings that are no more.
func (r *reader) forget(s *sight) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.known) <= len(s.names)+maxWaiting {
		return
	}
	keep := map[string]bool{}
	for _, f := range s.names {
		keep[f.key()] = true
	}
	for key := range r.known {
		if !keep[key] {
			delete(r.known, key)
		}
	}
}

// want queues recordings that are read while no request waits, in this order. It replaces the queue before.
func (r *reader) want(all []*found) {
	r.mu.Lock()
	r.wanted = all
	r.mu.Unlock()
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// run reads what is wanted until ctx is done.
func (r *reader) run(ctx context.Context) {
	for {
		r.mu.Lock()
		var next *found
		if len(r.wanted) > 0 {
			next, r.wanted = r.wanted[0], r.wanted[1:]
		}
		r.mu.Unlock()
		if next == nil {
			select {
			case <-r.wake:
				continue
			case <-ctx.Done():
				return
			}
		}
		r.readAhead(ctx, next)
	}
}

// readAhead reads a recording for which no request waits. A request interrupts it; the recording is then wanted again.
func (r *reader) readAhead(ctx context.Context, f *found) {
	select {
	case r.slot <- struct{}{}:
	case <-ctx.Done():
		return
	}
	defer func() { <-r.slot }()
	if _, current := r.last(f); current {
		return
	}
	own, cancel := context.WithCancel(ctx)
	defer cancel()
	r.mu.Lock()
	r.interrupt, r.ahead = cancel, f.key()
	if r.waiting > 0 {
		cancel()
	}
	r.mu.Unlock()
	_, err := r.conclude(own, f)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.interrupt = nil
	if err != nil && ctx.Err() == nil {
		r.wanted = append([]*found{f}, r.wanted...)
	}
}

// acquire waits until a request may read a recording, and returns the function that lets the next one. useful is the key of the recording
// whose conclusion is all that the request needs, so that it is not interrupted if it is being read; empty: none.
func (r *reader) acquire(ctx context.Context, useful string) (release func(), err error) {
	r.mu.Lock()
	if r.waiting >= maxWaiting {
		r.mu.Unlock()
		return nil, errTooMany
	}
	r.waiting++
	if r.interrupt != nil && r.ahead != useful {
		r.interrupt()
	}
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		r.waiting--
		r.mu.Unlock()
	}()
	select {
	case r.slot <- struct{}{}:
		return func() { <-r.slot }, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// answer returns the conclusion of a recording, which is read unless that was done before.
func (r *reader) answer(ctx context.Context, f *found) (*conclusion, error) {
	if c, current := r.last(f); current {
		return c, nil
	}
	release, err := r.acquire(ctx, f.key())
	if err != nil {
		return nil, err
	}
	defer release()
	if c, current := r.last(f); current {
		return c, nil
	}
	return r.conclude(ctx, f)
}

// conclude reads a recording, or all recordings of a job. The conclusion has the error, unless ctx ended meanwhile.
func (r *reader) conclude(ctx context.Context, f *found) (*conclusion, error) {
	var b bytes.Buffer
	c := &conclusion{stamp: f.stamp()}
	begun := time.Now()
	if len(f.parts) > 0 {
		c.warning, c.err = r.job(ctx, f, &b)
	} else {
		c.warning, c.err = r.with(ctx, f, func(in *export.Source) error { return in.WriteBrief(&b, true) })
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	c.at, c.took = time.Now(), time.Since(begun)
	if c.err == nil {
		c.err = c.parse(b.Bytes())
	}
	r.keep(f, c)
	return c, nil
}

func (r *reader) keep(f *found, c *conclusion) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.known[f.key()] = c
}

// parse takes from a first screen what a list shows.
func (c *conclusion) parse(body []byte) error {
	type screen struct {
		Sentence string
		Seconds  float64
		Cut      bool `json:"cut_off"`
	}
	var in struct {
		screen
		Sentences []string
		Processes []screen
	}
	if err := json.Unmarshal(body, &in); err != nil {
		return fmt.Errorf("read the answer: %w", err)
	}
	c.body, c.sentences = body, in.Sentences
	if in.Processes == nil {
		c.sentences, in.Processes = []string{in.Sentence}, []screen{in.screen}
	}
	for _, p := range in.Processes {
		c.seconds, c.cut = max(c.seconds, p.Seconds), c.cut || p.Cut
	}
	return nil
}

// job writes the first screens of the processes of a job. warning is what is missing.
func (r *reader) job(ctx context.Context, f *found, w io.Writer) (warning string, err error) {
	var paths []string
	o := &opener{ctx: ctx, of: f}
	for _, p := range f.parts {
		if p.err == nil {
			paths = append(paths, p.path())
			continue
		}
		err = fmt.Errorf("%s: %w", path.Base(p.name), p.err)
		o.warn(err)
	}
	if len(paths) == 0 {
		return "", err
	}
	defer recovered(&err)
	defer o.close()
	err = export.WriteBriefOfJob(w, paths, o.options(r.open()), true)
	return o.warning, err
}

// with opens a recording and has it used. warning is what the recording does not have.
func (r *reader) with(ctx context.Context, f *found, use func(in *export.Source) error) (warning string, err error) {
	if f.err != nil {
		return "", f.err
	}
	defer recovered(&err)
	o := &opener{ctx: ctx, of: f}
	defer o.close()
	in, err := export.Open(f.path(), o.options(r.open()))
	if err != nil {
		return "", err
	}
	defer in.Close()
	return o.warning, use(in)
}

// recovered makes an error of a panic: a recording that cannot be read must not end the server.
func recovered(err *error) {
	if p := recover(); p != nil {
		*err = exit.With(exit.Invalid, fmt.Errorf("gputrace crashed while reading this recording, please report it: %v", p))
	}
}

// opener opens a recording, or those that make up a job, in the folder of the place only, even if a path leads elsewhere by now.
type opener struct {
	ctx     context.Context
	of      *found
	files   []*os.File
	warning string // the first
}

func (o *opener) options(out *export.OpenOptions) *export.OpenOptions {
	out.Warn = o.warn
	// A recording names the Python files whose lines are read. Another user's could show files that only this user may read.
	out.Alone = out.Alone || !o.of.own
	out.Watch = func(_ io.ReaderAt, _ int64, path string) io.ReaderAt {
		file, err := o.of.place.open(path)
		if err == nil {
			o.files = append(o.files, file)
		}
		return &untilDone{o.ctx, file, err}
	}
	return out
}

// warn keeps the first warning.
func (o *opener) warn(err error) {
	if o.warning == "" {
		o.warning = err.Error()
	}
}

func (o *opener) close() {
	for _, f := range o.files {
		f.Close()
	}
}

// open opens a file of the place by its whole path.
func (p *place) open(full string) (*os.File, error) {
	rel, err := filepath.Rel(p.dir, full)
	if err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(p.dir)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	return openRegular(root, filepath.ToSlash(rel))
}

// untilDone is a file that cannot be read after its context is done.
type untilDone struct {
	ctx  context.Context
	file io.ReaderAt
	err  error // why it could not be opened
}

// ReadAt implements io.ReaderAt.
func (u *untilDone) ReadAt(b []byte, at int64) (int, error) {
	if u.err != nil {
		return 0, u.err
	}
	if err := u.ctx.Err(); err != nil {
		return 0, err
	}
	return u.file.ReadAt(b, at)
}

// reason returns why a recording cannot be read, without the path of the place.
func (f *found) reason(err error) string {
	return f.shorter(exit.Text(err))
}

func (f *found) shorter(text string) string {
	return strings.ReplaceAll(text, f.place.dir+string(filepath.Separator), "")
}
