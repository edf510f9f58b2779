// SPDX-License-Identifier: Apache-2.0

package folder

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/pprof/profile"
	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/event"
	"github.com/gputrace/gputrace/export/table"
	"github.com/gputrace/gputrace/internal/eventtest"
	"github.com/gputrace/gputrace/recorder"
	"github.com/gputrace/gputrace/recorder/internal/made"
)

// readProfile is a profile of the results, read by pprof's own library.
func readProfile(t *testing.T, path string) *profile.Profile {
	t.Helper()
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	p, err := profile.Parse(f)
	require.NoError(t, err)
	return p
}

// inuseOf is the sum of inuse_space of a profile.
func inuseOf(t *testing.T, p *profile.Profile) int64 {
	t.Helper()
	for i, s := range p.SampleType {
		if s.Type == "inuse_space" {
			sum := int64(0)
			for _, x := range p.Sample {
				sum += x.Value[i]
			}
			return sum
		}
	}
	require.Fail(t, "no inuse_space")
	return 0
}

// TestProfiles: the profiles of a job are those of its processes together, and say what they are of.
func TestProfiles(t *testing.T) {
	for _, many := range []bool{false, true} {
		results, _, f := recorded(t, many, nil)
		_, err := results.Write()
		require.NoError(t, err)
		now, peak := readProfile(t, f.path+"/inuse.pb.gz"), readProfile(t, f.path+"/peak.pb.gz")
		want := map[bool][2]int64{false: {512, 1536}, true: {512 + 4096, 1536 + 4096}}[many]
		require.Equal(t, want[0], inuseOf(t, now))
		require.Equal(t, want[1], inuseOf(t, peak))
		warned := "each process at its own peak: their sum was never in use at one moment"
		require.Equal(t, many, strings.Contains(strings.Join(peak.Comments, "\n"), warned))
		require.NotContains(t, now.Comments, warned)
		if many {
			require.Equal(t, []string{"gputrace test, 2 processes", "pid 7: python", "pid 8: [pid 8]"}[:2], now.Comments[:2])
			part := readProfile(t, f.path+"/pid7/peak.pb.gz")
			require.EqualValues(t, 1536, inuseOf(t, part))
			require.NotContains(t, part.Comments, warned)
			summary, _ := results.all[0].Summary()
			require.NotEmpty(t, table.Comments(summary))
			require.NotSubset(t, now.Comments, table.Comments(summary), "they are of one process")
		} else {
			summary, _ := results.all[0].Summary()
			require.Contains(t, now.Comments[0], "gputrace test, pid 7: ")
			require.Greater(t, len(now.Comments), 3, "the summary's figures")
			require.Subset(t, now.Comments, table.Comments(summary))
		}
	}
}

// TestJobProcesses: the page of a job has each of its processes.
func TestJobProcesses(t *testing.T) {
	results, _, _ := recorded(t, true, nil)
	var names []string
	for _, p := range results.jobProcesses() {
		require.NotNil(t, p.View)
		require.Equal(t, -1, p.Identity.Rank)
		names = append(names, p.Name+" in "+p.Folder)
	}
	require.Equal(t, []string{"pid 7 python in pid7", "pid 8  in pid8"}, names)
}

// deep is a process whose stacks have frames that are not worth showing.
type deep struct{ made.Target }

func (*deep) Stack(event.StackID) *event.Stack {
	return eventtest.Stack(eventtest.Report + " libtorch.so!at::empty " + eventtest.Own + " libpython.so!eval libc.so!start")
}

// TestFullStacks: profiles have every frame where that is asked for, else those that are worth showing.
func TestFullStacks(t *testing.T) {
	frames := func(full bool) int {
		s := one()
		s.Targets = []recorder.Target{&deep{made.Target{ID: 7}}}
		results, _, _ := run(t, s, func(_ *recorder.Options, o *Options) { o.FullStacks = full })
		folder, err := results.Write()
		require.NoError(t, err)
		p := readProfile(t, filepath.Join(folder, "inuse.pb.gz"))
		require.Len(t, p.Sample, 1)
		return len(p.Sample[0].Location)
	}
	require.Equal(t, 5, frames(true))
	require.Equal(t, 3, frames(false), "the line, what it calls, and the name")
}
