// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"golang.org/x/sys/unix"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/tracer/directmap"
)

// reportsOfDescent and addressStep are REPORTS and ADDRESS_STEP of testdata/programs/pagemoves.c.
const (
	reportsOfDescent = 32
	addressStep      = 16
)

// moved is what pagemoves.c says of one kind of stack.
type moved struct {
	descents, moves    int
	pages, out, splits int
}

// happened tells for each kind of stack whether its pages were moved as its name says.
var happened = map[string]func(moved) bool{
	"swapped":       func(m moved) bool { return m.out > 0 },
	"file":          func(m moved) bool { return m.out > 0 },
	"shared_memory": func(m moved) bool { return m.out > 0 },
	"nodes":         func(m moved) bool { return m.pages > 0 },
	"compacted":     func(m moved) bool { return m.pages > 0 },
	"collapsed":     func(m moved) bool { return m.pages > 0 && m.splits > 0 },
	"forked":        func(m moved) bool { return m.pages > 0 },
	"merged":        func(m moved) bool { return m.pages > 0 },
	"secret":        func(m moved) bool { return m.descents > 0 },
}

// TestMovedPages: while the kernel moves the pages of a stack in every way that it has, a stack is that of the program's own
// unwinding, or ends early at a page that was out and says so. No frame is ever wrong.
func TestMovedPages(t *testing.T) {
	descents := 1000 // of each kind
	if n, err := strconv.Atoi(os.Getenv("GPUTRACE_DESCENTS")); err == nil {
		descents = n
	}
	haveSwap(t)
	mergePages(t)
	for name, copied := range map[string]bool{"in place": false, "copied": true} {
		t.Run(name, func(t *testing.T) {
			o := options()
			o.Memory = directmap.InPlace
			if copied {
				o.Memory = directmap.Copy
			}
			p := startNatives(t, nativesProgram("pagemoves"), "--descents", itoa(descents))
			tr := attach(t, p.pid, o, nil)
			p.release(t)
			p.done(t)
			tr.finishWhole(t)
			requireMoves(t, tr, readMoves(t, p), readReports(t, filepath.Join(p.dir, "log")))
		})
	}
}

// readMoves reads what the program says it did to each kind of stack.
func readMoves(t *testing.T, p *target) map[string]moved {
	t.Helper()
	out, said := map[string]moved{}, 0
	for _, line := range p.output() {
		word, rest, _ := strings.Cut(line, " ")
		kind, rest, _ := strings.Cut(rest, " ")
		switch word {
		case "CANNOT":
			t.Logf("%s: not on this machine: %s", kind, rest)
		case "MOVED":
			var n []int
			for f := range strings.FieldsSeq(rest) {
				n = append(n, int(number(t, f)))
			}
			require.Len(t, n, 5, line)
			out[kind] = moved{n[0], n[1], n[2], n[3], n[4]}
		default:
			continue
		}
		require.Contains(t, happened, kind)
		said++
	}
	require.Equal(t, len(happened), said)
	return out
}

// requireMoves compares every event with the unwinding of its descent: there are no others.
func requireMoves(t *testing.T, tr *trace, kinds map[string]moved, descents []nativeReport) {
	t.Helper()
	events := map[uint64]*event.Event{}
	for i := range tr.events {
		events[tr.events[i].Addr] = &tr.events[i]
	}
	require.Len(t, events, len(descents)*reportsOfDescent)
	complete, ends, wrong := map[string]int{}, map[string]int{}, map[string]int{}
	for i := range descents {
		d := &descents[i]
		for n := range uint64(reportsOfDescent) {
			e := events[d.addr+n*addressStep]
			require.NotNil(t, e, "%s: report %d", d.shape, n)
			st := tr.target.Stack(e.Stack)
			require.NotNil(t, st, d.shape)
			switch fault := d.movedFault(st); {
			case fault != "":
				if wrong[d.shape]++; wrong[d.shape] == 1 {
					t.Errorf("%s: %s: %s\n%x\n%x", d.shape, fault, st.Status, nativePCs(st), d.pcs)
				}
			case st.Status.Complete():
				complete[d.shape]++
			default:
				ends[d.shape]++
			}
		}
	}
	reached := 0
	for kind, m := range kinds {
		all := m.descents * reportsOfDescent
		t.Logf("%s: %d moves, %d pages moved, %d out, %d splits; %d stacks: %d complete, %d end early, %d wrong",
			kind, m.moves, m.pages, m.out, m.splits, all, complete[kind], ends[kind], wrong[kind])
		require.Zero(t, wrong[kind], kind)
		require.Equal(t, all, complete[kind]+ends[kind], kind)
		require.Greater(t, complete[kind], all/2, kind)
		if happened[kind](m) {
			reached++
		} else {
			t.Logf("%s: not on this machine: the kernel moved nothing", kind)
		}
	}
	require.True(t, happened["forked"](kinds["forked"]), "no machine has a reason not to")
	require.GreaterOrEqual(t, reached, 4, "kinds of moves")
}

