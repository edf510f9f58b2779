// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package kernel

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gputrace/gputrace/bpf"
	"github.com/gputrace/gputrace/tracer/directmap"
	"github.com/gputrace/gputrace/tracer/feature"
)

// TestLoadVariant: the kernel takes the first of the variants that it does not refuse.
func TestLoadVariant(t *testing.T) {
	direct := Options{Direct: bpf.TraceDirectMap{Base: 1 << 40}}
	verifier := &ebpf.VerifierError{Cause: unix.EACCES, Log: []string{"R2 type=mem expected=fp"}}
	for name, c := range map[string]struct {
		most    Options
		inPlace bool
		takes   func(Options) error
		used    Options
		refused int
		err     error
	}{
		"all":                 {direct, false, func(Options) error { return nil }, direct, 0, nil},
		"copies only":         {direct, false, refusesInPlace(verifier), Options{}, 1, nil},
		"nothing to refuse":   {Options{}, false, refusesInPlace(verifier), Options{}, 0, nil},
		"no bpf_find_vma":     {direct, false, refusesFindVMA(verifier), Options{NoFindVMA: true}, 2, nil},
		"nothing":             {direct, false, func(Options) error { return verifier }, Options{NoFindVMA: true}, 3, verifier},
		"nothing of one":      {Options{}, false, func(Options) error { return verifier }, Options{NoFindVMA: true}, 2, verifier},
		"no rights":           {direct, false, func(Options) error { return unix.EPERM }, direct, 1, unix.EPERM},
		"in place or nothing": {direct, true, refusesInPlace(verifier), direct, 1, verifier},
		"in place":            {direct, true, func(Options) error { return nil }, direct, 0, nil},
		"in place, no map":    {Options{}, true, func(Options) error { return nil }, Options{}, 0, directmap.ErrNotFound},
	} {
		t.Run(name, func(t *testing.T) {
			k, used, refused, err := loadVariant(variants, c.most, c.inPlace, func(o Options) (*Side, error) {
				if err := c.takes(o); err != nil {
					return nil, fmt.Errorf("load: %w", err)
				}
				return &Side{}, nil
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

func refusesFindVMA(err error) func(Options) error {
	return func(o Options) error {
		if o.NoFindVMA {
			return nil
		}
		return err
	}
}

func refusesInPlace(err error) func(Options) error {
	return func(o Options) error {
		if o.Direct.Base != 0 {
			return err
		}
		return nil
	}
}

func TestShortened(t *testing.T) {
	require.Equal(t, "one line", Shortened(errors.New("one line\nand another")))
	long := Shortened(errors.New(strings.Repeat("é", shownError)))
	require.Equal(t, strings.Repeat("é", shownError/2)+"...", long)
	r := refusal{"that read memory in place", errors.New("R2 type=mem\nmore")}
	require.Equal(t, "this kernel refuses the programs that read memory in place: R2 type=mem", r.Error())
}

// TestLoadInPlace: this kernel takes the programs that read memory in place, and its verifier is far from giving up.
func TestLoadInPlace(t *testing.T) {
	found, err := directmap.Find(btf.NewCache())
	require.NoError(t, err)
	k, err := load(Options{RingBytes: 1 << 16, Multi: feature.HasUprobeMulti(), Direct: found.TraceDirectMap})
	require.NoError(t, err)
	defer k.Close()
	info, err := k.objs.Report.Info()
	require.NoError(t, err)
	n, ok := info.VerifiedInstructions()
	require.True(t, ok)
	t.Log(n, "instructions verified")
	require.Less(t, n, uint32(300_000), "of a million")
}
