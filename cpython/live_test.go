// SPDX-License-Identifier: Apache-2.0

package cpython

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/process"
)

// installed are the releases that the tests run against: pyenv's, and Debian's.
var installed = []string{"3.8.18", "3.9.18", "3.10.13", "3.11.7", "3.12.1", "3.13.0", "3.14", "3.15"}

// ofDebian reports whether a release is one of Debian's, which is named without the last number.
func ofDebian(version string) bool { return strings.Count(version, ".") == 1 }

// ofPyenv are the releases that pyenv built, with symbols.
func ofPyenv() []string {
	return slices.DeleteFunc(slices.Clone(installed), ofDebian)
}

// debianPrefix is where the CPython of Debian is unpacked.
func debianPrefix(t testing.TB, version string) string {
	t.Helper()
	out, err := exec.Command("../testdata/debian-python.sh", version).Output()
	require.NoError(t, err, "testdata/debian-python.sh")
	return strings.TrimSpace(string(out))
}

// pythonOf is the interpreter of a release.
func pythonOf(t testing.TB, version string) string {
	t.Helper()
	if ofDebian(version) {
		return filepath.Join(debianPrefix(t, version), "bin", "python"+version)
	}
	return filepath.Join(pyenvPrefix(t, version), "bin", "python"+version[:strings.LastIndexByte(version, '.')])
}

// includeOf is where the headers of a version are.
func includeOf(t testing.TB, minor int) string {
	t.Helper()
	short := fmt.Sprintf("3.%d", minor)
	for _, version := range installed {
		switch {
		case version == short:
			return filepath.Join(debianPrefix(t, version), "include", "python"+short)
		case strings.HasPrefix(version, short+"."):
			return filepath.Join(pyenvPrefix(t, version), "include", "python"+short)
		}
	}
	require.Fail(t, "no headers of python "+short)
	return ""
}

// versionOf is what an interpreter says of itself.
func versionOf(t testing.TB, python string) string {
	t.Helper()
	out, err := exec.Command(python, "-c", "import platform; print(platform.python_version())").Output()
	require.NoError(t, err)
	return strings.TrimSpace(string(out))
}

// pyenvPrefix is where pyenv installed a release. A missing one fails the test.
func pyenvPrefix(t testing.TB, version string) string {
	t.Helper()
	roots := []string{os.Getenv("PYENV_ROOT")}
	if home, err := os.UserHomeDir(); err == nil {
		roots = append(roots, filepath.Join(home, ".pyenv"))
	}
	for _, root := range roots {
		prefix := filepath.Join(root, "versions", version)
		if _, err := os.Stat(prefix); root != "" && err == nil {
			return prefix
		}
	}
	out, err := exec.Command("pyenv", "prefix", version).Output()
	require.NoError(t, err, "python %s must be installed with pyenv", version)
	return strings.TrimSpace(string(out))
}

// start runs a program until it has printed "ready". It ends when the test does.
func start(t testing.TB, name string, args ...string) *process.Process {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		stdin.Close()
		cmd.Process.Kill()
		cmd.Wait()
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != io.EOF {
		require.NoError(t, err)
	}
	require.Equal(t, "ready\n", line, "%s %s", name, args)
	p, err := process.Open(cmd.Process.Pid)
	require.NoError(t, err)
	return p
}

// oracle is what testdata/oracle.py writes.
type oracle struct {
	Codes   []oracleCode
	Threads []struct {
		Ident, Native uint64
		Frames        []struct {
			Code uint64
			Line int
		}
	}
}

type oracleCode struct {
	Address, Start           uint64
	Unit                     int // bytes that an index counts
	Name, Qualname, Filename string
	First                    int
	Lines                    []int // start, end, line; ...
}

func startOracle(t testing.TB, python string) (*process.Process, *oracle) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "oracle.json")
	p := start(t, python, "testdata/oracle.py", path)
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	var o oracle
	require.NoError(t, json.Unmarshal(b, &o))
	return p, &o
}

