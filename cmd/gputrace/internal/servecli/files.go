// SPDX-License-Identifier: Apache-2.0

package servecli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/gputrace/gputrace/event/moment"
	"github.com/gputrace/gputrace/export"
)

// Limits of what is made and kept.
const (
	maxFile = 256 << 20 // bytes of one file
	maxKept = 128 << 20 // bytes of all files in memory
)

var (
	errNoFile   = errors.New("this recording has no such file")
	errTooLarge = fmt.Errorf("the file is larger than %d MiB: make it with gputrace export", maxFile>>20)
)

// binary is the media type of files that a browser only saves.
const binary = "application/octet-stream"

// fileKind is a file of a recording that is served.
type fileKind struct {
	name   string // in the address
	format string // of package export
	window export.Window
	media  string
	stored string // its name in a folder of results; empty: it is always made
}

// fileKinds are the files that are served. The first is the page.
var fileKinds = []fileKind{
	{name: export.PageName, format: "html", media: "text/html; charset=utf-8", stored: export.PageName},
	{name: "profile.pb.gz", format: "pprof", media: binary, stored: "inuse.pb.gz"},
	{name: "peak.pb.gz", format: "pprof", window: export.Window{At: moment.Moment{Kind: moment.Peak}}, media: binary, stored: "peak.pb.gz"},
	{name: "alloc.pb.gz", format: "pprof-alloc", media: binary, stored: "alloc.pb.gz"},
	{name: "memory.svg", format: "svg", media: "image/svg+xml"},
	{name: "memory.png", format: "png", media: "image/png"},
	{name: "memory.json", format: "json", media: "application/json"},
}

// file returns a file of a recording. A page is made only if the folder has none. The files of a job are never made.
func (r *reader) file(ctx context.Context, f *found, k *fileKind) ([]byte, error) {
	isPage := k.format == "html"
	if k.stored != "" && f.dir != "" && !f.busy && (isPage || len(f.parts) > 0) {
		if b, err := f.storedFile(k.stored); err == nil {
			return b, nil
		}
	}
	if len(f.parts) > 0 {
		return nil, errNoFile
	}
	key := fileKey{f.key(), k.name, f.stamp()}
	if b := r.keptFile(key); b != nil {
		return b, nil
	}
	release, err := r.acquire(ctx, "")
	if err != nil {
		return nil, err
	}
	defer release()
	if b := r.keptFile(key); b != nil {
		return b, nil
	}
	b, err := r.make(ctx, f, k)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.kept.add(key, b)
	return b, nil
}

func (r *reader) keptFile(key fileKey) []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.kept.get(key)
}

// make makes a file of a recording, and its conclusion from the same replays.
func (r *reader) make(ctx context.Context, f *found, k *fileKind) ([]byte, error) {
	formats, err := export.Find(k.format)
	if err != nil {
		return nil, err
	}
	var out, brief bytes.Buffer
	begun := time.Now()
	warning, err := r.with(ctx, f, func(in *export.Source) error {
		input, err := in.Input(&k.window, r.version, func(error) {})
		if err != nil {
			return err
		}
		if err := formats[0].Write(limited{&out}, input); err != nil || !input.Judged() {
			return err
		}
		return in.WriteBrief(&brief, true)
	})
	if err != nil || ctx.Err() != nil || brief.Len() == 0 {
		return out.Bytes(), err
	}
	c := &conclusion{stamp: f.stamp(), warning: warning, at: time.Now(), took: time.Since(begun)}
	if c.err = c.parse(brief.Bytes()); c.err == nil {
		r.keep(f, c)
	}
	return out.Bytes(), nil
}

// hasStored reports whether the folder of results has a file.
func (f *found) hasStored(name string) bool {
	file, err := f.openStored(name)
	if err != nil {
		return false
	}
	file.Close()
	return true
}

func (f *found) openStored(name string) (*os.File, error) {
	return f.place.open(filepath.Join(f.place.dir, filepath.FromSlash(f.dir), name))
}

// storedFile reads a file from the folder of results.
func (f *found) storedFile(name string) ([]byte, error) {
	file, err := f.openStored(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	st, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if st.Size() > maxFile {
		return nil, errTooLarge
	}
	return io.ReadAll(io.LimitReader(file, maxFile))
}

// limited is a buffer of at most maxFile bytes.
type limited struct{ buffer *bytes.Buffer }

// Write implements io.Writer.
func (l limited) Write(b []byte) (int, error) {
	if l.buffer.Len()+len(b) > maxFile {
		return 0, errTooLarge
	}
	return l.buffer.Write(b)
}

// fileKey identifies the content of a file of a recording.
type fileKey struct {
	recording, name string
	stamp           stamp
}

// files are files in memory, the least recently used first. Their total size is at most most.
type files struct {
	most, size int // bytes
	list       []keptFile
}

type keptFile struct {
	key  fileKey
	body []byte
}

// get returns a file; nil: it is not in memory.
func (s *files) get(key fileKey) []byte {
	for i, f := range s.list {
		if f.key == key {
			s.list = append(append(s.list[:i:i], s.list[i+1:]...), f)
			return f.body
		}
	}
	return nil
}

// add adds a file, in place of the same one of an earlier time, and drops others if there are too many bytes.
func (s *files) add(key fileKey, body []byte) {
	var rest []keptFile
	for _, f := range s.list {
		if f.key.recording == key.recording && f.key.name == key.name {
			s.size -= len(f.body)
			continue
		}
		rest = append(rest, f)
	}
	s.list = append(rest, keptFile{key, body})
	for s.size += len(body); s.size > s.most; s.list = s.list[1:] {
		s.size -= len(s.list[0].body)
	}
}
