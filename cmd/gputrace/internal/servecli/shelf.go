// SPDX-License-Identifier: Apache-2.0

package servecli

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/gputrace/gputrace/export"
	"github.com/gputrace/gputrace/internal/exit"
	"github.com/gputrace/gputrace/internal/output"
	"github.com/gputrace/gputrace/recorder/folder"
	"github.com/gputrace/gputrace/recording"
)

// Limits of the search for recordings.
const (
	maxDepth  = 4      // folders below the one that is served
	maxFound  = 10_000 // recordings
	lookEvery = time.Second
)

// errEnough ends the search when maxFound recordings were found.
var errEnough = errors.New("enough")

// place is a folder that is served, or one file.
type place struct {
	given string // by the user
	dir   string // the folder, without symbolic links; of a file, the folder with the file
	file  string // the only file; empty: all of the folder
	name  string // with which the names of its recordings begin; empty: nothing, because there is only one place
}

// newPlaces checks the arguments of the command. Each place has a name of its own.
func newPlaces(args []string) ([]*place, error) {
	var out []*place
	used := map[string]int{}
	for _, arg := range args {
		p, err := newPlace(arg)
		if err != nil {
			return nil, err
		}
		if len(args) > 1 {
			p.name = filepath.Base(p.dir)
			if used[p.name]++; used[p.name] > 1 {
				p.name = fmt.Sprintf("%s.%d", p.name, used[p.name])
			}
		}
		out = append(out, p)
	}
	return out, nil
}

func newPlace(arg string) (*place, error) {
	full, err := filepath.Abs(arg)
	if err == nil {
		full, err = filepath.EvalSymlinks(full)
	}
	var st fs.FileInfo
	if err == nil {
		st, err = os.Stat(full)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, exit.Say(fmt.Sprintf("serve %s: no such file or directory\n  give a folder with recordings, or a recording", arg), err)
	case err != nil:
		return nil, fmt.Errorf("serve %s: %w", arg, err)
	case st.IsDir():
		return &place{given: arg, dir: full}, nil
	}
	r, err := recording.Open(full)
	if err != nil {
		return nil, exit.With(exit.Invalid, err)
	}
	return &place{given: arg, dir: filepath.Dir(full), file: filepath.Base(full)}, r.Close()
}

// found is a recording, or a job with the recordings of its processes.
type found struct {
	name    string // unique; of parts that are separated by slashes
	place   *place
	file    string // the recording, in the folder of the place; empty: a job
	dir     string // the folder of results, in the folder of the place; empty: there is only the file
	parts   []*found
	size    int64 // bytes
	changed time.Time
	info    *recording.Info // nil: of a job, and of what cannot be read
	err     error           // why it cannot be read
	busy    bool            // it is being written
	own     bool            // it belongs to the user who serves it
}

// path returns the path of the recording.
func (f *found) path() string { return filepath.Join(f.place.dir, filepath.FromSlash(f.file)) }

// started returns when the recording began or, if that is not known, when its file was last written.
func (f *found) started() time.Time {
	if f.info == nil || f.info.Started.IsZero() {
		return f.changed
	}
	return f.info.Started
}

// stamp identifies the content of a recording or of a job.
type stamp struct{ size, changed, count int64 }

func (f *found) stamp() stamp { return stamp{f.size, f.changed.UnixNano(), int64(len(f.parts))} }

// head is the beginning of a recording, as it was read once.
type head struct {
	stamp stamp
	info  *recording.Info
	err   error
}

// shelf finds recordings. Its methods can be called from several goroutines.
type shelf struct {
	places []*place

	mu     sync.Mutex
	looked time.Time
	seen   *sight
	heads  map[string]head // by path
}

// sight is what was found at one time. Nothing changes it.
type sight struct {
	list  []*found // the newest first; the processes of a job are in it
	names map[string]*found
	count int      // of recordings
	notes []string // what could not be looked at
}

// look returns what is found, which is at most lookEvery old.
func (s *shelf) look() *sight {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seen != nil && time.Since(s.looked) < lookEvery {
		return s.seen
	}
	out := &sight{names: map[string]*found{}}
	heads := map[string]head{}
	for _, p := range s.places {
		if err := s.walk(p, out, heads); err != nil {
			out.notes = append(out.notes, fmt.Sprintf("%s: %v", p.given, err))
		}
	}
	out.count = len(out.list)
	out.list = jobs(out.list)
	for _, f := range out.list {
		out.names[f.name] = f
		for _, part := range f.parts {
			out.names[part.name] = part
		}
	}
	slices.SortStableFunc(out.list, func(x, y *found) int {
		return cmp.Or(y.started().Compare(x.started()), cmp.Compare(x.name, y.name))
	})
	s.seen, s.looked, s.heads = out, time.Now(), heads
	return out
}