func TestLive(t *testing.T) {
	for _, version := range installed {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			python := pythonOf(t, version)
			p, o := startOracle(t, python)
			checkLive(t, p, o, versionOf(t, python))
		})
	}
}

// systemPython is the distribution's interpreter: one static executable, without a symbol table; Debian's is not relocatable.
func systemPython(t *testing.T) string {
	t.Helper()
	path, err := filepath.EvalSymlinks("/usr/bin/python3")
	require.NoError(t, err)
	return path
}

func TestLiveStatic(t *testing.T) {
	python := systemPython(t)
	p, o := startOracle(t, python)
	checkLive(t, p, o, versionOf(t, python))
}

func checkLive(t *testing.T, p *process.Process, o *oracle, version string) {
	r, err := Find(p)
	require.NoError(t, err)
	assert.Equal(t, version, r.Version.String())
	checkCodes(t, p, r, o)
	checkThreads(t, p, r, o)
	checkStacks(t, p, r, o)
}

// checkCodes compares names of every code object and the line of every 2-byte unit of bytecode.
func checkCodes(t *testing.T, p *process.Process, r *Runtime, o *oracle) {
	t.Helper()
	require.Greater(t, len(o.Codes), 5000)
	units := 0
	for i := range o.Codes {
		n, err := compareCode(p, r, &o.Codes[i])
		if !assert.NoError(t, err) {
			return
		}
		units += n
	}
	require.Greater(t, units, 400_000)
	t.Logf("%d code objects, %d instruction units: all equal", len(o.Codes), units)
}

func compareCode(p *process.Process, r *Runtime, want *oracleCode) (units int, err error) {
	c, err := r.Code(p, want.Address)
	if err != nil {
		return 0, err
	}
	got := oracleCode{Name: c.Name, Qualname: c.Qualname, Filename: c.Filename, First: c.FirstLine}
	if got.Name != want.Name || got.Qualname != want.Qualname || got.Filename != want.Filename || got.First != want.First {
		return 0, fmt.Errorf("code %#x: got %+v, want %+v", want.Address, got, *want)
	}
	end := 0
	for i := 0; i+2 < len(want.Lines); i += 3 {
		from, to, line := want.Lines[i], want.Lines[i+1], want.Lines[i+2]
		for at := from; at < to; at += 2 {
			if got := c.Line(want.instr(at)); got != line {
				return 0, fmt.Errorf("%s: line at byte %d of %d is %d, want %d", c.Qualname, at, to, got, line)
			}
			units++
		}
		end = max(end, to)
	}
	if got := c.Line(want.instr(end)); got != 0 && r.layout.lines != lineOldPairs { // whose last line has no end
		return 0, fmt.Errorf("%s: line behind the end is %d, want 0", c.Qualname, got)
	}
	if got := c.Line(want.instr(-2)); got != want.First {
		return 0, fmt.Errorf("%s: line before the start is %d, want %d", c.Qualname, got, want.First)
	}
	return units, nil
}

// instr is the word that a frame would hold for a byte of the bytecode.
func (c *oracleCode) instr(at int) uint64 {
	if c.Start == 0 {
		return uint64(uint32(int32(at / c.Unit)))
	}
	return c.Start + uint64(at)
}

