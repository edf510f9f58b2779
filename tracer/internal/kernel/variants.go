// SPDX-License-Identifier: Apache-2.0

//go:build linux && amd64

package kernel

import (
	"errors"
	"fmt"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/gputrace/gputrace/bpf"
	"github.com/gputrace/gputrace/tracer/directmap"
)

// variant is a form of the kernel side, by what the one that asks most of the kernel does without.
type variant struct {
	name string // for people
	less func(*Options)
}

// variants are tried in this order until the kernel takes one. One that is the same as the one before it is left out.
var variants = []variant{
	{"that read memory in place", func(*Options) {}},
	{"that copy memory", func(o *Options) { o.Direct = bpf.TraceDirectMap{} }},
	{"that copy memory, without bpf_find_vma", func(o *Options) { o.Direct, o.NoFindVMA = bpf.TraceDirectMap{}, true }},
}

// refusal is a variant that the kernel did not take.
type refusal struct {
	name string
	err  error
}

func (r refusal) Error() string {
	return fmt.Sprintf("this kernel refuses the programs %s: %s", r.name, Shortened(r.err))
}

func (r refusal) Unwrap() error { return r.err }

// Load loads the programs and maps in the first form that the kernel takes, of those that do without more and more. inPlace: one that
// copies memory will not do. used is the form, refused says which were not taken. The error is that of the last one.
func Load(most Options, inPlace bool) (k *Side, used Options, refused []error, err error) {
	return loadVariant(variants, most, inPlace, load)
}

// loadVariant loads the first of the variants that the kernel takes. inPlace: no other will do. The error is that of the last one.
func loadVariant(variants []variant, most Options, inPlace bool, load func(Options) (*Side, error)) (*Side, Options, []error, error) {
	var refused []error
	var before Options
	last := directmap.ErrNotFound
	for i, v := range variants {
		o := most
		v.less(&o)
		if i > 0 && o == before || inPlace && o.Direct.Base == 0 {
			continue
		}
		before = o
		k, err := load(o)
		if err == nil {
			return k, o, refused, nil
		}
		refused, last = append(refused, refusal{v.name, err}), err
		if !isRefused(err) {
			break
		}
	}
	if inPlace {
		last = fmt.Errorf("memory cannot be read in place here: %w", last)
	}
	return nil, before, refused, last
}

// isRefused reports whether another variant may be taken: not for want of rights.
func isRefused(err error) bool {
	var v *ebpf.VerifierError
	return errors.As(err, &v) || !errors.Is(err, unix.EPERM)
}

// shownError is how much of an error is said, bytes: the kernel's own can be a page.
const shownError = 200

// Shortened is the first line of an error.
func Shortened(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	if len(line) > shownError {
		return strings.ToValidUTF8(line[:shownError], "") + "..."
	}
	return line
}
