// SPDX-License-Identifier: Apache-2.0

//go:build linux && amd64

package tracer

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gputrace/gputrace/bpf"
	"github.com/gputrace/gputrace/tracer/directmap"
	"github.com/gputrace/gputrace/tracer/feature"
)

// TestLoadVariant: the kernel takes the first of the variants that it does not refuse.
func TestLoadVariant(t *testing.T) {
	direct := kernelOptions{direct: bpf.TraceDirectMap{Base: 1 << 40}}
	verifier := &ebpf.VerifierError{Cause: unix.EACCES, Log: []string{"R2 type=mem expected=fp"}}
	for name, c := range map[string]struct {
		most    kernelOptions
		inPlace bool
		takes   func(kernelOptions) error
		used    kernelOptions
		refused int
		err     error
	}{
		"all":                 {direct, false, func(kernelOptions) error { return nil }, direct, 0, nil},
		"copies only":         {direct, false, refusesInPlace(verifier), kernelOptions{}, 1, nil},
		"nothing to refuse":   {kernelOptions{}, false, refusesInPlace(verifier), kernelOptions{}, 0, nil},
		"no bpf_find_vma":     {direct, false, refusesFindVMA(verifier), kernelOptions{noFindVMA: true}, 2, nil},
		"nothing":             {direct, false, func(kernelOptions) error { return verifier }, kernelOptions{noFindVMA: true}, 3, verifier},
		"nothing of one":      {kernelOptions{}, false, func(kernelOptions) error { return verifier }, kernelOptions{noFindVMA: true}, 2, verifier},
		"no rights":           {direct, false, func(kernelOptions) error { return unix.EPERM }, direct, 1, unix.EPERM},
		"in place or nothing": {direct, true, refusesInPlace(verifier), direct, 1, verifier},
		"in place":            {direct, true, func(kernelOptions) error { return nil }, direct, 0, nil},
		"in place, no map":    {kernelOptions{}, true, func(kernelOptions) error { return nil }, kernelOptions{}, 0, directmap.ErrNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			k, used, refused, err := loadVariant(variants, c.most, c.inPlace, func(o kernelOptions) (*kernel, error) {
				if err := c.takes(o); err != nil {
					return nil, fmt.Errorf("load: %w", err)
				}
				return &kernel{}, nil
			})
			require.ErrorIs(t, err, c.err)
			require.Equal(t, c.err == nil, k != nil)
			require.Equal(t, c.used, used)
			require.Len(t, refused, c.refused)
			if c.inPlace && c.err != nil {
				require.ErrorContains(t, err, "cannot be read in place here")
			}
		})
	}
}

func refusesFindVMA(err error) func(kernelOptions) error {
	return func(o kernelOptions) error {
		if o.noFindVMA {
			return nil
		}
		return err
	}
}

func refusesInPlace(err error) func(kernelOptions) error {
	return func(o kernelOptions) error {
		if o.direct.Base != 0 {
			return err
		}
		return nil
	}
}

func TestShortened(t *testing.T) {
	require.Equal(t, "one line", shortened(errors.New("one line\nand another")))
	long := shortened(errors.New(strings.Repeat("é", shownError)))
	require.Equal(t, strings.Repeat("é", shownError/2)+"...", long)
	r := refusal{"that read memory in place", errors.New("R2 type=mem\nmore")}
	require.Equal(t, "this kernel refuses the programs that read memory in place: R2 type=mem", r.Error())
}

// TestMemoryModes loads the real programs in each way.
func TestMemoryModes(t *testing.T) {
	for _, m := range []directmap.Mode{directmap.Auto, directmap.Copy, directmap.InPlace} {
		t.Run(m.String(), func(t *testing.T) {
			s, err := Open(&Options{Memory: m, RingBytes: 1 << 16})
			require.NoError(t, err)
			defer s.Close()
			use := s.Memory()
			copies := m == directmap.Auto && directmap.Safe() != nil
			require.Equal(t, m != directmap.Copy && !copies, use.InPlace, "%v", use.Why)
			require.Equal(t, use.InPlace, use.Source != "")
			require.Equal(t, copies, len(s.Notices()) > 0)
			require.Empty(t, s.Warnings())
		})
	}
}

// TestLoadInPlace: this kernel takes the programs that read memory in place, and its verifier is far from giving up.
func TestLoadInPlace(t *testing.T) {
	found, err := directmap.Find()
	require.NoError(t, err)
	k, err := loadKernel(kernelOptions{ringBytes: 1 << 16, multi: feature.HasUprobeMulti(), direct: found.TraceDirectMap})
	require.NoError(t, err)
	defer k.Close()
	info, err := k.objs.Report.Info()
	require.NoError(t, err)
	n, ok := info.VerifiedInstructions()
	require.True(t, ok)
	t.Log(n, "instructions verified")
	require.Less(t, n, uint32(300_000), "of a million")
}
