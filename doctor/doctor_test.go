// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package doctor

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gputrace/gputrace/process"
	"github.com/gputrace/gputrace/tracer"
	"github.com/gputrace/gputrace/tracer/directmap"
	"github.com/gputrace/gputrace/tracer/feature"
	"github.com/gputrace/gputrace/tracer/hook"
	"github.com/gputrace/gputrace/tracer/selftest"
)

// TestVerdict: the first check that is needed and failed is the reason; others are none.
func TestVerdict(t *testing.T) {
	bad := Check{Name: "CAP_BPF", State: Failed, Needed: true, Says: "missing\nsecond line"}
	for name, c := range map[string]struct {
		report Report
		works  bool
		want   string
	}{
		"all well": {Report{Checks: []Check{{State: OK, Needed: true}}},
			true, "tracing will work on this machine; gputrace doctor -p PID checks a process"},
		"a process":  {Report{PID: 42}, true, "tracing will work: gputrace -p 42"},
		"not needed": {Report{PID: 42, Checks: []Check{{State: Failed}}}, true, "tracing will work: gputrace -p 42"},
		"not known":  {Report{PID: 42, Checks: []Check{{State: Unknown, Needed: true}}}, true, "tracing will work: gputrace -p 42"},
		"failed": {Report{PID: 42, Checks: []Check{{State: Failed}, bad, {Name: "later", State: Failed, Needed: true}}}, false,
			"tracing will not work: CAP_BPF: missing"},
		"without a -p": {Report{Checks: []Check{bad}}, false, "tracing will not work: CAP_BPF: missing"},
	} {
		t.Run(name, func(t *testing.T) {
			c.report.judge()
			require.Equal(t, c.works, c.report.Works)
			require.Equal(t, c.want, c.report.Verdict)
		})
	}
}

func TestParseRights(t *testing.T) {
	r, err := parseRights("Name:\tx\nCapEff:\t000000c000080000\nCapBnd:\t000001ffffffffff\nNoNewPrivs:\t1\nSeccomp:\t2\n")
	require.NoError(t, err)
	require.True(t, r.noNewPrivs)
	require.Equal(t, 2, r.seccomp)
	for _, c := range Capabilities {
		require.Equal(t, !c.Optional, r.has(c), c.Name)
	}
	for _, status := range []string{"", "CapEff:\tzz\nCapBnd:\t0\n", "CapEff:\t1ffffffffffffffff\n",
		"CapEff:\t0\nCapBnd:\t0\nSeccomp:\tmany\n"} {
		_, err := parseRights(status)
		require.Error(t, err, status)
	}
}

// TestOwnRights compares with what the system call says.
func TestOwnRights(t *testing.T) {
	r, err := ownRights()
	require.NoError(t, err)
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	require.NoError(t, unix.Capget(&header, &data[0]))
	require.Equal(t, uint64(data[1].Effective)<<32|uint64(data[0].Effective), r.effective)
}

// TestAdmin: CAP_SYS_ADMIN includes those that were split off it (5.8, 5.9), and no others.
func TestAdmin(t *testing.T) {
	r := rights{effective: 1 << unix.CAP_SYS_ADMIN}
	for _, c := range Capabilities {
		split := slices.Contains([]string{"CAP_BPF", "CAP_PERFMON", "CAP_CHECKPOINT_RESTORE"}, c.Name)
		require.Equal(t, split, r.has(c), c.Name)
	}
}

// TestGive: no line is given that cannot work.
func TestGive(t *testing.T) {
	all := ^uint64(0)
	places := func(r rights) (out []string) {
		for _, f := range r.give(true) {
			out = append(out, f.Where)
		}
		return out
	}
	require.Equal(t, []string{"host", "docker", "kubernetes"}, places(rights{bounding: all}))
	require.Equal(t, []string{"docker", "kubernetes"}, places(rights{bounding: all &^ (1 << unix.CAP_PERFMON)}))
	require.Equal(t, []string{"docker", "kubernetes"}, places(rights{bounding: all, noNewPrivs: true}))
	c := (&rights{bounding: all, noNewPrivs: true}).check(Capabilities[0])
	require.Contains(t, c.Says, "neither sudo nor setcap")
}

