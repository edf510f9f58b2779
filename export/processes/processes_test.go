// SPDX-License-Identifier: Apache-2.0

package processes

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/machine"
	"github.com/gputrace/gputrace/event"
)

var update = flag.Bool("update", false, "write the golden files anew")

func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name+".golden")
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), got, name)
}

// madeMachine is a machine with all that a row can have.
func madeMachine() *machine.Report {
	python := func(pid int, script string) machine.Process {
		return machine.Process{PID: pid, Name: "python", User: "anna", Driver: true, Command: strings.Fields("/usr/bin/python " + script)}
	}
	train := python(48211, "train.py --layers 12 --batch-size 64 --learning-rate 3e-4 --epochs 90")
	train.Frameworks = []string{"PyTorch 2.15.0+cu132"}
	train.Devices = []machine.Memory{{Device: 0, Name: "NVIDIA H200", Driver: 35<<30 + 1<<27, Allocated: 27<<30 + 5<<28,
		Reserved: 33<<30 + 1<<29}}
	worker := python(48300, "train.py --layers 12 --batch-size 64 --learning-rate 3e-4 --epochs 90")
	worker.Parent, worker.Devices = 48211, []machine.Memory{{Device: 0, Driver: event.Unknown, Allocated: 1, Reserved: 1}}
	serve := python(1007, "serve.py")
	serve.User, serve.Container, serve.Frameworks = "65534", "containerd llm-7f9c4-x2x 3f2a91b0c4d5", []string{"JAX 0.7.2", "TensorRT 10.3.0"}
	serve.Devices = []machine.Memory{{Device: -1, Driver: 2 << 30, Allocated: event.Unknown, Reserved: event.Unknown}}
	young := python(50001, "evaluate.py \x1b[2J")
	young.Unused = true
	foreign := machine.Process{
		PID: 60000, User: "bob", Name: "a.out", Command: []string{"./a.out"}, Driver: true, Why: "not permitted to look into it",
		Devices: []machine.Memory{{Device: 0, Driver: 512 << 20, Allocated: event.Unknown, Reserved: event.Unknown},
			{Device: 1, Driver: 512 << 20, Allocated: event.Unknown, Reserved: event.Unknown}},
	}
	idle := python(50002, "prepare.py")
	idle.Driver = false
	r := machine.New([]machine.Process{train, worker, serve, young, foreign, idle})
	r.GPUs = []machine.GPU{{Index: 0, Name: "NVIDIA H200", Used: 38 << 30, Total: 141 << 30},
		{Index: 1, Name: "NVIDIA H200", Used: 512 << 20, Total: event.Unknown}}
	r.Searched, r.Hidden, r.Python = 312, 41, 2
	return r
}

// TestWrite: what is listed, on screens of all widths. No line is wider, and what is to be copied is never cut.
func TestWrite(t *testing.T) {
	for _, width := range []int{60, 80, 120, 200} {
		var buf bytes.Buffer
		require.NoError(t, Write(&buf, &Input{Report: madeMachine(), Width: width, Sudo: true}))
		for _, line := range strings.Split(buf.String(), "\n") {
			require.LessOrEqual(t, utf8.RuneCountInString(line), width, line)
		}
		for _, pid := range []string{"48211", "1007", "50001", "60000"} {
			require.Contains(t, buf.String(), "sudo gputrace -p "+pid+" ", "what is to be copied is whole")
		}
		golden(t, strconv.Itoa(width), buf.String())
	}
}

// TestWriteNothing: a machine without such processes, and one where no driver says anything.
func TestWriteNothing(t *testing.T) {
	none := machine.New(nil)
	none.Searched, none.Hidden = 84, 1
	none.Missing = []string{"the driver's own figures are not known: NVML (libnvidia-ml.so.1) is not there"}
	var buf bytes.Buffer
	require.NoError(t, Write(&buf, &Input{Report: none, Sudo: true,
		Advice: []string{"Linux 4.18.0 cannot be traced on, because it lacks ring buffer: boot Linux 5.15 or newer"}}))
	golden(t, "nothing", buf.String())

	blind := madeMachine()
	blind.GPUs, blind.Hidden = nil, 0
	for i := range blind.Processes {
		for k := range blind.Processes[i].Devices {
			blind.Processes[i].Devices[k].Driver = event.Unknown
		}
	}
	blind.Missing = none.Missing
	buf.Reset()
	require.NoError(t, Write(&buf, &Input{Report: blind, Width: 80}))
	golden(t, "blind", buf.String())
}
