// SPDX-License-Identifier: Apache-2.0

package ring

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/gputrace/gputrace/export"
	"github.com/gputrace/gputrace/recorder"
)

// Target is what a ring keeps of a process beside its recordings.
type Target struct {
	// ID identifies the process on this machine: its folder has this name. See ID.
	ID      string            `json:"id"`
	PID     int               `json:"pid"`
	Program string            `json:"program"`
	Labels  map[string]string `json:"labels"`
	// Namespace is the one of the process's pod, which decides who may see it. Empty: none, or not known.
	Namespace string `json:"namespace"`
}

// ID returns the name of a process's folder. start is process.Process.StartTime, which tells apart processes that had the same PID.
func ID(pid int, start uint64) string { return fmt.Sprintf("pid%d-%d", pid, start) }

const (
	aboutName     = "target.json"
	maxAbout      = 1 << 20 // bytes
	segmentLayout = "20060102T150405.000000Z"
	// block is the smallest size that a segment is taken to have, with its folders.
	block = 16 << 10
)

// The names of folders in the ring. All others are left alone.
var (
	targetName  = regexp.MustCompile(`^pid[0-9]{1,10}-[0-9]{1,20}$`)
	segmentName = regexp.MustCompile(`^[0-9]{8}T[0-9]{6}\.[0-9]{6}Z$`)
)

// describe writes what is known of a process into its folder.
func (r *Ring) describe(about *Target) error {
	text, err := json.Marshal(about)
	if err != nil {
		return err
	}
	file := filepath.Join(r.options.Dir, about.ID, aboutName)
	if err := os.WriteFile(file+".tmp", text, 0o600); err != nil {
		return err
	}
	return os.Rename(file+".tmp", file)
}

// scan adds the segments on the disk that are not known.
func (r *Ring) scan() {
	err := os.MkdirAll(r.options.Dir, 0o700)
	var root *os.Root
	if err == nil {
		root, err = os.OpenRoot(r.options.Dir)
	}
	if err != nil {
		r.complain("the directory of the recordings cannot be read", err)
		return
	}
	defer root.Close()
	for _, id := range names(root, ".", targetName) {
		about := readAbout(root, id)
		var found []*segment
		for _, name := range names(root, id, segmentName) {
			if s := readSegment(root, id, name); s != nil {
				found = append(found, s)
			}
		}
		r.add(about, found)
	}
}

// names lists the folders in a folder whose names match.
func names(root *os.Root, dir string, pattern *regexp.Regexp) []string {
	all, err := fs.ReadDir(root.FS(), dir)
	if err != nil {
		return nil // it was removed
	}
	var out []string
	for _, e := range all {
		if e.IsDir() && pattern.MatchString(e.Name()) {
			out = append(out, e.Name())
		}
	}
	return out
}

// readAbout reads what was known of a process. If that is damaged, the process has no namespace.
func readAbout(root *os.Root, id string) Target {
	out := Target{ID: id}
	if f, err := openRegular(root, path.Join(id, aboutName)); err == nil {
		defer f.Close()
		text, err := io.ReadAll(io.LimitReader(f, maxAbout))
		var in Target
		if err == nil && json.Unmarshal(text, &in) == nil && in.ID == id {
			return in
		}
	}
	_, _ = fmt.Sscanf(id, "pid%d-", &out.PID) // the name matches
	return out
}

// readSegment returns a segment on the disk; nil: it has no recording.
func readSegment(root *os.Root, id, name string) *segment {
	began, err := time.Parse(segmentLayout, name)
	if err != nil {
		return nil
	}
	st, err := root.Lstat(path.Join(id, name, export.TraceName))
	if err != nil || !st.Mode().IsRegular() {
		return nil
	}
	return &segment{name: name, bytes: st.Size(), began: began, ended: st.ModTime()}
}

// add adds the segments of a process that are not known.
func (r *Ring) add(about Target, found []*segment) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := r.targets[about.ID]
	if t == nil {
		if len(found) == 0 {
			return
		}
		t = &kept{id: about.ID, about: about}
		r.targets[about.ID] = t
	}
	for _, s := range found {
		if !slices.ContainsFunc(t.segments, func(x *segment) bool { return x.name == s.name }) {
			s.target = t
			t.segments = append(t.segments, s)
		}
	}
	slices.SortFunc(t.segments, func(x, y *segment) int { return cmp.Compare(x.name, y.name) })
}