// TestPerf: without uprobe_multi links it is CAP_SYS_ADMIN that decides.
func TestPerf(t *testing.T) {
	few := rights{effective: 1<<unix.CAP_BPF | 1<<unix.CAP_PERFMON | 1<<unix.CAP_SYS_PTRACE}
	c := Check{Name: feature.UprobeMulti, State: Unknown}
	few.checkPerf(&c, "6.6")
	require.Equal(t, Failed, c.State)
	require.True(t, c.Needed)
	require.NotEmpty(t, c.Fixes)
	c = Check{Name: feature.UprobeMulti, State: Unknown}
	(&rights{effective: 1 << unix.CAP_SYS_ADMIN}).checkPerf(&c, "6.6")
	require.Equal(t, Unknown, c.State)
	require.False(t, c.Needed)
}

func TestMemoryUse(t *testing.T) {
	for want, u := range map[string]directmap.Use{
		"copied, as asked for":                                  {},
		"in place, where the kernel has it by page_offset_base": {InPlace: true, Source: "page_offset_base"},
		"copied, stacks take longer: Linux 5.19":                {Why: errors.New("Linux 5.19\nand more")},
	} {
		c := checkMemoryUse(&u)
		require.Equal(t, want, c.Says)
		require.Equal(t, OK, c.State)
	}
}

// TestMemoryChoice: what a user may ask for is what the tracer knows.
func TestMemoryChoice(t *testing.T) {
	require.Equal(t, directmap.Auto, (&Options{}).memory())
	require.Equal(t, directmap.InPlace, (&Options{Memory: "in-place"}).memory())
}

func TestLockdown(t *testing.T) {
	for mode, want := range map[string]struct {
		state State
		says  string
	}{
		"":                                  {OK, "none"},
		"[none] integrity confidentiality":  {OK, "none"},
		"none [integrity] confidentiality":  {OK, "integrity"},
		"none integrity [confidentiality]":  {Failed, "confidentiality: BPF may not read memory"},
		"none integrity [confidentiality]x": {Failed, "confidentiality: BPF may not read memory"},
	} {
		c := checkLockdown(mode)
		require.Equal(t, want.state, c.State, mode)
		require.Equal(t, want.says, c.Says, mode)
		require.Equal(t, c.State == Failed, len(c.Fixes) > 0)
	}
}

func TestSettings(t *testing.T) {
	require.Equal(t, OK, checkPtraceScope("").State)
	require.Equal(t, OK, checkPtraceScope("2").State)
	require.Equal(t, Failed, checkPtraceScope("3").State)
	require.NotEmpty(t, checkPtraceScope("3").Fixes)
	require.Contains(t, checkParanoid("4").Says, "CAP_SYS_ADMIN")
	require.NotContains(t, checkParanoid("2").Says, "CAP_SYS_ADMIN")
}

// TestPrograms: what decides is whether they load; for want of rights that is not known.
func TestPrograms(t *testing.T) {
	loading := func(err error) error { return fmt.Errorf("%w: %w", tracer.ErrNotLoaded, err) }
	for name, c := range map[string]struct {
		err   error
		state State
		says  string
	}{
		"loaded":        {nil, OK, "the kernel accepted them"},
		"not attached":  {unix.EPERM, OK, "the kernel accepted them"},
		"no right":      {loading(unix.EPERM), Unknown, "not permitted"},
		"verifier":      {loading(&ebpf.VerifierError{Cause: unix.EACCES}), Failed, "refuses them"},
		"map too large": {loading(unix.E2BIG), Failed, "argument list too long"},
	} {
		got := checkPrograms(c.err)
		require.Equal(t, c.state, got.State, name)
		require.Contains(t, got.Says, c.says, name)
		require.Equal(t, c.state == Failed, len(got.Fixes) > 0, name)
		require.True(t, got.Needed)
	}
}

// TestMissingFeature: one that is not there counts only where the programs do not load.
func TestMissingFeature(t *testing.T) {
	for _, c := range []struct {
		without string
		refused bool
		state   State
		needed  bool
	}{{"", false, Unknown, true}, {"", true, Failed, true}, {"stacks cost more", false, Unknown, false},
		{"stacks cost more", true, Unknown, false}} {
		got := checkFeature(&feature.Feature{Name: "x", Version: "9.9", Without: c.without}, feature.ErrMissing, c.refused)
		require.Equal(t, c.state, got.State, "%+v", c)
		require.Equal(t, c.needed, got.Needed, "%+v", c)
	}
}

