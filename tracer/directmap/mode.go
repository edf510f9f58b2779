// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package directmap

import (
	"bufio"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"
)

// Mode is the way in which the kernel side reads the target's memory (docs/decisions/reading-memory.md).
type Mode uint8

// The modes. Auto reads in place if that is known to be safe, and copies otherwise. InPlace fails if reading in place
// is impossible.
const (
	Auto Mode = iota
	Copy
	InPlace
)

// Modes are the modes as a user types them, by number.
var Modes = []string{"auto", "copy", "in-place"}

func (m Mode) String() string { return Modes[m] }

// ParseMode is the reverse of String.
func ParseMode(name string) (Mode, error) {
	i := slices.Index(Modes, name)
	if i < 0 {
		return 0, fmt.Errorf("memory is read %s, not %q", strings.Join(Modes, ", "), name)
	}
	return Mode(i), nil
}

// Use is the way in which a session reads memory.
type Use struct {
	InPlace bool
	Source  string // how the kernel's direct map was found; empty: memory is copied
	Why     error  // why memory is copied although that was not requested; nil: it was, or memory is read in place
}

// String returns "memory in place" or "memory copied".
func (u *Use) String() string {
	if u.InPlace {
		return "memory in place"
	}
	return "memory copied"
}

// bootedSeries are the kernels that the project's own tests boot. On others, Auto copies. docs/measured/kernels.md and
// e2e/kernels/series.txt have the same list; a test compares them. (6.1 cannot read in place: bpf_rdonly_cast came with 6.2.)
var bootedSeries = []string{"6.1", "6.12", "6.16", "6.17", "6.18", "6.19", "7.0", "7.1", "7.2", "7.3"}

// seriesOf returns major and minor number of a release: "6.18" for "6.18.44-cloud".
func seriesOf(release string) (major, minor int, err error) {
	if n, err := fmt.Sscanf(release, "%d.%d", &major, &minor); err != nil || n != 2 || major < 0 || minor < 0 {
		return 0, 0, fmt.Errorf("the release %q of the kernel has no number", release)
	}
	return major, minor, nil
}

// kernelFacts decide whether memory may be read in place by default.
type kernelFacts struct {
	release string
	config  map[string]string // the kernel's build configuration; nil: unreadable
	atOnce  bool              // it has freesAtOnce
}

func readKernelFacts(types *btf.Cache) kernelFacts {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return kernelFacts{}
	}
	k := kernelFacts{release: unix.ByteSliceToString(u.Release[:]), atOnce: hasField(types, "pv_mmu_ops", freesAtOnce)}
	k.config = readKernelConfig("/proc/config.gz", "/boot/config-"+k.release, "/lib/modules/"+k.release+"/config")
	return k
}

// Since 6.15, x86-64 frees page tables after an RCU grace period, however the kernel was built (commits a37259732a7d and
// f2c5c2105827, "x86/mm: Make MMU_GATHER_RCU_TABLE_FREE unconditional" and "Remove pv_ops.mmu.tlb_remove_table call"); so
// does a kernel with rcuReclaim, which came with 6.14. An earlier kernel built with rcuOption uses freesAtOnce, which waits
// too, unless the kernel is a guest of a hypervisor for which it frees a table as soon as no processor has it in its TLB.
const (
	rcuMajor, rcuMinor = 6, 15
	rcuOption          = "CONFIG_MMU_GATHER_RCU_TABLE_FREE"
	rcuReclaim         = "CONFIG_PT_RECLAIM"
	freesAtOnce        = "tlb_remove_table" // a field of struct pv_mmu_ops, arch/x86/include/asm/paravirt_types.h
)

// safe returns why memory should be copied on this kernel; nil: it can be read in place.
func (k *kernelFacts) safe() error {
	major, minor, err := seriesOf(k.release)
	if err != nil {
		return err
	}
	if series := fmt.Sprintf("%d.%d", major, minor); !slices.Contains(bootedSeries, series) {
		return fmt.Errorf("reading in place is not tested on Linux %s", series)
	}
	switch {
	case k.config != nil && k.config[rcuOption] != "y":
		return fmt.Errorf("this kernel does not free page tables by RCU (%s)", rcuOption)
	case k.config[rcuReclaim] == "y":
	case k.atOnce:
		return fmt.Errorf("this kernel can free a page table while it is read (%s)", freesAtOnce)
	case k.config == nil && (major < rcuMajor || major == rcuMajor && minor < rcuMinor):
		return fmt.Errorf("a page table can be freed while it is read on Linux %d.%d, whose configuration is not known", major, minor)
	}
	return nil
}

// hasField reports whether a structure of the kernel has a field; true also if that cannot be found out.
func hasField(types *btf.Cache, structure, field string) bool {
	all, err := types.Kernel()
	if err != nil {
		return true
	}
	var found *btf.Struct
	if err := all.TypeByName(structure, &found); err != nil {
		return !errors.Is(err, btf.ErrNotFound)
	}
	return slices.ContainsFunc(found.Members, func(m btf.Member) bool { return m.Name == field })
}

// maxConfig limits the size of a kernel's configuration, bytes: they have 150 to 300 kB.
const maxConfig = 4 << 20

// readKernelConfig reads the first of the files that exists; nil: none exists or can be read.
func readKernelConfig(paths ...string) map[string]string {
	for _, path := range paths {
		f, err := os.Open(path)
		if err != nil {
			continue
		}
		defer f.Close()
		var r io.Reader = f
		if strings.HasSuffix(path, ".gz") {
			if r, err = gzip.NewReader(f); err != nil {
				continue
			}
		}
		if c, err := parseKernelConfig(r); err == nil {
			return c
		}
	}
	return nil
}

// parseKernelConfig parses kconfig's format: CONFIG_NAME=value, and comments for unset options.
func parseKernelConfig(r io.Reader) (map[string]string, error) {
	out := map[string]string{}
	lines := bufio.NewScanner(io.LimitReader(r, maxConfig))
	for lines.Scan() {
		if name, value, ok := strings.Cut(lines.Text(), "="); ok && strings.HasPrefix(name, "CONFIG_") {
			out[name] = value
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read the kernel's configuration: %w", err)
	}
	if len(out) == 0 {
		return nil, errors.New("the kernel's configuration is empty")
	}
	return out, nil
}

// Plan decides how to read memory on this kernel. d is the direct map; if it is nil, memory is copied, and use has the
// reason. Only InPlace can cause an error. types are the kernel's, because reading them takes 16 ms each time.
func Plan(m Mode, types *btf.Cache) (d *Map, use Use, err error) {
	facts := readKernelFacts(types)
	return plan(m, &facts, func() (*Map, error) { return Find(types) })
}

// Safe returns why memory should be copied on this kernel and not read in place; nil: it can be read in place.
func Safe() error {
	facts := readKernelFacts(btf.NewCache())
	return facts.safe()
}

// plan decides from facts about the kernel; find finds the direct map.
func plan(m Mode, k *kernelFacts, find func() (*Map, error)) (d *Map, use Use, err error) {
	if m == Copy {
		return nil, Use{}, nil
	}
	if m == Auto {
		if err := k.safe(); err != nil {
			return nil, Use{Why: err}, nil
		}
	}
	d, err = find()
	switch {
	case err == nil:
		return d, Use{InPlace: true, Source: d.Source}, nil
	case m == InPlace:
		return nil, Use{}, fmt.Errorf("memory cannot be read in place here: %w", err)
	}
	return nil, Use{Why: err}, nil
}