// tick does the periodic work.
func (r *Ring) tick() {
	r.lose()
	r.mu.Lock()
	again := r.stale && !r.failing
	r.stale = r.stale && !again
	r.mu.Unlock()
	if again {
		r.forgetMissing()
		r.scan()
	}
	r.refresh()
	r.sweep(r.options.Now())
}

// lose ends the current segments whose files have been removed or replaced.
func (r *Ring) lose() {
	type file struct {
		path string
		info os.FileInfo
	}
	files := map[*segment]file{}
	r.mu.Lock()
	for _, l := range r.live {
		if l.segment != nil && !l.over {
			files[l.segment] = file{r.path(l.segment), l.file}
		}
	}
	r.mu.Unlock()
	lost := map[*segment]bool{}
	for s, f := range files {
		if st, err := os.Lstat(f.path); err != nil || !os.SameFile(st, f.info) {
			lost[s] = true
		}
	}
	if len(lost) == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Counts.Failures.Add(1)
	r.failing, r.stale = true, true
	r.options.Log.Warn("recordings were removed while they were written: they begin anew", "number", len(lost), "directory", r.options.Dir)
	for _, l := range r.live {
		l.over = l.over || lost[l.segment]
	}
}

// path returns the path of a segment's recording.
func (r *Ring) path(s *segment) string {
	return filepath.Join(r.options.Dir, s.target.id, s.name, export.TraceName)
}

// forgetMissing forgets segments whose files have been removed, except current ones.
func (r *Ring) forgetMissing() {
	for _, s := range r.complete() {
		if _, err := os.Lstat(r.path(s)); errors.Is(err, fs.ErrNotExist) {
			r.drop(s)
		}
	}
}

// complete returns the segments that have ended, the oldest first.
func (r *Ring) complete() []*segment {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []*segment
	for _, t := range r.targets {
		for _, s := range t.segments {
			if !s.ended.IsZero() {
				out = append(out, s)
			}
		}
	}
	slices.SortFunc(out, func(x, y *segment) int { return cmp.Or(x.began.Compare(y.began), strings.Compare(x.name, y.name)) })
	return out
}

// drop forgets a segment, and its process with the last one. empty: the process's folder is not needed any more.
func (r *Ring) drop(s *segment) (empty bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	t := s.target
	t.segments = slices.DeleteFunc(t.segments, func(x *segment) bool { return x == s })
	if len(t.segments) > 0 {
		return false
	}
	for _, l := range r.live {
		if l.target == t {
			return false
		}
	}
	delete(r.targets, t.id)
	return true
}

// refresh writes what has become known of the processes, such as the names of their pods.
func (r *Ring) refresh() {
	r.mu.Lock()
	all := map[*recorder.Process]*kept{}
	for p, l := range r.live {
		all[p] = l.target
	}
	r.mu.Unlock()
	for p, t := range all {
		about := r.options.Describe(p)
		r.mu.Lock()
		about.ID = t.id
		if about.Namespace == "" {
			about.Namespace = t.about.Namespace // a process stays in its pod
		}
		same := about.Namespace == t.about.Namespace && about.Program == t.about.Program && maps.Equal(about.Labels, t.about.Labels)
		t.about = about
		r.mu.Unlock()
		if same {
			continue
		}
		if err := r.describe(&about); err != nil {
			r.complain("the labels of a recording cannot be written", err)
		}
	}
}

// complain counts and logs a failure. One that repeats is logged again after sayAgain.
func (r *Ring) complain(text string, err error) {
	r.Counts.Failures.Add(1)
	now := r.options.Now()
	r.mu.Lock()
	repeats := r.said == text && now.Sub(r.saidAt) < sayAgain
	if !repeats {
		r.said, r.saidAt = text, now
	}
	r.mu.Unlock()
	if !repeats {
		r.options.Log.Warn(text, "error", err)
	}
}

// openRegular opens a file of a folder that is not a symbolic link, a pipe or the like.
func openRegular(root *os.Root, name string) (*os.File, error) {
	st, err := root.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, errors.New("not a regular file")
	}
	return root.Open(name)
}
