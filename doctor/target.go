// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gputrace/gputrace/cpython"
	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/inspect"
	"github.com/gputrace/gputrace/inspect/bfc"
	"github.com/gputrace/gputrace/internal/nvml"
	"github.com/gputrace/gputrace/internal/words"
	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/tracer"
	"github.com/gputrace/gputrace/tracer/hook"
	"github.com/gputrace/gputrace/tracer/returnprobe"
)

// checkTarget looks at a process; able: nothing on this machine keeps it from being traced.
func checkTarget(r *Report, o *Options, able bool) {
	p, err := process.Open(o.PID)
	if err != nil {
		r.add(absent(o.PID, err))
		return
	}
	r.Program, r.paused = p.Name(), p.Paused().String()
	r.add(checkProcess(p), checkNamespaces(p), checkReadable(p))
	if able {
		r.add(checkReturns(p.Filtered()))
	}
	if r.failed(Target) != nil {
		return
	}
	survey, err := tracer.NewSurvey(p)
	if err != nil {
		r.add(Check{Group: Library, Name: "mappings", State: Failed, Needed: true, Says: err.Error()})
		return
	}
	r.add(checkLibraries(p, survey)...)
	r.add(checkDriver(), checkTorch(survey), checkBackend(p), checkPython(p))
	if able && r.failed("") == nil {
		r.add(testTarget(p, o))
	}
}

// absent says where a number may come from that is no process.
func absent(pid int, err error) Check {
	c := Check{Group: Target, Name: "process", State: Failed, Needed: true, Says: err.Error()}
	switch {
	case errors.As(err, new(*process.EndedError)):
		return c
	case errors.As(err, new(*process.ThreadError)):
		return c
	case errors.Is(err, fs.ErrNotExist):
		c.Says = fmt.Sprintf("there is no process %d: it has ended, or has another number here", pid)
	}
	for _, p := range process.Inside(pid) {
		c.Says = fmt.Sprintf("no process %d in our PID namespace; it is the number of %d (%s) in its container", pid, p.PID, p.Name())
		c.Fixes = append(c.Fixes, Fix{"host", fmt.Sprintf("gputrace doctor -p %d", p.PID)})
	}
	return Check{c.Group, c.Name, c.State, c.Says, c.Needed, append(c.Fixes,
		Fix{"docker", "docker run --pid=host ...    # when gputrace runs in a container: otherwise it sees only its own"},
		Fix{"kubernetes", "hostPID: true"}), nil}
}

func checkProcess(p *process.Process) Check {
	says := p.Name()
	if uid, err := p.UID(); err == nil {
		says += ", user " + userName(uid)
	}
	if group := p.Cgroup(); group != "" {
		says += ", control group " + group
	}
	if paused := p.Paused().String(); paused != "" {
		says += "; it is " + paused + ": nothing is traced until it runs"
	}
	return Check{Group: Target, Name: "process", Says: says, Needed: true}
}

// checkReturns says whether calls of the driver can be traced: their results are seen when they return.
func checkReturns(filtered bool, err error) Check {
	c := Check{Group: Target, Name: "return probes"}
	safe, says := returnprobe.Check(filtered || err != nil)
	c.Says = says
	if !safe {
		c.State = Failed
		c.Says += ": the driver's and the runtime's calls will not be traced, PyTorch's blocks will"
		c.Fixes = []Fix{
			{"host", "boot Linux 6.14 or newer"},
			{"docker", "docker run --security-opt seccomp=unconfined ...    # the job's container"},
			{"kubernetes", "securityContext: {seccompProfile: {type: Unconfined}}    # of the job's container"},
		}
	}
	return c
}

func userName(uid int) string {
	u, err := user.LookupId(strconv.Itoa(uid))
	if err != nil {
		return strconv.Itoa(uid)
	}
	return u.Username
}

// checkNamespaces names those that the process does not share with us.
func checkNamespaces(p *process.Process) Check {
	c := Check{Group: Target, Name: "namespaces", Says: "all are ours"}
	own, err := process.Open(os.Getpid())
	if err != nil {
		c.State, c.Says = Unknown, err.Error()
		return c
	}
	var other []string
	for _, kind := range []string{"pid", "mnt", "user", "net"} {
		theirs, err := p.Namespace(kind)
		if err != nil {
			c.State, c.Says = Unknown, err.Error()
			return c
		}
		if ours, err := own.Namespace(kind); err == nil && ours != theirs {
			other = append(other, theirs)
		}
	}
	if len(other) > 0 {
		c.Says = "of its own: " + strings.Join(other, ", ")
		if pids := p.PIDs(); len(pids) > 1 {
			c.Says += fmt.Sprintf("; it is process %d in there", pids[len(pids)-1])
		}
	}
	return c
}

