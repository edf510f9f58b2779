// SPDX-License-Identifier: Apache-2.0

//go:build linux && (amd64 || arm64)

package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// listed is gputrace without arguments: what it prints as a user, and its exit code.
func listed(t *testing.T, user *syscall.Credential, args ...string) (out string, code int) {
	t.Helper()
	var talk bytes.Buffer
	cmd := exec.Command(env.binary, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: user}
	cmd.Stderr = &talk
	b, err := cmd.Output()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		require.NoError(t, err)
	}
	require.Empty(t, talk.String())
	return string(b), cmd.ProcessState.ExitCode()
}

// listedProcess is a process as gputrace --json lists it.
type listedProcess struct {
	PID        int
	User       string
	Command    []string
	Frameworks []string
	Workers    []int
	Devices    []struct {
		Device              int
		Allocated, Reserved uint64
	}
}

type listedMachine struct {
	Processes, Idle []listedProcess
	Hidden          int
	Missing         []string
}

func listedJSON(t *testing.T) (out listedMachine) {
	t.Helper()
	text, code := listed(t, nil, "--json")
	require.Zero(t, code)
	require.NoError(t, json.Unmarshal([]byte(text), &out))
	return out
}

func findListed(list []listedProcess, pid int) *listedProcess {
	for i := range list {
		if list[i].PID == pid {
			return &list[i]
		}
	}
	return nil
}

// TestProcesses: gputrace alone lists a job with the figures that the job has of itself, its forked worker below it, and one that has
// not used the GPU as such; who may not look into them sees how many there are.
func TestProcesses(t *testing.T) {
	job := startPython(t, `
import os, time, torch
blocks = [torch.empty(1 << 20, dtype=torch.uint8, device="cuda") for _ in range(40)]
worker = os.fork()
if worker == 0:
    time.sleep(1000)
print("USES", worker, torch.cuda.memory_allocated(), torch.cuda.memory_reserved(), torch.__version__, flush=True)
print("READY", os.getpid(), flush=True)
time.sleep(1000)
`).ready(t)
	young := startPython(t, `
import os, time, torch
print("READY", os.getpid(), flush=True)
time.sleep(1000)
`).ready(t)
	said := strings.Fields(job.await(t, "USES"))
	number := func(i int) uint64 {
		n, err := strconv.ParseUint(said[i], 10, 64)
		require.NoError(t, err)
		return n
	}

	all := listedJSON(t)
	p := findListed(all.Processes, job.pid)
	require.NotNil(t, p)
	require.Equal(t, "root", p.User)
	require.Equal(t, []int{int(number(1))}, p.Workers)
	require.Nil(t, findListed(all.Processes, int(number(1))), "a worker has no memory of its own")
	require.Len(t, p.Devices, 1)
	require.Equal(t, number(2), p.Devices[0].Allocated)
	require.Equal(t, number(3), p.Devices[0].Reserved)
	require.Len(t, p.Frameworks, 1)
	require.Equal(t, "PyTorch "+strings.SplitN(said[4], "+", 2)[0], strings.SplitN(p.Frameworks[0], "+", 2)[0])
	if q := findListed(append(all.Processes, all.Idle...), young.pid); q != nil {
		require.Empty(t, q.Devices)
	}

	text, code := listed(t, nil)
	require.Zero(t, code)
	require.Contains(t, text, "\ngputrace -p "+itoa(job.pid)+"  ")
	require.Contains(t, text, "pid "+itoa(job.pid)+" has 1 worker")

	text, code = listed(t, &syscall.Credential{Uid: nobody, Gid: nobody})
	require.Equal(t, 7, code, text)
	require.Contains(t, text, "no process that we can see uses a GPU")
	require.Regexp(t, `not looked into without sudo: \d+ processes of other users \(\d+ of Python\)`, text)
	require.Contains(t, text, "sudo gputrace run -- python train.py")
}
