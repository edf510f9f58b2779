// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package doctor

import (
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/gputrace/gputrace/tracer/feature"
	"golang.org/x/sys/unix"
)

// Capability is a right of the kernel's (capabilities(7)).
type Capability struct {
	Bit      uint // linux/capability.h
	Name     string
	Why      string
	Optional bool
	admin    bool // CAP_SYS_ADMIN includes it
}

// Capabilities are those that tracing takes.
var Capabilities = []Capability{
	{unix.CAP_BPF, "CAP_BPF", "to load programs", false, true},
	{unix.CAP_PERFMON, "CAP_PERFMON", "to attach probes and read user memory from them", false, true},
	{unix.CAP_SYS_PTRACE, "CAP_SYS_PTRACE", "to read another user's process", false, false},
	{unix.CAP_DAC_READ_SEARCH, "CAP_DAC_READ_SEARCH",
		"to read another user's private files, and who holds the blocks of that user's process", true, false},
	{unix.CAP_CHECKPOINT_RESTORE, "CAP_CHECKPOINT_RESTORE", "to read libraries that were deleted or replaced", true, true},
}

// Missing are the capabilities of tracing, without the optional ones, that we do not have.
func Missing() ([]Capability, error) {
	r, err := ownRights()
	if err != nil {
		return nil, err
	}
	var out []Capability
	for _, c := range Capabilities {
		if !c.Optional && !r.has(c) {
			out = append(out, c)
		}
	}
	return out, nil
}

// Give are the lines that give capabilities to gputrace.
func Give() []Fix {
	r, err := ownRights()
	return r.give(err == nil)
}

// rights are what /proc/self/status says of our own, as of proc(5).
type rights struct {
	effective  uint64
	bounding   uint64 // what a program can get at all
	noNewPrivs bool   // neither sudo nor setcap gives more
	seccomp    int    // 0: no filter
}

func ownRights() (rights, error) {
	b, err := os.ReadFile("/proc/thread-self/status")
	if err != nil {
		return rights{}, fmt.Errorf("read our own rights: %w", err)
	}
	return parseRights(string(b))
}

func parseRights(status string) (rights, error) {
	var r rights
	seen := 0
	for line := range strings.Lines(status) {
		name, value, _ := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		var err error
		switch name {
		case "CapEff":
			r.effective, err = strconv.ParseUint(value, 16, 64)
		case "CapBnd":
			r.bounding, err = strconv.ParseUint(value, 16, 64)
		case "NoNewPrivs":
			r.noNewPrivs = value == "1"
		case "Seccomp":
			r.seccomp, err = strconv.Atoi(value)
		default:
			continue
		}
		if err != nil {
			return rights{}, fmt.Errorf("read our own rights: %s is %q", name, value)
		}
		seen++
	}
	if seen < 2 {
		return rights{}, fmt.Errorf("read our own rights: no capabilities in status")
	}
	return r, nil
}

func (r *rights) has(c Capability) bool {
	return r.effective&(1<<c.Bit) != 0 || c.admin && r.effective&(1<<unix.CAP_SYS_ADMIN) != 0
}

// give are the lines that give all that is needed. A capability outside of the bounding set can only be given from outside.
func (r *rights) give(known bool) []Fix {
	var low, high []string
	mine := true
	for _, c := range Capabilities {
		if c.Optional {
			continue
		}
		name := strings.TrimPrefix(c.Name, "CAP_")
		low, high = append(low, strings.ToLower(c.Name)), append(high, name)
		mine = mine && (!known || r.bounding&(1<<c.Bit) != 0)
	}
	var out []Fix
	if mine && !r.noNewPrivs {
		out = append(out, Fix{"host", "sudo setcap " + strings.Join(low, ",") + "+ep " + ownPath() + "    # or: sudo gputrace ..."})
	}
	return append(out,
		Fix{"docker", "docker run --cap-add " + strings.Join(high, " --cap-add ") + " ..."},
		Fix{"kubernetes", `securityContext: {capabilities: {add: ["` + strings.Join(high, `", "`) + `"]}}`})
}

func ownPath() string {
	path, err := os.Executable()
	if err != nil {
		return "gputrace"
	}
	return path
}

// checkRights looks at capabilities, the user namespace that they are of, and filters of system calls.
func checkRights(r *Report, o *Options) {
	own, err := ownRights()
	if err != nil {
		r.add(Check{Group: Rights, Name: "capabilities", State: Unknown, Says: err.Error()})
		return
	}
	for _, c := range Capabilities {
		check := own.check(c)
		if c.Bit == unix.CAP_SYS_PTRACE && check.State == Failed {
			checkOthers(&check, o.PID, PtraceScope())
			r.ownOnly = o.PID == 0
		}
		r.add(check)
	}
	r.add(checkUserNamespace(), own.checkFilter())
}

