// SPDX-License-Identifier: Apache-2.0

package compare

import (
	"errors"

	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event/moment"
	"github.com/gputrace/gputrace/export"
	"github.com/gputrace/gputrace/internal/exit"
)

// Options say what is compared.
type Options struct {
	Paths   []string        // one, compared with itself, or two
	At      []moment.Moment // none, one or two
	By      view.RowKind
	Version string // of gputrace
	Open    *export.OpenOptions
	Warn    func(error)
}

// Moments are those of the two sides.
func (o *Options) Moments() (before, after moment.Moment) {
	end := moment.Moment{Kind: moment.End}
	switch {
	case len(o.At) == 2:
		return o.At[0], o.At[1]
	case len(o.At) == 0:
		return end, end
	case len(o.Paths) == 1:
		return o.At[0], end
	}
	return o.At[0], o.At[0]
}

// Sides are two sides, and their files. Close them.
type Sides struct {
	Before, After *Side

	files []*File
}

// Close closes the files.
func (s *Sides) Close() {
	for _, f := range s.files {
		f.Close()
	}
}

// OpenSides opens two files, or one for two moments of it. If both ends are empty and no moment is asked for, their peaks are compared.
func OpenSides(o *Options) (*Sides, error) {
	s := &Sides{}
	err := s.open(o)
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func (s *Sides) open(o *Options) error {
	profiles := 0
	for _, path := range o.Paths {
		f, err := Open(path, o.Open)
		if err != nil {
			return err
		}
		s.files = append(s.files, f)
		if f.IsProfile() {
			profiles++
		}
	}
	if profiles == len(s.files) && len(o.At) > 0 {
		return exit.Usage("--at: a profile is of one moment; give the recording that it was made of")
	}
	first, last := s.files[0], s.files[len(s.files)-1]
	at, atAfter := o.Moments()
	emptied, err := len(o.At) == 0, error(nil)
	for _, f := range []*File{first, last} {
		if emptied && err == nil {
			emptied, err = f.IsEmptied()
		}
	}
	if err != nil {
		return err
	}
	if emptied {
		at, atAfter = moment.Moment{Kind: moment.Peak}, moment.Moment{Kind: moment.Peak}
		o.Warn(errors.New("at the end of both nothing is in use any more: what was in use at their peaks is compared; --at end compares " +
			"the ends"))
	}
	if s.Before, err = first.Side(at, o.By, o.Version); err != nil {
		return err
	}
	s.After, err = last.Side(atAfter, o.By, o.Version)
	return err
}
