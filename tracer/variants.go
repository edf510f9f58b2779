// SPDX-License-Identifier: Apache-2.0

//go:build linux && amd64

package tracer

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
	less func(*kernelOptions)
}

// variants are tried in this order until the kernel takes one. One that is the same as the one before it is left out.
var variants = []variant{
	{"that read memory in place", func(*kernelOptions) {}},
	{"that copy memory", func(o *kernelOptions) { o.direct = bpf.TraceDirectMap{} }},
	{"that copy memory, without bpf_find_vma", func(o *kernelOptions) { o.direct, o.noFindVMA = bpf.TraceDirectMap{}, true }},
}

// refusal is a variant that the kernel did not take.
type refusal struct {
	name string
	err  error
}

func (r refusal) Error() string {
	return fmt.Sprintf("this kernel refuses the programs %s: %s", r.name, shortened(r.err))
}

func (r refusal) Unwrap() error { return r.err }

// loadVariant loads the first of the variants that the kernel takes. inPlace: no other will do. The error is that of the last one.
func loadVariant(variants []variant, most kernelOptions, inPlace bool, load func(kernelOptions) (*kernel, error)) (*kernel, kernelOptions, []refusal, error) {
	var refused []refusal
	var before kernelOptions
	last := directmap.ErrNotFound
	for i, v := range variants {
		o := most
		v.less(&o)
		if i > 0 && o == before || inPlace && o.direct.Base == 0 {
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

// shortened is the first line of an error.
func shortened(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	if len(line) > shownError {
		return strings.ToValidUTF8(line[:shownError], "") + "..."
	}
	return line
}