// movedFault says how a stack differs from the program's own unwinding; one that ends at an unreadable page does not, up to there.
func (r *nativeReport) movedFault(st *event.Stack) string {
	pcs, want := nativePCs(st), r.pcs
	if st.Status == event.StatusUnreadable {
		if len(pcs) == 0 || len(pcs)-1 >= len(want) {
			return "says that it ends early"
		}
		want = want[:len(pcs)-1]
	} else if !st.Status.Complete() {
		return "ends early for another reason"
	}
	if len(want) == 0 { // the probed function only
		return ""
	}
	if max(pcs[1], want[0])-min(pcs[1], want[0]) > 200 || !slices.Equal(pcs[2:], want[1:]) {
		return "differs"
	}
	return ""
}

// haveSwap adds a file to swap to for the time of a test, where there is none and the file system allows it.
func haveSwap(t *testing.T) {
	t.Helper()
	swaps, err := os.ReadFile("/proc/swaps")
	require.NoError(t, err)
	if strings.Count(string(swaps), "\n") > 1 {
		return
	}
	path := filepath.Join(t.TempDir(), "swap")
	require.NoError(t, os.WriteFile(path, emptySwap(64<<20), 0o600))
	name, err := unix.BytePtrFromString(path)
	require.NoError(t, err)
	if err := swap(unix.SYS_SWAPON, name); err != nil {
		t.Logf("no swap can be had in %s: %v", path, err)
		return
	}
	t.Cleanup(func() { require.NoError(t, swap(unix.SYS_SWAPOFF, name)) })
}

// emptySwap is a file of that many bytes to swap to: union swap_header of include/linux/swap.h.
func emptySwap(size int) []byte {
	const page, version, lastPage, magic = 4096, 1024, 1028, 4086
	b := make([]byte, size)
	binary.LittleEndian.PutUint32(b[version:], 1)
	binary.LittleEndian.PutUint32(b[lastPage:], uint32(size/page-1))
	copy(b[magic:], "SWAPSPACE2")
	return b
}

func swap(call uintptr, path *byte) error {
	if _, _, errno := unix.Syscall(call, uintptr(unsafe.Pointer(path)), 0, 0); errno != 0 {
		return errno
	}
	return nil
}

// mergePages has the kernel look for pages that are alike, quickly, for the time of a test. Only memory that asks for it is
// looked at.
func mergePages(t *testing.T) {
	t.Helper()
	const dir = "/sys/kernel/mm/ksm"
	for _, setting := range []struct {
		name  string
		value int
	}{{"smart_scan", 0}, {"sleep_millisecs", 1}, {"pages_to_scan", 1000}, {"run", 1}} {
		path := filepath.Join(dir, setting.name)
		before, err := os.ReadFile(path)
		if os.IsNotExist(err) && setting.name == "smart_scan" { // before Linux 6.7
			continue
		}
		if err != nil {
			t.Logf("no pages are merged: %v", err)
			return
		}
		require.NoError(t, os.WriteFile(path, []byte(strconv.Itoa(setting.value)), 0))
		t.Cleanup(func() { require.NoError(t, os.WriteFile(path, before, 0)) })
	}
}
