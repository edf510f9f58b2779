// SPDX-License-Identifier: Apache-2.0

package process

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestContainerOf: paths as runtimes make them, by both drivers of control groups.
func TestContainerOf(t *testing.T) {
	id := strings.Repeat("3f2a91b0c4d5e6f7", 4)
	node := "0::/docker/" + strings.Repeat("0", 64) + "/kubelet.slice"
	for cgroups, want := range map[string]string{
		"0::/": "", "": "", "x": "",
		"0::/user.slice/user-1000.slice/session-2.scope":                                                  "",
		"0::/system.slice/docker-" + id + ".scope":                                                        "docker 3f2a91b0c4d5",
		"12:memory:/docker/" + id + "\n0::/":                                                              "docker 3f2a91b0c4d5",
		"0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-" + id + ".scope/container":   "podman 3f2a91b0c4d5",
		"0::/kubepods.slice/kubepods-burstable.slice/kubepods-pod1.slice/cri-containerd-" + id + ".scope": "containerd 3f2a91b0c4d5",
		"0::/kubepods.slice/kubepods-pod1.slice/crio-" + id + ".scope":                                    "cri-o 3f2a91b0c4d5",
		"4:memory:/kubepods/burstable/pod1/" + id:                                                         "container 3f2a91b0c4d5",
		"0::/lxc.payload.web1/init.scope":                                                                 "lxc web1",
		"0::/lxc/web1":                                                                                    "lxc web1",
		"0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0":                                   "slurm 4711",

		node + "/kubelet-kubepods-pod1.slice/cri-containerd-" + id + ".scope":          "containerd 3f2a91b0c4d5",
		"0::/system.slice/containerd.service/kubepods-pod1.slice:cri-containerd:" + id: "containerd 3f2a91b0c4d5",
		"0::/user.slice/nerdctl-" + id + ".scope":                                      "containerd 3f2a91b0c4d5",
		"1:name=systemd:/ecs/0123abcd/" + id[:32] + "-12345":                           "docker " + id[:32] + "-12345",
	} {
		c := ContainerOf(cgroups)
		require.Equal(t, want, c.String(), cgroups)
	}
	c := Container{Runtime: "containerd", ID: id, Name: "train-0"}
	require.Equal(t, "containerd train-0 3f2a91b0c4d5", c.String())
	c.Name = id[:12] // docker's own host name
	require.Equal(t, "containerd 3f2a91b0c4d5", c.String())
}

// TestParent: this process has the parent that the system says.
func TestParent(t *testing.T) {
	p, err := Open(os.Getpid())
	require.NoError(t, err)
	require.Equal(t, os.Getppid(), p.Parent())
	require.Zero(t, Ended(1).Parent())
}