// checkReadable reads what tracing reads: mappings, memory, and the program's own file, without which frames have no names and lines.
func checkReadable(p *process.Process) Check {
	c := Check{Group: Target, Name: "reading it", Needed: true, Says: "mappings, files and memory"}
	maps, err := p.Maps()
	i := slices.IndexFunc(maps, func(m process.Mapping) bool { return m.Exec && m.Inode != 0 })
	switch {
	case err != nil:
	case p.OfKernel():
		err = &process.KernelError{PID: p.PID, Name: p.Name()}
	case len(maps) == 0:
		err = errors.New("it has no memory: it is ending")
	case i < 0:
		err = errors.New("it runs no code of a file")
	default:
		_, err = p.ReadAt(make([]byte, 8), maps[i].Start)
	}
	if err = p.Blame(err); err != nil {
		c.State, c.Says = Failed, err.Error()
		if errors.Is(err, process.ErrPermission) {
			c.Fixes = Give()
		}
		return c
	}
	f, err := p.OpenFile(&maps[i])
	if err != nil {
		c.State, c.Says = Unknown, "mappings and memory; "+err.Error()
		return c
	}
	f.Close()
	return c
}

// checkLibraries has a check for each file that would be hooked, and for each kind of library of which there is none.
func checkLibraries(p *process.Process, s *tracer.Survey) []Check {
	var out []Check
	any := false
	for i := range s.Files {
		c := checkFile(&s.Files[i])
		any = any || c.State == OK
		out = append(out, c)
	}
	for _, l := range []*hook.Library{hook.Torch, hook.Driver, hook.Runtime} {
		if !slices.ContainsFunc(s.Files, func(f tracer.File) bool { return f.Library == l }) {
			out = append(out, unmapped(l, s))
		}
	}
	if !any {
		out = append(out, nothingToHook(p, s))
	}
	return out
}

func checkFile(f *tracer.File) Check {
	c := Check{Group: Library, Name: f.Library.Name, File: &File{f.Path, f.BuildID, f.Functions, f.Absent}}
	total := len(f.Functions) + len(f.Absent)
	switch {
	case f.Err != nil:
		c.State, c.Says = Failed, f.Err.Error()
		if errors.Is(f.Err, process.ErrPermission) || f.Deleted {
			c.Fixes = []Fix{{"host", "sudo setcap cap_bpf,cap_perfmon,cap_sys_ptrace,cap_checkpoint_restore,cap_dac_read_search+ep " + ownPath()}}
		}
		return c
	case len(f.Functions) == 0 && f.Symbols == 0:
		c.State, c.Says = Failed, f.Path+" names no function: it is stripped of all symbols"
		c.Fixes = []Fix{{"host", "install the library as its maker ships it: gputrace finds functions by their exported names"}}
		return c
	case len(f.Functions) == 0:
		c.State, c.Says = Failed, fmt.Sprintf("%s names %d functions, but none of the %d that gputrace needs: it is another build", f.Path,
			f.Symbols, total)
		return c
	}
	c.Says = fmt.Sprintf("%s: %d of %d functions", f.Path, len(f.Functions), total)
	if f.BuildID != "" {
		c.Says += ", build-id " + f.BuildID
	}
	if f.Deleted {
		c.Says += ", deleted on disk"
	}
	return c
}

// unmapped says what it means that there is no file of a library.
func unmapped(l *hook.Library, s *tracer.Survey) Check {
	c := Check{Group: Library, Name: l.Name, State: Unknown, Says: "no " + strings.Join(l.Globs, " or ") + " is mapped: "}
	switch {
	case l == hook.Runtime && s.Static != "":
		c.Says += "the runtime is linked statically into " + s.Static + "; the driver's functions see the same memory"
	case l == hook.Runtime:
		c.Says += "it is linked statically, not loaded yet, or not used; the driver's functions see the same memory"
	case l == hook.Torch:
		c.Says += "the program does not use PyTorch, or has not imported it yet"
	default:
		c.Says += "the program does not use CUDA, or has not started to"
	}
	return c
}

// nothingToHook is what keeps a process from being traced that has no function of the table.
func nothingToHook(p *process.Process, s *tracer.Survey) Check {
	c := Check{Group: Library, Name: "functions to trace", State: Failed, Needed: true}
	if len(s.Files) > 0 {
		c.Says = "the libraries are there, but none of their functions could be found"
		if i := slices.IndexFunc(s.Files, func(f tracer.File) bool { return f.Err != nil }); i >= 0 {
			c.Says = firstLine(s.Files[i].Err.Error())
		}
		return c
	}
	c.Says = fmt.Sprintf("%s uses no CUDA: no libcuda.so, libcudart or libc10 among its %d files with code", p.Name(), s.Programs)
	for _, child := range p.Children() {
		if q, err := process.Open(child); err == nil && tracer.Traceable(q) {
			c.Fixes = append(c.Fixes, Fix{"host", fmt.Sprintf("gputrace doctor -p %d    # its child %s uses CUDA", child, q.Name())})
		}
	}
	c.Fixes = append(c.Fixes, Fix{"host", fmt.Sprintf("gputrace -p %d --wait    # if it will load a library later", p.PID)})
	return c
}

