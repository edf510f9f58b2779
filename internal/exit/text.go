// SPDX-License-Identifier: Apache-2.0

package exit

import (
	"errors"
	"strings"
)

// said is an error that has a text of its own, in place of those of its causes.
type said struct {
	text string
	err  error
}

func (e *said) Error() string { return e.text }
func (e *said) Unwrap() error { return e.err }

// Say wraps an error in a text for people: one cause, and below it what to do. What it wraps is for Causes, and for errors.Is.
func Say(text string, err error) error { return &said{text, err} }

// Text is an error for people: what was done, and one cause. What the system says of a file that is named already is not repeated.
func Text(err error) string {
	var s *said
	if errors.As(err, &s) {
		return err.Error()
	}
	var out []string
	for _, cause := range Causes(err) {
		n := len(out)
		if n > 0 {
			last := out[n-1]
			verb, rest, ok := strings.Cut(cause, " ")
			switch {
			case last == cause || ok && strings.HasSuffix(last, " "+rest) && strings.HasPrefix(last, verb+" "):
				continue
			case ok && strings.HasPrefix(last, verb+" ") && !strings.Contains(rest, " "): // "open recording", "open x.gputrace"
				out[n-1] = last + " " + rest
				continue
			}
		}
		out = append(out, cause)
	}
	return strings.Join(out, ": ")
}

// Causes are the texts of an error and of what it wraps, from what was to be done to what the system said, each without those behind
// it, and without what Say has put in their place.
func Causes(err error) []string {
	var out []string
	for err != nil {
		var s *said
		if own, ok := err.(*said); ok {
			s = own
		}
		inner := unwrap(err)
		text := err.Error()
		switch {
		case s != nil: // Text has printed it
			text = ""
		case inner != nil && text == inner.Error():
			text = ""
		case inner != nil:
			before, found := strings.CutSuffix(text, inner.Error())
			if !found { // the rest is not at the end: it is all there is to say
				return append(out, text)
			}
			text = strings.TrimSuffix(before, ": ")
		}
		if text != "" {
			out = append(out, text)
		}
		err = inner
	}
	return out
}

// unwrap is the last of the errors that one wraps; nil: it wraps none.
func unwrap(err error) error {
	switch e := err.(type) {
	case interface{ Unwrap() error }:
		return e.Unwrap()
	case interface{ Unwrap() []error }:
		if all := e.Unwrap(); len(all) > 0 {
			return all[len(all)-1]
		}
	}
	return nil
}
