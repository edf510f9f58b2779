// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/gputrace/gputrace/recording"
)

// rank is the place of a process in a job. The zero value is not known.
type rank struct {
	global, local int // from 1; 0: not known
	world         int // 0: not known
}

// rankVariables are what launchers set, the surest first: torchrun and those that do as it does, Slurm, Open MPI, MPICH and its
// kin.
var rankVariables = []struct{ global, local, world string }{
	{"RANK", "LOCAL_RANK", "WORLD_SIZE"},
	{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE"},
	{"PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE"},
	{"SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS"},
	{"LOCAL_RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
}

// maxRank is the highest that is believed.
const maxRank = 1 << 24

// rankOf reads the environment that a process was started with.
func rankOf(environ []string) rank {
	values := map[string]string{}
	for _, e := range environ {
		if name, value, ok := strings.Cut(e, "="); ok {
			values[name] = value
		}
	}
	number := func(name string) int {
		n, err := strconv.Atoi(values[name])
		if err != nil || n < 0 || n > maxRank {
			return -1
		}
		return n
	}
	for _, v := range rankVariables {
		if n := number(v.global); n >= 0 {
			return rank{global: n + 1, local: number(v.local) + 1, world: max(0, number(v.world))}
		}
	}
	return rank{}
}

func (r rank) known() bool { return r.global > 0 }

// recorded is the rank as a recording has it.
func (r rank) recorded() *recording.Rank {
	if !r.known() {
		return nil
	}
	return &recording.Rank{Rank: r.global - 1, Local: r.local - 1, World: r.world}
}

// folder is the name of the folder of a process.
func (r rank) folder(pid int) string {
	if !r.known() {
		return fmt.Sprintf("pid%d", pid)
	}
	return fmt.Sprintf("rank%d-pid%d", r.global-1, pid)
}
