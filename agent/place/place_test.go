// SPDX-License-Identifier: Apache-2.0

package place

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/process"
)

const (
	uid     = "0f3b1f2e-8a6d-4c57-9a53-2f6f1f5f7c11"
	uidUnit = "0f3b1f2e_8a6d_4c57_9a53_2f6f1f5f7c11" // as systemd's names have it
)

var id = strings.Repeat("3f2a91b0c4d5e6f7", 4)

// TestFind: control groups of both versions and both drivers, as the runtimes and Slurm write them.
func TestFindPlace(t *testing.T) {
	for cgroups, want := range map[string]Place{
		"": {},
		"0::/user.slice/user-0.slice/session-1.scope":                       {},
		"0::/system.slice/trainer.service":                                  {Unit: "trainer.service"},
		"0::/system.slice/docker-" + id + ".scope":                          {Runtime: "docker", Container: id},
		"4:memory:/docker/" + id + "\n1:name=systemd:/docker/" + id:         {Runtime: "docker", Container: id},
		"0::/machine.slice/libpod-" + id + ".scope/container":               {Runtime: "podman", Container: id},
		"9:memory:/kubepods/burstable/pod" + uid + "/" + id:                 {Runtime: "container", Container: id, Pod: uid},
		"0::/kubepods/pod" + uid + "/" + id:                                 {Runtime: "container", Container: id, Pod: uid},
		kubepods + ".slice/cri-containerd-" + id + ".scope":                 {Runtime: "containerd", Container: id, Pod: uid},
		kubepods + ".slice/crio-" + id + ".scope":                           {Runtime: "cri-o", Container: id, Pod: uid},
		kubepods + ".slice/crio-" + id + ".scope/container":                 {Runtime: "cri-o", Container: id, Pod: uid},
		kubepods + ".slice/docker-" + id + ".scope":                         {Runtime: "docker", Container: id, Pod: uid},
		"0::/../../kubepods-pod" + uidUnit + ".slice/crio-" + id:            {Runtime: "cri-o", Container: id, Pod: uid},
		"0::/kubepods/besteffort/pod" + strings.Repeat("ab", 16) + "/" + id: {Runtime: "container", Container: id, Pod: strings.Repeat("ab", 16)},
		"0::/system.slice/slurmstepd.scope/job_12/step_0/user/task_1":       {Scheduler: "slurm", Job: "12", Step: "0"},
		"0::/system.slice/n1_slurmstepd.scope/job_12/step_batch/user":       {Scheduler: "slurm", Job: "12", Step: "batch"},
		"4:memory:/slurm/uid_1000/job_12/step_extern\n0::/":                 {Scheduler: "slurm", Job: "12", Step: "extern"},
		"4:memory:/slurm_n1/uid_1000/job_12\n1:cpuset:/slurm/job_12":        {Scheduler: "slurm", Job: "12"},
	} {
		got := *Find(cgroups, nil, nil)
		got.Cgroup = ""
		if want.Unit == "" {
			got.Unit = ""
		}
		require.Equal(t, want, got, cgroups)
	}
}

// TestForged: what a user may name a control group of their own does not make a pod or a job of it, and what a container may
// add below its own does not make it another pod.
func TestForged(t *testing.T) {
	p := Find("0::/user.slice/user-1.slice/user@1.service/kubepods-pod"+uidUnit+".slice/slurm/job_9/step_0", nil, nil)
	require.Empty(t, p.Pod)
	require.Empty(t, p.Job)
	other := strings.Repeat("cd", 16)
	p = Find(kubepods+".slice/crio-"+id+".scope/pod"+other+"/slurm/job_9", nil, nil)
	require.Equal(t, uid, p.Pod)
	require.Empty(t, p.Job)
}

const kubepods = "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod" + uidUnit

// TestVariables: the environment is asked only if no control group has the job, and what it has is cut and printable.
func TestVariables(t *testing.T) {
	environ := []string{"SLURM_JOB_ID=7", "SLURM_STEP_ID=1", "TEAM_RUN=x\n" + strings.Repeat("y", 500)}
	p := Find("0::/", environ, nil)
	require.Equal(t, [3]string{"slurm", "7", "1"}, [3]string{p.Scheduler, p.Job, p.Step})
	p = Find("0::/", environ, []string{"NONE", "TEAM_RUN"})
	require.Empty(t, p.Scheduler)
	require.Len(t, []rune(p.Job), maxValue)
	require.NotContains(t, p.Job, "\n")
	p = Find("0::/slurm/job_12/step_3", environ, []string{"TEAM_RUN"})
	require.Equal(t, "12", p.Job, "a program cannot say that it is of another job")
}

// TestSelf: this process's own control group is read.
func TestSelf(t *testing.T) {
	p, err := process.Open(os.Getpid())
	require.NoError(t, err)
	require.NotEmpty(t, Find(p.Cgroups(), nil, nil).Cgroup)
}

func FuzzFind(f *testing.F) {
	f.Add(kubepods + ".slice/crio-" + id + ".scope")
	f.Add("0::/slurm/job_12/step_3\n1:a")
	f.Fuzz(func(t *testing.T, cgroups string) { Find(cgroups, []string{cgroups}, []string{"A"}) })
}