// checkOthers changes the check of a missing CAP_SYS_PTRACE: without it processes of the same user can be read, unless Yama forbids that.
func checkOthers(c *Check, pid int, scope string) {
	switch {
	case pid != 0:
		c.State, c.Fixes = Unknown, nil
		c.Says = "missing: another user's process cannot be read; whether this one can is found below"
	case scope == "" || scope == "0":
		c.Needed = false
	}
}

func (r *rights) check(c Capability) Check {
	out := Check{Group: Rights, Name: c.Name, Says: c.Why, Needed: !c.Optional}
	switch {
	case r.effective&(1<<c.Bit) != 0:
	case r.has(c):
		out.Says += ": CAP_SYS_ADMIN includes it"
	case c.Optional:
		out.State, out.Says = Unknown, "missing, and only needed "+c.Why
	default:
		out.State, out.Says, out.Fixes = Failed, "missing, needed "+c.Why, r.give(true)
		if r.noNewPrivs {
			out.Says += "; no_new_privs is set: neither sudo nor setcap helps in here"
		}
	}
	return out
}

// initialUserNamespace is the inode of the user namespace in which a machine starts (PROC_USER_INIT_INO, linux/proc_ns.h).
const initialUserNamespace = "user:[4026531837]"

// InnerUserNamespace reports whether we are in a user namespace that is not the machine's own, as in a rootless container: the kernel
// asks for the capabilities of BPF in the machine's own.
func InnerUserNamespace() bool {
	link, err := os.Readlink("/proc/self/ns/user")
	return err == nil && link != initialUserNamespace
}

// checkUserNamespace: the kernel asks for the capabilities in the initial user namespace.
func checkUserNamespace() Check {
	c := Check{Group: Rights, Name: "user namespace", Needed: true, Says: "the machine's own"}
	link, err := os.Readlink("/proc/self/ns/user")
	switch {
	case err != nil:
		c.State, c.Says = Unknown, err.Error()
	case link != initialUserNamespace:
		c.State = Failed
		c.Says = link + " is not the machine's own: capabilities in here, as in a rootless container, do not count for BPF"
		c.Fixes = []Fix{
			{"host", "run gputrace outside of the container, as root: it traces processes in containers too"},
			{"docker", "sudo docker run --userns=host ...    # by the daemon of root, not a rootless one"},
			{"kubernetes", "hostUsers: true"},
		}
	}
	return c
}

// checkFilter asks whether system calls are refused.
func (r *rights) checkFilter() Check {
	c := Check{Group: Rights, Name: "system calls", Says: "no call that is needed is refused"}
	var refused, without []string
	unsure := false
	for _, call := range feature.SystemCalls() {
		if call.Err == nil || call.Unused {
			continue
		}
		refused = append(refused, fmt.Sprintf("%s (%v)", call.Name, call.Err))
		unsure = unsure || call.Name == "bpf" && !r.has(Capabilities[0])
		if c.Needed = c.Needed || call.Without == ""; call.Without != "" {
			without = append(without, call.Without)
		}
	}
	switch {
	case len(refused) == 0:
		return c
	case unsure && len(refused) == 1:
		c.State, c.Says = Unknown, "bpf is refused, as it is without CAP_BPF"
		return c
	}
	c.State, c.Says, c.Fixes = Failed, "refused: "+strings.Join(refused, ", ")+r.whoRefuses(), r.allow()
	if !c.Needed {
		c.Says += "; tracing works, but " + strings.Join(without, ", ")
	}
	return c
}

// whoRefuses says who refuses system calls.
func (r *rights) whoRefuses() string {
	if r.seccomp == 0 {
		return "; there is no seccomp filter: a security module (AppArmor, SELinux) or the kernel's configuration refuses it"
	}
	return ": by a seccomp filter"
}

// allow is how they are allowed.
func (r *rights) allow() []Fix {
	if r.seccomp == 0 {
		return []Fix{{"docker", "docker run --security-opt apparmor=unconfined --security-opt label=disable ..."}}
	}
	return []Fix{
		{"docker", "docker run --security-opt seccomp=unconfined ..."},
		{"kubernetes", "securityContext: {seccompProfile: {type: Unconfined}}"},
		{"host", "systemd: SystemCallFilter=@system-service bpf perf_event_open process_vm_readv pidfd_open openat2"},
	}
}