func checkThreads(t *testing.T, p *process.Process, r *Runtime, o *oracle) {
	t.Helper()
	threads, err := r.Threads(p)
	require.NoError(t, err)
	byHandle := map[uint64]Thread{}
	for _, th := range threads {
		byHandle[th.Handle] = th
	}
	for _, want := range o.Threads {
		th, ok := byHandle[want.Ident]
		require.True(t, ok, "thread %#x not listed", want.Ident)
		if r.Version.Minor >= 11 {
			assert.Equal(t, want.Native, th.TID)
		}
		// The slot is that of the very thread: its handle is its thread pointer.
		assert.Equal(t, th.State, stateOf(t, p, r, th.Handle))
	}
	assert.GreaterOrEqual(t, len(threads), len(o.Threads))
	assert.Equal(t, uint16(NoField), r.Descriptor.TLSBlock)
	if r.layout.runtimeKey == NoField {
		assert.Negative(t, r.Descriptor.TLSOffset, "variables lie below the thread pointer")
		return
	}
	key := r.key(p)
	require.GreaterOrEqual(t, key, 0, "autoTSSkey is not where the headers say")
	assert.Equal(t, int64(0x310+16*key+8), r.Descriptor.TLSOffset)
}

// stateOf reads the thread state of a thread as the kernel side does.
func stateOf(t *testing.T, mem process.Memory, r *Runtime, tp uint64) uint64 {
	t.Helper()
	state, err := process.Uint64(mem, tp+uint64(r.Descriptor.TLSOffset))
	require.NoError(t, err)
	if r.Descriptor.TLSBlock == NoField {
		return state
	}
	state, err = process.Uint64(mem, state+uint64(r.Descriptor.TLSBlock))
	require.NoError(t, err)
	return state
}

func checkStacks(t *testing.T, p *process.Process, r *Runtime, o *oracle) {
	t.Helper()
	type frame struct {
		Code uint64
		Line int
	}
	for _, th := range o.Threads {
		state := stateOf(t, p, r, th.Ident)
		frames, err := r.stack(p, state)
		require.NoError(t, err)
		var got, want []frame
		for _, f := range frames {
			c, err := r.Code(p, f.Code)
			require.NoError(t, err)
			if !c.Hidden {
				got = append(got, frame{f.Code, c.Line(f.Instr)})
			}
		}
		for _, f := range th.Frames {
			want = append(want, frame{f.Code, f.Line})
		}
		require.NotEmpty(t, want)
		assert.Equal(t, want, got, "thread %d", th.Native)
		assert.True(t, frames[len(frames)-1].Entry)
		checkActivations(t, p, r, state, frames)
	}
}

// checkActivations counts the eval loop's cframes, which lie on the thread's native stack, one for each activation.
func checkActivations(t *testing.T, p *process.Process, r *Runtime, state uint64, frames []pyFrame) {
	t.Helper()
	d := r.Descriptor
	if d.TStateCFrame == NoField {
		return
	}
	entries := 0
	for _, f := range frames {
		if f.Entry {
			entries++
		}
	}
	chain := cframes(t, p, r, state)
	assert.Len(t, chain, entries)
	assert.IsIncreasing(t, chain, "callers lie above callees")
}

// cframes are the addresses of a thread's cframes, innermost first. The outermost one belongs to the thread state, not to
// an activation; in 3.10 its link is never set.
func cframes(t *testing.T, p *process.Process, r *Runtime, state uint64) []uint64 {
	t.Helper()
	d := r.Descriptor
	var chain []uint64
	cframe, err := process.Uint64(p, state+uint64(d.TStateCFrame))
	for cframe-state >= 1024 {
		require.NoError(t, err)
		require.Less(t, len(chain), 1000)
		chain = append(chain, cframe)
		cframe, err = process.Uint64(p, cframe+uint64(d.CFramePrevious))
	}
	require.NoError(t, err)
	return chain
}

func BenchmarkFind(b *testing.B) {
	for _, version := range installed {
		p := start(b, pythonOf(b, version), "-c", waits)
		b.Run(version, func(b *testing.B) {
			for b.Loop() {
				if _, err := Find(p); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkCode(b *testing.B) {
	p, o := startOracle(b, pythonOf(b, "3.13.0"))
	r, err := Find(p)
	require.NoError(b, err)
	for i := 0; b.Loop(); i++ {
		if _, err := r.Code(p, o.Codes[i%len(o.Codes)].Address); err != nil {
			b.Fatal(err)
		}
	}
}
