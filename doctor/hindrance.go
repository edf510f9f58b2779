// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package doctor

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/gputrace/gputrace/internal/limits"
	"github.com/gputrace/gputrace/tracer"
	"github.com/gputrace/gputrace/tracer/feature"
)

// Hindrance is something in the surroundings of gputrace, not in the kernel's programs, that a call has failed for.
type Hindrance struct {
	Says    string
	Fixes   []Fix
	Missing bool // something is not there, such as /sys; else it is forbidden
}

func (h *Hindrance) Error() string {
	out := h.Says
	for _, f := range h.Fixes {
		out += fmt.Sprintf("\n  %-12s %s", f.Where+":", f.Line)
	}
	return out
}

// Find looks for what an error of attaching comes from: a limit, a file system that is not mounted, a filter of system calls; nil: none of
// these.
func Find(err error) *Hindrance { return find(err, nil) }

// FindReading is Find for an error of reading a process, which makes fewer system calls.
func FindReading(err error) *Hindrance {
	return find(err, []string{"pidfd_open", "openat2"})
}

// find looks among the named system calls; nil: all.
func find(err error, calls []string) *Hindrance {
	if low := limits.Explain(err); low != nil {
		return &Hindrance{Says: low.Says, Fixes: fixesOf(low)}
	}
	if h := findMissing(err); h != nil {
		return h
	}
	return refusedCall(err, calls)
}

// findMissing looks for something in the surroundings that is missing.
func findMissing(err error) *Hindrance {
	for _, look := range []func(error) *Hindrance{missingProc, sandboxed, missingSys, missingTypes, missingUprobes} {
		if h := look(err); h != nil {
			return h
		}
	}
	return nil
}

// fixesOf are the lines of a limit that is too low.
func fixesOf(low *limits.TooLow) []Fix {
	var out []Fix
	for _, line := range low.Fixes {
		where := "host"
		if strings.HasPrefix(line, "docker ") {
			where = "docker"
		}
		if rest, ok := strings.CutPrefix(line, "kubernetes: "); ok {
			where, line = "kubernetes", rest
		}
		out = append(out, Fix{where, line})
	}
	return out
}

func there(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func missingProc(error) *Hindrance {
	if there("/proc/self/stat") {
		return nil
	}
	return &Hindrance{
		Says: "/proc is not mounted where gputrace runs: no process can be read", Missing: true,
		Fixes: []Fix{{"host", "mount -t proc proc /proc"}, {"docker", "docker run --pid=host ..."}},
	}
}

// sandboxVersion is what gVisor's kernel calls itself (pkg/sentry/syscalls/linux/linux64.go: LinuxRelease and LinuxVersion).
const sandboxVersion = "4.4.0 #1 SMP Sun Jan 10 15:06:54 PST 2016"

// sandboxed reports a gVisor sandbox, whose kernel is a program that loads no other ones.
func sandboxed(err error) *Hindrance {
	version, e := os.ReadFile("/proc/version")
	if err == nil || e != nil || !strings.Contains(string(version), sandboxVersion) {
		return nil
	}
	return &Hindrance{
		Says: "gputrace runs in a gVisor sandbox, whose kernel has no BPF: run the job and gputrace outside it", Missing: true,
		Fixes: []Fix{{"docker", "docker run --runtime=runc ..."}, {"kubernetes", "a pod without runtimeClassName: gvisor"}},
	}
}

func missingSys(error) *Hindrance {
	if there("/sys/devices/system/cpu/possible") {
		return nil
	}
	return &Hindrance{
		Says: "/sys is not mounted where gputrace runs: the kernel's types and processors cannot be read", Missing: true,
		Fixes: []Fix{{"host", "mount -t sysfs sysfs /sys"}, {"docker", "docker run -v /sys:/sys:ro ..."}},
	}
}

// typesFile is where the kernel shows its types.
const typesFile = "/sys/kernel/btf/vmlinux"

func missingTypes(err error) *Hindrance {
	if !errors.Is(err, tracer.ErrNotLoaded) || there(typesFile) {
		return nil
	}
	return &Hindrance{
		Says:    "the types of the kernel (BTF) are missing: " + typesFile + " is hidden in this container, or the kernel was built without",
		Missing: true,
		Fixes: []Fix{
			{"docker", "docker run -v /sys/kernel/btf:/sys/kernel/btf:ro ..."},
			{"kubernetes", "volumes: [{name: btf, hostPath: {path: /sys/kernel/btf}}], mounted at /sys/kernel/btf"},
			{"host", "mount -t sysfs sysfs /sys, or boot a kernel with CONFIG_DEBUG_INFO_BTF=y"},
		},
	}
}

// refusedCall names the system call that a filter refuses. bpf(2) is refused without CAP_BPF, too.
func refusedCall(err error, calls []string) *Hindrance {
	if !errors.Is(err, unix.EPERM) && !errors.Is(err, unix.EACCES) && !errors.Is(err, unix.ENOSYS) {
		return nil
	}
	own, e := ownRights()
	if e != nil {
		return nil
	}
	var names []string
	var call error
	for _, c := range feature.SystemCalls() {
		if c.Err != nil && !c.Unused && (calls == nil || slices.Contains(calls, c.Name)) && (c.Name != "bpf" || own.has(Capabilities[0])) {
			names, call = append(names, c.Name), c.Err
		}
	}
	if names == nil {
		return nil
	}
	h := &Hindrance{Says: fmt.Sprintf("the system call %s is refused to gputrace (%v)", strings.Join(names, ", "), call)}
	h.Says, h.Fixes = h.Says+own.whoRefuses(), own.allow()
	return h
}

// missingUprobes is for a kernel without uprobe_multi links, where probes are perf events.
func missingUprobes(err error) *Hindrance {
	if !errors.Is(err, tracer.ErrNotLoaded) && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOSYS) || feature.HasUprobeMulti() ||
		there("/sys/bus/event_source/devices/uprobe/type") {
		return nil
	}
	return &Hindrance{
		Says: "this kernel has no probes for programs: it was built without CONFIG_UPROBE_EVENTS or CONFIG_PERF_EVENTS", Missing: true,
		Fixes: []Fix{{"host", "boot a kernel with CONFIG_UPROBE_EVENTS=y; gputrace who, dump and summary work without"}},
	}
}
