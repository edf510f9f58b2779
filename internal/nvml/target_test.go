// SPDX-License-Identifier: Apache-2.0

//go:build linux

package nvml

import (
	"bufio"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/process"
)

// started runs a command until the test ends, from its first line on.
func started(t *testing.T, environment []string, name string, args ...string) *process.Process {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Env = environment
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		in.Close()
		_ = cmd.Wait()
	})
	_, err = bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	p, err := process.Open(cmd.Process.Pid)
	require.NoError(t, err)
	return p
}

// TestTargetSetsItsDevices: programs set the variables themselves, after their start.
func TestTargetSetsItsDevices(t *testing.T) {
	const hold = `print(flush=True); input()`
	for _, tt := range []struct {
		name, code string
		start      []string
		visible    *string
		order      string
	}{
		{name: "not set", code: hold},
		{name: "from the start", code: hold, start: []string{"CUDA_VISIBLE_DEVICES=1,0", "CUDA_DEVICE_ORDER=PCI_BUS_ID"}, visible: set("1,0"),
			order: "PCI_BUS_ID"},
		{name: "empty", code: hold, start: []string{"CUDA_VISIBLE_DEVICES="}, visible: set("")},
		{name: "set later", code: `import os; os.environ["CUDA_VISIBLE_DEVICES"] = "3"; ` + hold, visible: set("3")},
		{name: "changed", code: `import os; os.environ["CUDA_VISIBLE_DEVICES"] = "3"; ` + hold, start: []string{"CUDA_VISIBLE_DEVICES=1"},
			visible: set("3")},
		{name: "removed", code: `import os; del os.environ["CUDA_VISIBLE_DEVICES"]; ` + hold, start: []string{"CUDA_VISIBLE_DEVICES=1"}},
		{name: "among many", code: `import os; [os.environ.__setitem__("X%d" % i, "y" * i) for i in range(5000)]; ` +
			`os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"; ` + hold, order: "PCI_BUS_ID"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := started(t, tt.start, "python3", "-c", tt.code)
			got := NewTarget(p)
			require.NoError(t, got.Environment)
			require.Equal(t, tt.visible, got.Visible)
			require.Equal(t, tt.order, got.Order)
			require.Equal(t, []int{p.PID}, got.PIDs)
			_, err := currentEnviron(p)
			require.NoError(t, err, "its variable is found")
		})
	}
}

// TestTargetWithoutVariable: a static program has no symbols for the dynamic linker.
func TestTargetWithoutVariable(t *testing.T) {
	p := started(t, []string{"CUDA_VISIBLE_DEVICES=5"}, staticProgram(t))
	_, err := currentEnviron(p)
	require.ErrorContains(t, err, "no variable environ")
	require.Equal(t, set("5"), NewTarget(p).Visible)
}

// staticProgram is built without symbols: it prints a line and waits for its input to end.
func staticProgram(t *testing.T) string {
	t.Helper()
	out := t.TempDir() + "/static"
	cmd := exec.Command("gcc", "-static", "-s", "-o", out, "-x", "c", "-")
	cmd.Stdin = strings.NewReader("#include <stdio.h>\nint main(void) { puts(\"\"); fflush(stdout); return getchar(); }")
	said, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", said)
	return out
}

// image is memory that ends.
type image map[uint64]string

func (m image) ReadAt(b []byte, addr uint64) (int, error) {
	for start, text := range m {
		if addr >= start && addr < start+uint64(len(text)) {
			n := copy(b, text[addr-start:])
			if n < len(b) {
				return n, errEnd
			}
			return n, nil
		}
	}
	return 0, errEnd
}

var errEnd = process.ErrNotExist

func TestReadEnvironHostile(t *testing.T) {
	const (
		variable = "\x00\x10\x00\x00\x00\x00\x00\x00" // 0x1000
		pointer  = "\x00\x00\x00\x02\x00\x00\x00\x00" // 0x2000000
		end      = "\x00\x00\x00\x00\x00\x00\x00\x00"
	)
	for name, tt := range map[string]struct {
		memory image
		want   []string
		fails  string
	}{
		"plain":   {memory: image{8: variable, 0x1000: pointer + end, 0x2000000: "A=1\x00rest"}, want: []string{"A=1"}},
		"cleared": {memory: image{8: end}},
		"long": {memory: image{8: variable, 0x1000: pointer + end, 0x2000000: "A=" + strings.Repeat("x", 2*maxVariable)},
			want: []string{"A=" + strings.Repeat("x", maxVariable-2)}},
		"without end": {memory: image{8: variable, 0x1000: strings.Repeat(pointer, maxVariables+1), 0x2000000: "A=1\x00"},
			fails: "more than"},
		"no list":           {memory: image{8: variable}, fails: "no such"},
		"no string":         {memory: image{8: variable, 0x1000: pointer + end}, fails: "string at 0x2000000"},
		"string not closed": {memory: image{8: variable, 0x1000: pointer + end, 0x2000000: "A=1"}, fails: "string at 0x2000000"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := readEnviron(tt.memory, 8)
			if tt.fails != "" {
				require.ErrorContains(t, err, tt.fails)
				return
			}
			require.NoError(t, err)
			require.Equal(t, tt.want, got)
		})
	}
}