// checkDriver asks the driver for its version. Tracing does without.
func checkDriver() Check {
	c := Check{Group: Runtime, Name: "NVML", State: Unknown}
	l, err := nvml.Open(nil)
	if err != nil {
		c.Says = err.Error() + "; figures of nvidia-smi will be missing"
		return c
	}
	defer l.Close()
	reading, err := l.Read()
	if err != nil {
		c.Says = err.Error()
		return c
	}
	c.State, c.Says = OK, fmt.Sprintf("%s, %d devices", cmp.Or(reading.Driver, "version unknown"), len(reading.Devices))
	return c
}

func checkTorch(s *tracer.Survey) Check {
	c := Check{Group: Runtime, Name: "PyTorch", Says: s.PyTorch}
	switch {
	case s.PyTorch == "":
		c.State, c.Says = Unknown, "no version was found"
	case s.CUDA != "":
		c.Says += ", built for CUDA " + s.CUDA
	}
	return c
}

// poolNames lists the allocators of TensorFlow and JAX; empty: there are none.
func poolNames(p *process.Process) string {
	ctx, stop := context.WithTimeout(context.Background(), poolsTimeout)
	defer stop()
	found, err := bfc.Find(ctx, p, func() uint64 { return uint64(time.Now().UnixNano()) })
	if err != nil {
		return ""
	}
	var names []string
	for _, f := range found.Pools {
		names = append(names, words.Line(f.Name))
	}
	return strings.Join(names, ", ")
}

// poolsTimeout limits the search for allocators.
const poolsTimeout = 5 * time.Second

func checkBackend(p *process.Process) Check {
	c := Check{Group: Runtime, Name: "allocator", Says: "PyTorch's native one: its state can be read and compared"}
	if _, err := inspect.Find(p); err != nil {
		if names := poolNames(p); errors.Is(err, inspect.ErrNoAllocator) && names != "" {
			c.Says = "BFC, of TensorFlow or JAX: " + names + ": its state can be read and compared"
			return c
		}
		c.State, c.Says = Unknown, err.Error()
		if errors.Is(err, inspect.ErrOtherBackend) {
			c.Says += ": it is traced at the driver, without blocks of PyTorch"
		}
	}
	return c
}

func checkPython(p *process.Process) Check {
	c := Check{Group: Runtime, Name: "Python"}
	r, err := cpython.Find(p)
	if err != nil {
		c.State, c.Says = Unknown, err.Error()+": stacks will have native frames only"
		if errors.Is(err, cpython.ErrNotReady) {
			c.Says = "the interpreter is just starting"
		}
		return c
	}
	c.Says = r.Version.String() + ", its frames can be walked"
	if beside := r.Beside(p); beside != "" {
		c.Says += "; lines of " + beside + " in the same process are not known"
	}
	return c
}

// testTarget attaches as a recording does, and counts calls for a moment.
func testTarget(p *process.Process, o *Options) Check {
	c := Check{Group: Attach, Name: "probes on the process", Needed: true}
	t := tracer.Open(&tracer.Options{CacheDir: o.CacheDir, Memory: o.memory(), RingBytes: o.ring})
	defer t.Close()
	target, err := t.Add(p)
	if err != nil {
		err = p.Blame(err)
		c.State, c.Says, c.Fixes = Failed, firstLine(err.Error()), attachFixes(err)
		return c
	}
	events, err := count(t, o.duration())
	hits, herr := t.Hits()
	if err = errors.Join(err, herr); err != nil {
		c.State, c.Says = Failed, firstLine(err.Error())
		return c
	}
	var runs, lost uint64
	for _, h := range hits {
		runs += h.Hits
		lost += h.Lost()
	}
	c.Says = fmt.Sprintf("%d functions hooked, %d calls and %d events in %s, %d lost", len(target.Found().Probes), runs, events,
		o.duration(), lost)
	if runs == 0 {
		c.Says += ": the job is not allocating now"
	}
	for _, w := range t.Warnings() {
		c.Says += "; " + firstLine(w.Error())
	}
	return c
}

func count(t *tracer.Tracer, d time.Duration) (events int, err error) {
	timer := time.AfterFunc(d, t.Stop)
	defer timer.Stop()
	buf := make([]event.Event, 0, 4096)
	for {
		buf, err = t.Read(buf[:0])
		events += len(buf)
		if errors.Is(err, io.EOF) {
			return events, nil
		}
		if err != nil {
			return events, err
		}
	}
}
