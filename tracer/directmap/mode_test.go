// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package directmap

import (
	"compress/gzip"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cilium/ebpf/btf"
	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/bpf"
)

func TestParseMemory(t *testing.T) {
	for m := Auto; m <= InPlace; m++ {
		got, err := ParseMode(m.String())
		require.NoError(t, err)
		require.Equal(t, m, got)
	}
	for _, name := range []string{"", "in place", "Copy", "1"} {
		_, err := ParseMode(name)
		require.ErrorContains(t, err, "auto, copy, in-place")
	}
}

// TestBootedSeries: the list is that of the project's own tests, which boot a kernel of each series.
func TestBootedSeries(t *testing.T) {
	b, err := os.ReadFile("../../e2e/kernels/series.txt")
	require.NoError(t, err)
	require.Equal(t, strings.Fields(string(b)), bootedSeries)
}

func TestSeriesOf(t *testing.T) {
	for release, want := range map[string]string{"6.18.44-fc-v669": "6.18", "7.2.13+deb14-cloud-amd64": "7.2", "6.1-rc1": "6.1",
		"10.0": "10.0"} {
		major, minor, err := seriesOf(release)
		require.NoError(t, err)
		require.Equal(t, want, fmt.Sprintf("%d.%d", major, minor))
	}
	for _, release := range []string{"", "6", "six.one", "-6.1", "6.-1"} {
		_, _, err := seriesOf(release)
		require.Error(t, err, release)
	}
}

func TestSafe(t *testing.T) {
	byRCU, notByRCU, reclaim := map[string]string{rcuOption: "y"}, map[string]string{"CONFIG_X86": "y"},
		map[string]string{rcuOption: "y", rcuReclaim: "y"}
	for _, c := range []struct {
		kernelFacts
		why string // empty: it is safe
	}{
		{kernelFacts{"6.18.44", byRCU, false}, ""},
		{kernelFacts{"6.18.44", nil, false}, ""},
		{kernelFacts{"6.16.12+deb13-amd64", nil, false}, ""},
		{kernelFacts{"7.3.4", reclaim, false}, ""},
		{kernelFacts{"6.18.44", notByRCU, false}, "does not free page tables by RCU"},
		{kernelFacts{"6.12.111", notByRCU, false}, "does not free page tables by RCU"},
		{kernelFacts{"6.12.111", byRCU, true}, "can free a page table while it is read (tlb_remove_table)"},
		{kernelFacts{"6.12.111", nil, true}, "can free a page table"},
		{kernelFacts{"6.12.111", byRCU, false}, ""}, // a stable kernel that has got the change
		{kernelFacts{"6.12.111", reclaim, true}, ""},
		{kernelFacts{"6.12.111", nil, false}, "whose configuration is not known"},
		{kernelFacts{"6.14.1", reclaim, true}, "not tested on Linux 6.14"},
		{kernelFacts{"6.6.1", byRCU, false}, "not tested on Linux"},
		{kernelFacts{"6.180.1", byRCU, false}, "not tested on Linux"},
		{kernelFacts{"7.4.0", byRCU, false}, "not tested on Linux 7.4"},
		{kernelFacts{"", nil, false}, "no number"},
	} {
		err := c.safe()
		if c.why == "" {
			require.NoError(t, err, "%v", c)
		} else {
			require.ErrorContains(t, err, c.why, "%v", c)
		}
	}
}

func TestHasField(t *testing.T) {
	require.True(t, hasField(btf.NewCache(), "task_struct", "pid"))
	require.False(t, hasField(btf.NewCache(), "task_struct", "no_such_field"))
	require.False(t, hasField(btf.NewCache(), "no_such_struct", "pid"))
	k := readKernelFacts(btf.NewCache())
	t.Log(k.release, len(k.config), k.atOnce, k.safe())
}

