// SPDX-License-Identifier: Apache-2.0

package ring

import (
	"errors"
	"io/fs"
	"maps"
	"os"
	"path"
	"time"
)

// sums are the sizes of segments, bytes.
type sums struct {
	all int64
	of  map[*kept]int64
}

func (s *sums) add(x *segment, sign int64) {
	n := sign * max(x.bytes, block)
	s.all += n
	s.of[x.target] += n
}

// sum returns the sizes of all segments, and their number.
func (r *Ring) sum() (out sums, number int) {
	out.of = map[*kept]int64{}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, t := range r.targets {
		number += len(t.segments)
		for _, s := range t.segments {
			out.add(s, 1)
		}
	}
	return out, number
}

// Size returns the bytes and the number of all segments.
func (r *Ring) Size() (bytes int64, number int) {
	s, number := r.sum()
	return s.all, number
}

// sweep removes the oldest segments beyond the bounds. If current ones alone exceed them, the largest ends.
func (r *Ring) sweep(now time.Time) {
	left, _ := r.sum()
	o := &r.options
	remove := map[*segment]bool{}
	all := r.complete()
	for _, s := range all {
		if now.Sub(s.ended) > o.MaxAge || left.of[s.target] > o.TargetSize {
			remove[s] = true
			left.add(s, -1)
		}
	}
	for _, s := range all {
		if left.all > o.MaxSize && !remove[s] {
			remove[s] = true
			left.add(s, -1)
		}
	}
	for _, s := range all {
		if !remove[s] {
			continue
		}
		if err := r.remove(s); err != nil {
			r.complain("an old recording cannot be removed", err)
			break
		}
		r.Counts.Removed.Add(1)
	}
	r.end(&left)
}

// end lets the current segments end that exceed a bound by themselves.
func (r *Ring) end(left *sums) {
	r.mu.Lock()
	defer r.mu.Unlock()
	var largest *live
	for l := range maps.Values(r.live) {
		if l.segment == nil {
			continue
		}
		if left.of[l.target] > r.options.TargetSize {
			l.over, l.large = true, true
		}
		if largest == nil || l.segment.bytes > largest.segment.bytes {
			largest = l
		}
	}
	if largest != nil && left.all > r.options.MaxSize {
		largest.over, largest.large = true, true
	}
}

// remove removes a segment, and the folder of its process with the last one.
func (r *Ring) remove(s *segment) error {
	root, err := os.OpenRoot(r.options.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		r.drop(s)
		return nil
	}
	if err != nil {
		return err
	}
	defer root.Close()
	id := s.target.id
	if err := root.RemoveAll(path.Join(id, s.name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if r.drop(s) {
		return root.RemoveAll(id)
	}
	return nil
}
