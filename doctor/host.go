// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package doctor

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/gputrace/gputrace/internal/limits"
	"github.com/gputrace/gputrace/tracer"
	"github.com/gputrace/gputrace/tracer/directmap"
	"github.com/gputrace/gputrace/tracer/feature"
	"github.com/gputrace/gputrace/tracer/selftest"
)

// Abandon removes what a Run that has not ended has made, when the process is about to end.
func Abandon() { selftest.Abandon() }

// Run looks at this machine, and at a process when one is named. Limits come first, as in a trace: an attempt under
// a limit that is too low may end gputrace.
func Run(o Options) *Report {
	r := &Report{PID: o.PID}
	own, memory := checkOwn(), o.checkMemory()
	if r.tooLow = slices.ContainsFunc([]Check{own, memory}, func(c Check) bool { return c.State == Failed }); r.tooLow {
		r.add(checkRelease(), Check{Group: Kernel, Name: "programs", State: Unknown, Needed: true, Says: "not tried: a limit is too low"})
		checkRights(r, &o)
		checkLimits(r, own, memory)
	} else {
		test, err := selftest.Run(&tracer.Options{CacheDir: o.CacheDir, Memory: o.memory()})
		checkKernel(r, err)
		checkRights(r, &o)
		checkLimits(r, own, memory)
		r.add(checkTest(test, err)...)
	}
	ownOnly := r.failed("")
	if o.PID != 0 {
		checkTarget(r, &o, ownOnly == nil)
	}
	r.judge()
	return r
}

// checkKernel has a row for each feature, and one for what decides: whether the programs load. err is of the attach test.
func checkKernel(r *Report, err error) {
	r.add(checkRelease())
	for i := range feature.All {
		f := &feature.All[i]
		r.add(checkFeature(f, f.Probe(), errors.Is(err, tracer.ErrNotLoaded)))
	}
	r.add(checkPrograms(err))
}

func checkPrograms(err error) Check {
	c := Check{Group: Kernel, Name: "programs", Needed: true, Says: "the kernel accepted them"}
	switch {
	case !errors.Is(err, tracer.ErrNotLoaded):
	case forbidden(err):
		c.State, c.Says = Unknown, "not permitted to load them"
	default:
		c.State, c.Says, c.Fixes = Failed, feature.Refusal(err), []Fix{reportIt}
		if h := Find(err); h != nil {
			c.Says, c.Fixes = h.Says, h.Fixes
		}
	}
	return c
}

// forbidden reports whether it was for want of a right. The verifier refuses by EACCES too.
func forbidden(err error) bool {
	var v *ebpf.VerifierError
	return !errors.As(err, &v) && (errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES))
}

// reportIt is what is left to do where nothing is known to help.
var reportIt = Fix{"host", "report it, with the output of: uname -a; gputrace doctor --json"}

// builtFor are the machines that the compiled programs are for.
var builtFor = []string{"amd64", "arm64"}

func checkRelease() Check {
	c := Check{Group: Kernel, Name: "Linux", Needed: true}
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		c.State, c.Says = Unknown, err.Error()
		return c
	}
	c.Says = unix.ByteSliceToString(u.Release[:]) + " " + unix.ByteSliceToString(u.Machine[:])
	if !slices.Contains(builtFor, runtime.GOARCH) {
		c.State, c.Says = Failed, c.Says+": the programs are built for x86_64 and aarch64"
		c.Fixes = []Fix{{"host", "run gputrace on an x86_64 or aarch64 machine"}}
	}
	return c
}

// checkFeature judges what the kernel said when it was asked. Where the programs load, what is missing was not needed after all.
func checkFeature(f *feature.Feature, err error, refused bool) Check {
	c := Check{Group: Kernel, Name: f.Name, Needed: f.Without == "", Says: "Linux has it since " + f.Version}
	switch {
	case err == nil:
	case errors.Is(err, feature.ErrProcessor):
		c.State, c.Says = Unknown, "not on this processor: "+f.Without
	case errors.Is(err, feature.ErrMissing) && f.Without != "":
		c.State, c.Says = Unknown, "not in this kernel, Linux has it since "+f.Version+": "+f.Without
		if own, err := ownRights(); err == nil && f.Name == feature.UprobeMulti {
			own.checkPerf(&c, f.Version)
		}
	case f.Name == feature.KernelTypes:
		c.State, c.Says = Failed, firstLine(err.Error())
		if h := findMissing(fmt.Errorf("%w: %w", tracer.ErrNotLoaded, err)); h != nil {
			c.Says, c.Fixes = h.Says, h.Fixes
		}
	case errors.Is(err, feature.ErrMissing) && !refused:
		c.State, c.Says = Unknown, "not found in this kernel, but not needed: the programs load"
	case errors.Is(err, feature.ErrMissing):
		c.State, c.Says = Failed, "not in this kernel, Linux has it since "+f.Version
		c.Fixes = []Fix{{"host", "boot Linux " + f.Version + " or newer"}}
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		c.State, c.Says = Unknown, "not permitted to ask the kernel"
	default:
		c.State, c.Says = Unknown, firstLine(err.Error())
	}
	return c
}

