// SPDX-License-Identifier: Apache-2.0

// Package rank finds a process's place in its job from its environment.
package rank

import (
	"strconv"
	"strings"

	"github.com/gputrace/gputrace/recording"
)

// Rank is the place of a process in a job. The zero value means not known.
type Rank struct {
	Global, Local int // from 1; 0: not known
	World         int // 0: not known
}

// rankVariables are the variables that launchers set, the most reliable first: torchrun and compatible ones, Slurm,
// Open MPI, MPICH and its derivatives.
var rankVariables = []struct{ global, local, world string }{
	{"RANK", "LOCAL_RANK", "WORLD_SIZE"},
	{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE"},
	{"PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE"},
	{"SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS"},
	{"LOCAL_RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
}

// maxRank is the highest plausible rank.
const maxRank = 1 << 24

// Of reads the rank from a process's initial environment.
func Of(environ []string) Rank {
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
			return Rank{Global: n + 1, Local: number(v.local) + 1, World: max(0, number(v.world))}
		}
	}
	return Rank{}
}

// Known reports whether the rank is known.
func (r Rank) Known() bool { return r.Global > 0 }

// Recorded returns the rank in the form of a recording.
func (r Rank) Recorded() *recording.Rank {
	if !r.Known() {
		return nil
	}
	return &recording.Rank{Rank: r.Global - 1, Local: r.Local - 1, World: r.World}
}
