// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

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

// variant is a form of the kernel side that does without some kernel feature.
type variant struct {
	name string // for people
	less func(*Options)
}

// variants are tried in this order until the kernel accepts one. A variant that equals the previous one is skipped.
var variants = []variant{
	{"that read memory in place", func(*Options) {}},
	{"that copy memory", func(o *Options) { o.Direct = bpf.TraceDirectMap{} }},
	{"that copy memory, without bpf_find_vma", func(o *Options) { o.Direct, o.NoFindVMA = bpf.TraceDirectMap{}, true }},
}

// refusal is a variant that the kernel rejected.
type refusal struct {
	name string
	err  error
}

func (r refusal) Error() string {
	return fmt.Sprintf("this kernel refuses the programs %s: %s", r.name, Shortened(r.err))
}

func (r refusal) Unwrap() error { return r.err }

// Load loads the programs and maps in the first form that the kernel accepts, trying forms that require less and less. inPlace:
// forms that copy memory are not acceptable. used is the loaded form, refused has the rejected ones. The error is the last form's.
func Load(most Options, inPlace bool) (k *Side, used Options, refused []error, err error) {
	return loadVariant(variants, most, inPlace, load)
}

// loadVariant loads the first of the variants that the kernel accepts. inPlace: no variant that copies is acceptable.
// The error is the last one's.
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

// isRefused reports whether another variant may be accepted; missing rights affect all variants.
func isRefused(err error) bool {
	var v *ebpf.VerifierError
	return errors.As(err, &v) || !errors.Is(err, unix.EPERM)
}

// shownError is how much of an error is shown, bytes: the kernel's own can be a page long.
const shownError = 200

// Shortened returns the first line of an error, shortened.
func Shortened(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	if len(line) > shownError {
		return strings.ToValidUTF8(line[:shownError], "") + "..."
	}
	return line
}