// checkPerf is for a kernel without uprobe_multi links: an uprobe by a perf event takes CAP_SYS_ADMIN, CAP_PERFMON is not enough
// (perf_uprobe_event_init, kernel/events/core.c).
func (r *rights) checkPerf(c *Check, version string) {
	if r.effective&(1<<unix.CAP_SYS_ADMIN) == 0 {
		c.State, c.Needed, c.Says = Failed, true, c.Says+", which needs CAP_SYS_ADMIN"
		c.Fixes = []Fix{
			{"host", "sudo gputrace ...    # or boot Linux " + version + " or newer"},
			{"docker", "docker run --cap-add SYS_ADMIN --cap-add SYS_PTRACE ..."},
			{"kubernetes", `securityContext: {capabilities: {add: ["SYS_ADMIN", "SYS_PTRACE"]}}`},
		}
	}
}

// setting reads a file of one line in /proc or /sys; empty when there is none.
func setting(path string) string {
	b, _ := os.ReadFile(path)
	return strings.TrimSpace(string(b))
}

// checkLimits adds the checks of limits, with the given ones of gputrace's own process and memory.
func checkLimits(r *Report, own, memory Check) {
	r.add(checkLockdown(setting("/sys/kernel/security/lockdown")), checkPtraceScope(PtraceScope()),
		checkUnprivileged(setting("/proc/sys/kernel/unprivileged_bpf_disabled")), checkParanoid(setting("/proc/sys/kernel/perf_event_paranoid")),
		checkLocked(), own, memory)
}

// LockedDown reports whether the kernel is in the mode that keeps even root from reading memory by BPF.
func LockedDown() bool {
	return strings.Contains(setting("/sys/kernel/security/lockdown"), confidentiality)
}

const confidentiality = "[confidentiality]" // kernel_lockdown(7): the mode in brackets is the one that holds

func checkLockdown(mode string) Check {
	c := Check{Group: Limits, Name: "lockdown", Needed: true, Says: "none"}
	if _, rest, ok := strings.Cut(mode, "["); ok {
		c.Says, _, _ = strings.Cut(rest, "]")
	}
	if strings.Contains(mode, confidentiality) {
		c.State, c.Says = Failed, "confidentiality: BPF may not read memory"
		c.Fixes = []Fix{{"host", "boot with lockdown=integrity"}}
	}
	return c
}

// PtraceScope is kernel.yama.ptrace_scope; empty where there is no Yama.
func PtraceScope() string { return setting("/proc/sys/kernel/yama/ptrace_scope") }

func checkPtraceScope(scope string) Check {
	c := Check{Group: Limits, Name: "ptrace_scope", Needed: true, Says: scope + ": CAP_SYS_PTRACE reads every process"}
	switch scope {
	case "":
		c.Says = "there is no Yama: CAP_SYS_PTRACE reads every process"
	case "3":
		c.State, c.Says = Failed, "3: no process can be read until the next boot"
		c.Fixes = []Fix{{"sysctl", "kernel.yama.ptrace_scope=2    # in /etc/sysctl.d, then boot"}}
	}
	return c
}

func checkUnprivileged(value string) Check {
	c := Check{Group: Limits, Name: "unprivileged_bpf_disabled", Says: value + ": CAP_BPF is needed, and is checked above"}
	if value == "0" || value == "" {
		c.Says = "0: but tracing needs CAP_BPF anyway"
	}
	return c
}

// checkParanoid: CAP_PERFMON is stronger than the setting but in kernels of distributions that ask for CAP_SYS_ADMIN.
func checkParanoid(value string) Check {
	c := Check{Group: Limits, Name: "perf_event_paranoid", Says: value + ": does not matter to uprobe_multi links"}
	if n, err := strconv.Atoi(value); err == nil && n > 2 {
		c.Says += "; without these, Debian's and Ubuntu's 3 and 4 require CAP_SYS_ADMIN"
	}
	return c
}

// checkLocked: kernels before 5.11 charge BPF memory to the limit of locked memory.
func checkLocked() Check {
	c := Check{Group: Limits, Name: "locked memory", Needed: true, Says: "enough, or BPF memory is not charged to it"}
	err := feature.LockedMemory()
	if err == nil {
		return c
	}
	c.State, c.Says = Unknown, firstLine(err.Error())
	if own, e := ownRights(); e == nil && own.has(Capabilities[0]) { // without CAP_BPF that is not known
		c.State = Failed
		c.Fixes = []Fix{
			{"host", "ulimit -l unlimited"}, {"docker", "docker run --ulimit memlock=-1 ..."}, {"host", "systemd: LimitMEMLOCK=infinity"},
		}
	}
	return c
}

