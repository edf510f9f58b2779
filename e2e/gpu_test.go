// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64) && gpu

package e2e

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestGPURecorder compares with PyTorch's own recorder what only a real GPU does, event for event and frame for frame. As all tests here
// it takes the GPU with GPUTRACE_REAL=1; those that need the stand-in's ledger fail there:
//
//	GPUTRACE_REAL=1 go test -tags gpu ./e2e -run TestGPU
func TestGPURecorder(t *testing.T) {
	for _, mode := range []string{"default", "reduce-overhead", "capture"} {
		t.Run(mode, func(t *testing.T) {
			compareWithRecorder(t, startTraining(t, "compiled.py", "--mode", mode, "--snapshot", "DIR/snapshot").ready(t), true)
		})
	}
}

// TestGPUCalls: every call of the runtime's and the driver's memory functions is seen under the name of the function that the program
// called, as often as the program counted.
func TestGPUCalls(t *testing.T) {
	for _, threads := range []string{"1", "8"} {
		t.Run(threads, func(t *testing.T) {
			r := runCalls(t, "cudacalls", options(), nil, "--threads", threads, "--rounds", "200")
			require.NotEmpty(t, r.events)
			r.requireCounts(t)
		})
	}
}

// TestGPUDevice: what a device has and what the process uses of it are the figures of CUDA itself and of nvidia-smi.
func TestGPUDevice(t *testing.T) {
	p := startPython(t, `
import os, subprocess, time, torch
from torch import nn
net = nn.Linear(2048, 2048).cuda()
net(torch.randn(256, 2048, device="cuda")).sum().backward()
torch.cuda.synchronize()
apps = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
rows = [line.split(", ") for line in subprocess.check_output(apps, text=True).splitlines()]
print("USES", torch.cuda.mem_get_info()[1], torch.cuda.memory_reserved(), [mib for pid, mib in rows if int(pid) == os.getpid()][0], flush=True)
time.sleep(600)
`)
	var total, reserved, mib uint64
	_, err := fmt.Sscanf(p.await(t, "USES"), "USES %d %d %d", &total, &reserved, &mib)
	require.NoError(t, err)
	text, err := output(env.binary, "dump", "-p", itoa(p.pid), "-f", "json", "--no-holders")
	require.NoError(t, err)
	var d struct {
		Devices []struct {
			Memory struct{ Reserved uint64 }
			Driver struct{ Used, Total uint64 }
		}
	}
	require.NoError(t, json.Unmarshal([]byte(text), &d))
	require.Len(t, d.Devices, 1)
	require.Equal(t, total, d.Devices[0].Driver.Total)
	require.Equal(t, reserved, d.Devices[0].Memory.Reserved)
	require.Equal(t, mib, d.Devices[0].Driver.Used>>20)
}
