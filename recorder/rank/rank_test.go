// SPDX-License-Identifier: Apache-2.0

package rank

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/recording"
)

// TestRankOf: the variables are those that the launchers' own documentation names.
func TestRankOf(t *testing.T) {
	for name, c := range map[string]struct {
		environ []string
		want    *recording.Rank
	}{
		"torchrun": {[]string{"RANK=5", "LOCAL_RANK=1", "WORLD_SIZE=8"}, &recording.Rank{Rank: 5, Local: 1, World: 8}},
		"Slurm":    {[]string{"SLURM_PROCID=0", "SLURM_LOCALID=0", "SLURM_NTASKS=4"}, &recording.Rank{World: 4}},
		"Open MPI": {[]string{"OMPI_COMM_WORLD_RANK=3", "OMPI_COMM_WORLD_LOCAL_RANK=3", "OMPI_COMM_WORLD_SIZE=4"},
			&recording.Rank{Rank: 3, Local: 3, World: 4}},
		"MPICH": {[]string{"PMI_RANK=2", "PMI_SIZE=4"}, &recording.Rank{Rank: 2, Local: -1, World: 4}},
		"torchrun in Slurm": {[]string{"SLURM_PROCID=1", "RANK=9", "LOCAL_RANK=1", "WORLD_SIZE=16"},
			&recording.Rank{Rank: 9, Local: 1, World: 16}},
		"its own place only": {[]string{"LOCAL_RANK=1"}, &recording.Rank{Rank: 1, Local: 1}},
		"none":               {[]string{"HOME=/root"}, nil},
		"no number":          {[]string{"RANK=../../etc", "LOCAL_RANK=-1"}, nil},
		"too high":           {[]string{"RANK=99999999999999999999"}, nil},
	} {
		r := Of(c.environ)
		require.Equal(t, c.want, r.Recorded(), name)
	}
}