// checkOwn looks at the limits of gputrace's own process.
func checkOwn() Check {
	c := Check{Group: Limits, Name: "own limits", Needed: true, Says: "open files, address space, CPU time and threads are enough"}
	if low := limits.Check(); low != nil {
		c.State, c.Says, c.Fixes = Failed, low.Says, fixesOf(low)
	}
	return c
}

// checkMemory counts what the kernel and gputrace itself take, against the control group, which later kernels
// charge both to, and the machine.
func (o *Options) checkMemory() Check {
	c := Check{Group: Limits, Name: "memory for gputrace", Needed: true}
	b, err := limits.FitMemory(tracer.DefaultRing, false, tracer.KernelMemory)
	var low *limits.TooLow
	switch {
	case errors.As(err, &low):
		c.State, c.Says, c.Fixes = Failed, low.Says, fixesOf(low)
	case err != nil:
		c.State, c.Says = Unknown, err.Error()
	case b.Where == "":
		c.Says = "no limit is known"
	default:
		o.ring = b.Ring
		c.Says = fmt.Sprintf("%s has %d MiB left, a trace needs %d MiB", b.Where, b.Left>>20, b.Need>>20)
		if said := b.Smaller(tracer.DefaultRing); said != "" {
			c.Says = fmt.Sprintf("%s; a trace needs %d MiB then", said, b.Need>>20)
		}
	}
	return c
}

// memlockHint is what package ebpf adds when the kernel says EPERM: most kernels by now mean something else.
const memlockHint = " (MEMLOCK may be too low, consider rlimit.RemoveMemlock)"

// memory is how the tracer is to read memory.
func (o *Options) memory() directmap.Mode {
	m, _ := directmap.ParseMode(o.Memory) // the zero value is auto
	return m
}

// checkTest has rows for what programs of our own have shown, whose calls and stacks are known.
func checkTest(r *selftest.Result, err error) []Check {
	attach := Check{Group: Attach, Name: "probe of our own", Needed: true}
	if err != nil {
		attach.State, attach.Says, attach.Fixes = Failed, strings.TrimSuffix(firstLine(err.Error()), memlockHint), attachFixes(err)
		return []Check{attach}
	}
	how := "perf uprobe"
	if r.Multi {
		how = "uprobe_multi"
	}
	attach.Says = fmt.Sprintf("%d of %d calls counted, %s, in %.1f s", r.Hits, r.Calls, how, r.Took.Seconds())
	if r.Hits != r.Calls {
		attach.State, attach.Fixes = Failed, []Fix{reportIt}
	}
	return []Check{attach, checkStacks(r), checkMixedStacks(r), checkMemoryUse(&r.Memory)}
}

func checkStacks(r *selftest.Result) Check {
	c := Check{Group: Attach, Name: "stacks of our own", Needed: true, Says: fmt.Sprintf("%d, each frame is correct",
		r.Stacks)}
	if !r.Driver {
		c.Says += "; of PyTorch's layer only: " + tracer.ErrUnsafeReturns.Error()
	}
	if r.Native != nil {
		c.State, c.Says, c.Fixes = Failed, r.Native.Error(), []Fix{reportIt}
	}
	return c
}

func checkMixedStacks(r *selftest.Result) Check {
	c := Check{Group: Attach, Name: "stacks through Python", Needed: true,
		Says: "Python " + r.Interpreter + ", each frame is correct"}
	switch {
	case r.Python != nil:
		c.State, c.Says, c.Fixes = Failed, r.Python.Error(), []Fix{reportIt}
	case r.NoPython != nil:
		c.State, c.Says = Unknown, "not tried: "+firstLine(r.NoPython.Error())
	}
	return c
}

// checkMemoryUse says how the memory of programs is read. Either way is well.
func checkMemoryUse(u *directmap.Use) Check {
	c := Check{Group: Attach, Name: "reading memory", Says: "copied, as asked for"}
	switch {
	case u.InPlace:
		c.Says = "in place, where the kernel has it by " + u.Source
	case u.Why != nil:
		c.Says = "copied, stacks take longer: " + strings.TrimSuffix(firstLine(u.Why.Error()), memlockHint)
	}
	return c
}

// attachFixes are for what has no check of its own.
func attachFixes(err error) []Fix {
	var v *ebpf.VerifierError
	if errors.As(err, &v) {
		return []Fix{reportIt}
	}
	return nil
}