// walk adds the recordings of a place. It follows no symbolic link and looks into no hidden folder: results are written to one first.
func (s *shelf) walk(p *place, out *sight, heads map[string]head) error {
	root, err := os.OpenRoot(p.dir)
	if err != nil {
		return unnamed(err)
	}
	defer root.Close()
	if p.file != "" {
		st, err := root.Lstat(p.file)
		if err != nil {
			return unnamed(err)
		}
		out.list = append(out.list, s.recording(root, p, p.file, st, heads))
		return nil
	}
	err = fs.WalkDir(root.FS(), ".", func(name string, e fs.DirEntry, err error) error {
		switch {
		case err != nil && name == ".":
			return unnamed(err)
		case err != nil:
			out.notes = append(out.notes, fmt.Sprintf("%s: %v", path.Join(p.given, name), unnamed(err)))
			return nil
		case e.IsDir() && name != "." && (strings.HasPrefix(e.Name(), ".") || strings.Count(name, "/") >= maxDepth):
			return fs.SkipDir
		case !e.Type().IsRegular() || path.Ext(name) != path.Ext(export.TraceName):
			return nil
		case len(out.list) >= maxFound:
			return errEnough
		}
		if st, err := e.Info(); err == nil { // otherwise it has just been removed
			out.list = append(out.list, s.recording(root, p, name, st, heads))
		}
		return nil
	})
	if errors.Is(err, errEnough) {
		return fmt.Errorf("more than %d recordings: the others are left out", maxFound)
	}
	return err
}

// unnamed returns what the system says of a file, without the name of the file.
func unnamed(err error) error {
	var at *fs.PathError
	if errors.As(err, &at) {
		return at.Err
	}
	return err
}

// recording returns a file as a recording. Its beginning is read if the file has changed.
func (s *shelf) recording(root *os.Root, p *place, file string, st fs.FileInfo, heads map[string]head) *found {
	f := &found{place: p, file: file, size: st.Size(), changed: st.ModTime()}
	if owner, ok := st.Sys().(*syscall.Stat_t); ok {
		f.own = int(owner.Uid) == os.Geteuid()
	}
	own := file // name of the recording within the place
	if path.Base(file) == export.TraceName {
		f.dir = path.Dir(file)
		if own = f.dir; own == "." {
			own = ""
		}
		dir := filepath.Join(p.dir, filepath.FromSlash(f.dir))
		f.busy = output.Busy(dir) || folder.IsPart(filepath.Base(dir)) && output.Busy(filepath.Dir(dir))
	}
	if f.name = path.Join(p.name, own); f.name == "" {
		f.name = filepath.Base(p.dir)
	}
	h, ok := s.heads[f.path()]
	if !ok || h.stamp != f.stamp() || h.err != nil {
		h = head{stamp: f.stamp()}
		h.info, h.err = readHead(root, file)
	}
	heads[f.path()] = h
	f.info, f.err = h.info, h.err
	return f
}

// readHead reads the beginning of a recording.
func readHead(root *os.Root, name string) (*recording.Info, error) {
	file, err := openRegular(root, name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	st, err := file.Stat()
	if err != nil {
		return nil, unnamed(err)
	}
	r, err := recording.NewReader(file, st.Size())
	if err != nil {
		return nil, exit.With(exit.Invalid, err)
	}
	defer r.Close()
	return r.Info(), nil
}

// openRegular opens a file of a folder that is not a symbolic link, a pipe or the like.
func openRegular(root *os.Root, name string) (*os.File, error) {
	st, err := root.Lstat(name)
	switch {
	case err != nil:
		return nil, unnamed(err)
	case !st.Mode().IsRegular():
		return nil, errors.New("not a regular file")
	}
	file, err := root.Open(name)
	if err != nil {
		return nil, unnamed(err)
	}
	return file, nil
}

// jobs puts the processes of a job together. A job of one process is that process, under the name of the job.
func jobs(all []*found) []*found {
	var out []*found
	of := map[string]*found{} // by folder
	for _, f := range all {
		dir := filepath.Join(f.place.dir, filepath.FromSlash(f.dir))
		if f.dir == "" || f.dir == "." || !folder.IsPart(path.Base(f.dir)) {
			out = append(out, f)
			continue
		}
		job := of[filepath.Dir(dir)]
		if job == nil {
			name := path.Dir(f.name)
			if name == "." {
				name = filepath.Base(f.place.dir)
			}
			job = &found{name: name, place: f.place, dir: path.Dir(f.dir)}
			of[filepath.Dir(dir)] = job
			out = append(out, job)
		}
		job.parts = append(job.parts, f)
	}
	for i, f := range out {
		switch len(f.parts) {
		case 0:
		case 1:
			only := *f.parts[0]
			only.name = f.name
			out[i] = &only
		default:
			f.sum()
		}
	}
	return out
}

// sum adds up the processes of a job, in the order of their ranks.
func (f *found) sum() {
	rank := func(p *found) int {
		if p.info == nil || p.info.Rank == nil {
			return math.MaxInt
		}
		return p.info.Rank.Rank
	}
	slices.SortFunc(f.parts, func(x, y *found) int { return cmp.Or(cmp.Compare(rank(x), rank(y)), cmp.Compare(x.name, y.name)) })
	f.own = true
	for _, p := range f.parts {
		f.own = f.own && p.own
		f.size += p.size
		f.busy = f.busy || p.busy
		if p.changed.After(f.changed) {
			f.changed = p.changed
		}
	}
	f.info = f.parts[0].info
}
