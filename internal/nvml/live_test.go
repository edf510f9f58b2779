// SPDX-License-Identifier: Apache-2.0

//go:build linux && cgo

package nvml

import (
	"bufio"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/process"
)

const testdata = "../../testdata"

// printed is a value of testdata/setup.sh.
func printed(t *testing.T, name string) string {
	t.Helper()
	out, err := exec.Command(testdata+"/setup.sh", "--print", name).Output()
	require.NoError(t, err)
	return strings.TrimSpace(string(out))
}

// standin is a program that holds memory on the stand-in's devices, and the stand-in's own account of it.
type standin struct {
	process *process.Process
	ledger  string // file
}

// startStandin runs a program until it holds what it has obtained. The settings hold for it and for NVML in this process.
func startStandin(t *testing.T, settings ...string) *standin {
	t.Helper()
	s := &standin{ledger: filepath.Join(t.TempDir(), "ledger")}
	t.Setenv("STANDIN_SHM", s.ledger)
	for _, setting := range settings {
		name, value, _ := strings.Cut(setting, "=")
		t.Setenv(name, value)
	}
	cmd := exec.Command(testdata+"/run", "--threads", "2", "--rounds", "30", "--hold", s.ledger+".hold")
	cmd.Env = append(os.Environ(), "RUN_PROGRAM="+printed(t, "programs")+"/cudacalls")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	for lines := bufio.NewScanner(out); ; {
		require.True(t, lines.Scan(), "it ended before it was done")
		if lines.Text() == "DONE" {
			break
		}
	}
	s.process, err = process.Open(cmd.Process.Pid)
	require.NoError(t, err)
	return s
}

// used reads the account (in testdata/standin/standin.h): bytes by device.
func (s *standin) used(t *testing.T) []uint64 {
	t.Helper()
	const devices, slots = 8, 64
	b, err := os.ReadFile(s.ledger)
	require.NoError(t, err)
	require.Len(t, b, slots*(8+8*devices))
	for ; len(b) > 0; b = b[8+8*devices:] {
		if binary.LittleEndian.Uint32(b) != uint32(s.process.PID) {
			continue
		}
		out := make([]uint64, devices)
		for i := range out {
			out[i] = binary.LittleEndian.Uint64(b[8+8*i:])
		}
		return out
	}
	require.FailNow(t, "the process is not in the account")
	return nil
}

// openStandin opens the stand-in's NVML.
func openStandin(t *testing.T) (*Library, error) {
	t.Helper()
	l, err := Open(&Options{Library: printed(t, "standin") + "/libnvidia-ml.so.1"})
	if err == nil {
		t.Cleanup(func() { require.NoError(t, l.Close()) })
	}
	return l, err
}

func readStandin(t *testing.T) *Reading {
	t.Helper()
	l, err := openStandin(t)
	require.NoError(t, err)
	r, err := l.Read()
	require.NoError(t, err)
	return r
}

// TestLive compares with the stand-in's account, to the byte.
func TestLive(t *testing.T) {
	s := startStandin(t, "STANDIN_GPUS=2", "STANDIN_GPU_MEM=10GiB")
	r := readStandin(t)
	require.Contains(t, r.Driver, "standin")
	require.Len(t, r.Devices, 2)
	want := s.used(t)
	for i, d := range r.Devices {
		require.NoError(t, d.Err)
		require.Equal(t, i, d.Index)
		require.Equal(t, -1, d.MIG)
		require.Equal(t, "Stand-in GPU", d.Name)
		require.True(t, strings.HasPrefix(d.UUID, "GPU-"), d.UUID)
		require.Equal(t, uint64(10<<30), d.Total)
		require.Equal(t, want[i], d.Used)
	}
	uses, err := r.Of(NewTarget(s.process))
	require.NoError(t, err)
	require.Len(t, uses, 2)
	for i, u := range uses {
		require.Equal(t, i, u.Ordinal)
		if want[i] == 0 {
			require.ErrorIs(t, u.Err, ErrNotListed)
			require.Equal(t, Unknown, u.Used)
			continue
		}
		require.NoError(t, u.Err)
		require.Equal(t, want[i], u.Used)
	}
	require.Positive(t, want[0])
}

// TestLiveMIG: nothing runs on a GPU as a whole that is divided.
func TestLiveMIG(t *testing.T) {
	s := startStandin(t, "STANDIN_GPUS=2", "STANDIN_GPU_MEM=10GiB", "STANDIN_NVML_MIG=2")
	r := readStandin(t)
	require.Len(t, r.Devices, 4)
	for i, d := range r.Devices {
		require.Equal(t, []int{i / 2, i % 2}, []int{d.Index, d.MIG})
		require.Equal(t, "Stand-in GPU", d.Product)
		require.Contains(t, d.Name, "MIG")
		require.True(t, strings.HasPrefix(d.UUID, "MIG-"), d.UUID)
		require.True(t, strings.HasPrefix(d.GPU, "GPU-"), d.GPU)
		require.Equal(t, []int{d.MIG + 1, 0}, []int{d.GPUInstance, d.ComputeInstance}, "the stand-in counts from 1")
		require.Equal(t, uint64(5<<30), d.Total)
		require.Equal(t, i/2, d.Minor)
	}
	target := NewTarget(s.process)
	uses, err := r.Of(target)
	require.NoError(t, err)
	require.Len(t, uses, 1, "without a choice CUDA takes the first MIG device alone")
	require.Equal(t, s.used(t)[0], uses[0].Used)
	require.Equal(t, 0, uses[0].Ordinal)

	target.Visible = &r.Devices[1].UUID // not where it runs
	uses, err = r.Of(target)
	require.ErrorIs(t, err, ErrOrder)
	require.Len(t, uses, 2)
	require.Equal(t, s.used(t)[0], uses[1].Used)
}

// TestLiveBlind: what NVML does not tell is unknown.
func TestLiveBlind(t *testing.T) {
	s := startStandin(t, "STANDIN_GPUS=1")
	for mode, want := range map[string]error{"blind": ErrNotListed, "unavailable": ErrNoFigure} {
		t.Setenv("STANDIN_NVML", mode)
		uses, err := readStandin(t).Of(NewTarget(s.process))
		require.NoError(t, err)
		require.Len(t, uses, 1)
		require.ErrorIs(t, uses[0].Err, want)
		require.Equal(t, Unknown, uses[0].Used)
	}
	t.Setenv("STANDIN_NVML", "fail")
	_, err := openStandin(t)
	require.ErrorIs(t, err, ErrNoLibrary)
	require.ErrorContains(t, err, "driver is not loaded")
}

// TestLiveHang: a call that does not come back keeps the library for ever, so it has a process of its own.
func TestLiveHang(t *testing.T) {
	if os.Getenv("NVML_HANG") == "" {
		cmd := exec.Command(os.Args[0], "-test.run", "^TestLiveHang$", "-test.v")
		cmd.Env = append(os.Environ(), "NVML_HANG=1", "STANDIN_NVML=hang")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Contains(t, string(out), "PASS: TestLiveHang")
		return
	}
	_, err := Open(&Options{Library: printed(t, "standin") + "/libnvidia-ml.so.1", Limit: 50 * time.Millisecond})
	require.ErrorIs(t, err, ErrTimeout)
	_, err = Open(&Options{Library: printed(t, "standin") + "/libnvidia-ml.so.1", Limit: 50 * time.Millisecond})
	require.ErrorIs(t, err, ErrTimeout, "behind the first call")
}