func TestParseKernelConfig(t *testing.T) {
	c, err := parseKernelConfig(strings.NewReader("# CONFIG_XEN is not set\nCONFIG_A=y\nCONFIG_B=\"a=b\"\nNOT_A_CONFIG=y\n"))
	require.NoError(t, err)
	require.Equal(t, map[string]string{"CONFIG_A": "y", "CONFIG_B": `"a=b"`}, c)
	for _, text := range []string{"", "no config\n", strings.Repeat("x", 1<<20)} {
		_, err := parseKernelConfig(strings.NewReader(text))
		require.Error(t, err)
	}
}

func FuzzParseKernelConfig(f *testing.F) {
	f.Add("# CONFIG_XEN is not set\nCONFIG_A=y\n")
	f.Fuzz(func(t *testing.T, text string) {
		c, err := parseKernelConfig(strings.NewReader(text))
		require.Equal(t, err == nil, len(c) > 0)
	})
}

// TestReadKernelConfig: the first file that can be read counts, packed or not.
func TestReadKernelConfig(t *testing.T) {
	dir := t.TempDir()
	plain, packed, damaged := filepath.Join(dir, "config"), filepath.Join(dir, "config.gz"), filepath.Join(dir, "damaged.gz")
	require.NoError(t, os.WriteFile(plain, []byte("CONFIG_A=plain\n"), 0o644))
	require.NoError(t, os.WriteFile(damaged, []byte("CONFIG_A=damaged\n"), 0o644))
	f, err := os.Create(packed)
	require.NoError(t, err)
	z := gzip.NewWriter(f)
	_, err = z.Write([]byte("CONFIG_A=packed\n"))
	require.NoError(t, errors.Join(err, z.Close(), f.Close()))
	none := filepath.Join(dir, "none")
	require.Nil(t, readKernelConfig(none))
	require.Nil(t, readKernelConfig(damaged))
	require.Equal(t, "plain", readKernelConfig(none, plain, packed)["CONFIG_A"])
	require.Equal(t, "packed", readKernelConfig(damaged, packed, plain)["CONFIG_A"])
}

func TestPlanMemory(t *testing.T) {
	safe, unknown := &kernelFacts{release: "6.18.1"}, &kernelFacts{release: "6.5.0"}
	there := &Map{bpf.TraceDirectMap{Base: aBase}, "someone"}
	missing := errors.New("no map")
	for _, c := range []struct {
		mode    Mode
		kernel  *kernelFacts
		missing error
		use     Use
		why     string // of use
		err     string
	}{
		{Auto, safe, nil, Use{InPlace: true, Source: "someone"}, "", ""},
		{Auto, safe, missing, Use{}, "no map", ""},
		{Auto, unknown, nil, Use{}, "not tested on Linux 6.5", ""},
		{Copy, safe, nil, Use{}, "", ""},
		{Copy, unknown, missing, Use{}, "", ""},
		{InPlace, safe, nil, Use{InPlace: true, Source: "someone"}, "", ""},
		{InPlace, unknown, nil, Use{InPlace: true, Source: "someone"}, "", ""},
		{InPlace, safe, missing, Use{}, "", "cannot be read in place here: no map"},
	} {
		name, asked := fmt.Sprint(c.mode, c.kernel.release, c.missing), false
		d, use, err := plan(c.mode, c.kernel, func() (*Map, error) {
			asked = true
			if c.missing != nil {
				return nil, c.missing
			}
			return there, nil
		})
		require.Equal(t, c.use.InPlace, d != nil, name)
		require.Equal(t, c.use.InPlace || c.missing != nil && c.mode != Copy, asked, "%s: nothing is asked of the kernel for a copy", name)
		require.Equal(t, c.use.InPlace, use.InPlace, name)
		require.Equal(t, c.use.Source, use.Source, name)
		if c.why == "" {
			require.NoError(t, use.Why, name)
		} else {
			require.ErrorContains(t, use.Why, c.why, name)
		}
		if c.err == "" {
			require.NoError(t, err, name)
		} else {
			require.ErrorContains(t, err, c.err, name)
		}
	}
}