// TestOwnStacks: a kernel on which the trace would be without stacks is none to trace on; a machine without Python is.
func TestOwnStacks(t *testing.T) {
	wrong := errors.New("a trace would be without stacks: no scratch")
	good := selftest.Result{Calls: 24, Hits: 24, Stacks: 12, Interpreter: "3.11.7", Driver: true, Multi: true}
	for name, c := range map[string]struct {
		change func(*selftest.Result)
		err    error
		fails  string // the check, and what it says
		notes  string
	}{
		"well":         {func(*selftest.Result) {}, nil, "", ""},
		"not attached": {nil, unix.EPERM, "probe of our own: operation not permitted", ""},
		"not counted":  {func(r *selftest.Result) { r.Hits = 23 }, nil, "probe of our own: 23 of 24 calls counted", ""},
		"no stacks": {func(r *selftest.Result) { r.Native = wrong }, nil, "stacks of our own: a trace would be without stacks: no scratch",
			""},
		"no Python ones": {func(r *selftest.Result) { r.Python = wrong }, nil, "stacks through Python: a trace would be without stacks", ""},
		"no Python here": {func(r *selftest.Result) { r.NoPython = errors.New("no python3 here") }, nil, "", "not tried: no python3 here"},
		"no returns":     {func(r *selftest.Result) { r.Driver = false }, nil, "", "return probes would end the process"},
	} {
		t.Run(name, func(t *testing.T) {
			test := good
			if c.change != nil {
				c.change(&test)
			}
			r := &Report{}
			r.add(checkTest(&test, c.err)...)
			r.judge()
			require.Equal(t, c.fails == "", r.Works, r.Verdict)
			require.Contains(t, r.Verdict, c.fails)
			require.Contains(t, fmt.Sprint(r.Checks), c.notes)
		})
	}
}

// TestReturns: a process without a filter needs no test; of one that cannot be asked it is not known.
func TestReturns(t *testing.T) {
	require.Contains(t, checkReturns(false, nil).Says, "no seccomp filter")
	for _, c := range []Check{checkReturns(true, nil), checkReturns(false, process.ErrPermission)} {
		require.Equal(t, OK, c.State) // the kernel that the tests run on exempts them
		require.Contains(t, c.Says, "survived")
		require.False(t, c.Needed)
	}
}

// TestFilesWithoutFunctions tells apart why none was found.
func TestFilesWithoutFunctions(t *testing.T) {
	for want, f := range map[string]tracer.File{
		"stripped of all symbols":                         {},
		"names 7 functions, but none of the 2":            {Symbols: 7, Absent: []string{"a", "b"}},
		"libc10.so: 1 of 2 functions, build-id ab, delet": {Functions: []string{"a"}, Absent: []string{"b"}, BuildID: "ab", Deleted: true},
		"not permitted":                                   {Err: process.ErrPermission},
	} {
		f.Library, f.Path = hook.Torch, "/x/libc10.so"
		c := checkFile(&f)
		require.Contains(t, c.Says, want)
		require.Equal(t, len(f.Functions) > 0, c.State == OK)
	}
}

// FuzzRights: what is accepted says the same when it is written as the kernel does.
func FuzzRights(f *testing.F) {
	own, err := os.ReadFile("/proc/self/status")
	require.NoError(f, err)
	f.Add(string(own))
	f.Add("CapEff:\t1\nCapEff:\tx\n")
	f.Fuzz(func(t *testing.T, status string) {
		r, err := parseRights(status)
		if err != nil {
			return
		}
		again, err := parseRights(fmt.Sprintf("CapEff:\t%016x\nCapBnd:\t%016x\nNoNewPrivs:\t%d\nSeccomp:\t%d\n", r.effective, r.bounding,
			btoi(r.noNewPrivs), r.seccomp))
		require.NoError(t, err)
		require.Equal(t, r, again)
	})
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}
