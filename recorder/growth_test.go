// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"context"
	"fmt"
	"iter"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/analysis/leaks"
	"github.com/gputrace/gputrace/analysis/steps"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event/figures"
	"github.com/gputrace/gputrace/export"
	"github.com/gputrace/gputrace/heap"
	"github.com/gputrace/gputrace/internal/eventtest"
)

const keptLine = "train.py:30 main"

// training is 400 steps. keep is called in each.
func training(keep func(j *eventtest.Job, i int)) *eventtest.Job { return trainingOf(400, keep) }

func trainingOf(steps int, keep func(j *eventtest.Job, i int)) *eventtest.Job {
	j := eventtest.NewJob()
	for i := range steps {
		j.Pass(eventtest.Input, eventtest.Forward, eventtest.Backward, eventtest.Adam)
		keep(j, i)
	}
	return j
}

// growthRun is what a recorder made of a job.
type growthRun struct {
	results *Results
	notes   *noted
	file    string // the recording
	state   *State // when the holders were read, three quarters in
}

// runJob records a job, a few steps at a time. The holders of its blocks are read as scan gives them; nil: they cannot be.
func runJob(t *testing.T, j *eventtest.Job, scan func(ctx context.Context) (*Scan, error), change func(*Options)) growthRun {
	t.Helper()
	return runJobUntil(t, j, scan, change, func(out *growthRun) bool { return len(out.said("held by")) > 0 && len(out.said("full in")) > 0 })
}

// runJobUntil is runJob; the last quarter of the job comes when ready says so.
func runJobUntil(t *testing.T, j *eventtest.Job, scan func(ctx context.Context) (*Scan, error), change func(*Options),
	ready func(*growthRun) bool,
) growthRun {
	t.Helper()
	target := &madeTarget{pid: eventtest.PID, stacks: j.Stacks, scan: scan, memory: &Memory{
		Driver: []figures.DriverUse{{Used: figures.Unknown, Total: 1 << 30, All: 1<<30 - 1024*1000}}, // for 1000 blocks
	}}
	s := &madeSource{start: []Target{target}}
	var out growthRun
	var r *Recorder
	for part := range slices.Chunk(j.Events, 40) {
		s.batches = append(s.batches, madeBatch{events: part})
	}
	all := s.batches
	if scan != nil {
		s.batches, s.hang = all[:len(all)*3/4], true
	}
	r, out.notes, _ = newMade(t, s, func(o *Options) {
		o.PIDs = []int{eventtest.PID}
		if change != nil {
			change(o)
		}
	})
	if scan != nil {
		go func() {
			wait := func(until func() bool) {
				for !until() && t.Context().Err() == nil {
					time.Sleep(time.Millisecond)
				}
			}
			wait(func() bool { return ready(&out) })
			out.state, _ = r.State(t.Context())
			s.more(all[len(all)*3/4:])
			wait(func() bool { return s.more(nil) == 0 })
			r.Interrupt(os.Interrupt)
		}()
	}
	var err error
	out.results, err = r.Run(t.Context())
	require.NoError(t, err)
	out.file = fileOf(out.results.Processes()[0])
	return out
}

// heldByList has all blocks of a line in a list.
func heldByList(line, holder string) func(ctx context.Context) (*Scan, error) {
	return func(context.Context) (*Scan, error) {
		return &Scan{Join: func(_ *view.View, blocks iter.Seq[heap.Block]) *view.Joined {
			row, held := view.HeldSite{Site: line, Name: holder}, map[heap.BlockKey]view.HeldBlock{}
			for b := range blocks {
				if b.Requested == 1000 {
					row.Bytes, row.Blocks = row.Bytes+b.Size, row.Blocks+1
					held[b.Key()] = view.HeldBlock{Holder: holder, Name: holder, Bytes: b.Size}
				}
			}
			return &view.Joined{Rows: []view.HeldSite{row}, Bytes: row.Bytes, Blocks: held}
		}}, nil
	}
}

func (g *growthRun) said(prefix string) []string {
	g.notes.mu.Lock()
	defer g.notes.mu.Unlock()
	var out []string
	for _, n := range g.notes.notices {
		if strings.HasPrefix(strings.TrimSpace(n), prefix) {
			out = append(out, n)
		}
	}
	return out
}

// fromFile is the verdict on the recording.
func (g *growthRun) fromFile(t *testing.T) *leaks.Report {
	t.Helper()
	in, err := export.Open(g.file, nil)
	require.NoError(t, err)
	defer in.Close()
	report, err := in.Leaks()
	require.NoError(t, err)
	return report
}

// TestGrowth: a line that leaks is announced while the program runs, with what holds its blocks; so it is in the state, at the end,
// and in the recording of a program that was killed.
func TestGrowth(t *testing.T) {
	j := training(func(j *eventtest.Job, _ int) { j.Alloc(eventtest.Kept, 1000) })
	g := runJob(t, j, heldByList(keptLine, "main() local seen[0..99]"), nil)
	require.Len(t, g.said("growing: "+keptLine+" by 1000"), 1, g.notes.notices)
	require.Len(t, g.said("held by: main() local seen[0..99]"), 1, g.notes.notices)
	require.Len(t, g.said("full in: 9.0 s"), 1, g.notes.notices) // steps have 9 events, a millisecond apart
	require.Empty(t, g.said("no longer"))
	require.Equal(t, leaks.Growing, g.state.Processes[0].Leaks.Verdict)
	last := g.results.Processes()[0].Leaks()
	file := g.fromFile(t)
	for _, r := range []*leaks.Report{last, file} {
		require.Equal(t, leaks.Growing, r.Verdict)
		require.Equal(t, 399, r.Steps.Count)
		require.Equal(t, steps.SourceOptimizer, r.Steps.Source)
		f := &r.Findings[0]
		require.Equal(t, keptLine, f.Name())
		require.EqualValues(t, 1000, f.Requested)
		require.Equal(t, "main() local seen[0..99]", f.Holder)
		require.Equal(t, leaks.High, f.Confidence)
	}
}

// TestGrowthHolderRecorded: what was read at the verdict is in the recording, and names the holder of what came later, which says so.
func TestGrowthHolderRecorded(t *testing.T) {
	j := training(func(j *eventtest.Job, _ int) { j.Alloc(eventtest.Kept, 1000) })
	scan := heldByList(keptLine, "main() local seen[0..99]")
	reads := 0
	g := runJob(t, j, func(ctx context.Context) (*Scan, error) {
		if reads++; reads > 1 {
			return nil, context.DeadlineExceeded
		}
		got, err := scan(ctx)
		join := got.Join
		first := true
		got.Join = func(v *view.View, blocks iter.Seq[heap.Block]) *view.Joined {
			if !first {
				return &view.Joined{}
			}
			first = false
			return join(v, blocks)
		}
		return got, err
	}, nil)
	in, err := export.Open(g.file, nil)
	require.NoError(t, err)
	defer in.Close()
	require.Len(t, in.Trace.Held(), 1)
	f := g.fromFile(t).Findings[0]
	require.Equal(t, "main() local seen[0..99]", f.Holder)
	require.Positive(t, f.Newer)
	require.Less(t, f.Newer, f.LiveBlocks)
}

// TestGrowthHealthy: of a healthy program nothing is announced.
func TestGrowthHealthy(t *testing.T) {
	g := runJob(t, training(func(*eventtest.Job, int) {}), nil, nil)
	require.Empty(t, g.said("growing"))
	require.Equal(t, leaks.Steady, g.results.Processes()[0].Leaks().Verdict)
	require.Equal(t, leaks.Steady, g.fromFile(t).Verdict)
}

// TestGrowthOfWhatRecurs: where steps are known by a line that recurs only, it can be a layer of one pass. What
// grows is announced once that went on for longer than a pass takes.
func TestGrowthOfWhatRecurs(t *testing.T) {
	for count, want := range map[int]int{200: 0, 500: 1} { // steps of 17 ms
		j := eventtest.NewJob()
		for range count {
			for range 8 {
				j.Free(j.Alloc(eventtest.Forward, 500))
			}
			j.Alloc(eventtest.Kept, 1000)
		}
		g := runJob(t, j, nil, func(o *Options) { o.NoHolders = true })
		require.Len(t, g.said("growing"), want, "%d steps: %s", count, g.notes.notices)
		source := g.results.Processes()[0].Leaks().Steps.Source
		require.Equal(t, steps.SourcePeriod, source)
	}
}

// TestGrowthWithdrawn: what was announced and is freed is withdrawn.
func TestGrowthWithdrawn(t *testing.T) {
	var queue []uint64
	g := runJob(t, trainingOf(1200, func(j *eventtest.Job, i int) {
		if i < 200 {
			queue = append(queue, j.Alloc(eventtest.Kept, 1000))
		} else if i == 200 {
			for _, a := range queue {
				j.Free(a)
			}
		}
	}), nil, func(o *Options) { o.NoHolders = true })
	require.Len(t, g.said("growing: "+keptLine), 1)
	require.Len(t, g.said("withdrawn: "+keptLine), 1, g.notes.notices)
	require.Equal(t, leaks.Steady, g.fromFile(t).Verdict)
}

// TestGrowthOfManyLines: three lines are announced, and that there are more.
func TestGrowthOfManyLines(t *testing.T) {
	g := runJob(t, training(func(j *eventtest.Job, _ int) {
		for line := range 6 {
			j.Alloc(fmt.Sprintf(eventtest.Report+" /home/a/train.py:%d:main", 60+line), uint64(4096+512*line))
		}
	}), nil, func(o *Options) { o.NoHolders = true })
	require.Len(t, g.said("growing: train.py:"), 3, g.notes.notices)
	require.Len(t, g.said("further lines"), 1, g.notes.notices)
	require.Len(t, g.fromFile(t).Findings, 6)
}

// TestNoSteps: without steps nothing is announced and none are recorded; the recording has them all the same, by its events.
func TestNoSteps(t *testing.T) {
	j := training(func(j *eventtest.Job, _ int) { j.Alloc(eventtest.Kept, 1000) })
	g := runJob(t, j, nil, func(o *Options) { o.NoSteps = true })
	require.Empty(t, g.said("growing"))
	require.Nil(t, g.results.Processes()[0].Leaks())
	in, err := export.Open(g.file, nil)
	require.NoError(t, err)
	defer in.Close()
	recorded, _ := in.Trace.Steps()
	require.Nil(t, recorded)
	require.Equal(t, leaks.Growing, g.fromFile(t).Verdict)
}

// TestStepOn: steps begin where it was chosen, in the recording too.
func TestStepOn(t *testing.T) {
	g := runJob(t, training(func(*eventtest.Job, int) {}), nil, func(o *Options) { o.StepOn = "batch" })
	in, err := export.Open(g.file, nil)
	require.NoError(t, err)
	defer in.Close()
	table, err := in.Steps()
	require.NoError(t, err)
	require.Equal(t, steps.SourceChosen, table.Source)
	require.Equal(t, 399, table.Count())
	recorded, whole := in.Trace.Steps()
	require.True(t, whole)
	require.Len(t, recorded.Begins, 400)
}

// TestHeldReadings: of who held what grows the latest two readings are kept.
func TestHeldReadings(t *testing.T) {
	j := training(func(j *eventtest.Job, _ int) { j.Alloc(eventtest.Kept, 1000) })
	scan := heldByList(keptLine, "main() local seen[0..99]")
	run := runJob(t, j, scan, nil)
	g := run.results.all[0].growth
	g.asked = g.report.Findings
	got, err := scan(t.Context())
	require.NoError(t, err)
	joined := got.Join(nil, g.process.heap.Blocks())
	for range 3 {
		g.hold(joined)
	}
	require.Len(t, g.held, keptReadings)
}

// TestGrowthNameless: steps that wait for a stack whose names never come are in the recording all the same.
func TestGrowthNameless(t *testing.T) {
	j := trainingOf(10, func(j *eventtest.Job, i int) {
		if i == 0 {
			j.Alloc("/home/a/train.py:99:lost", 512)
			delete(j.Stacks, j.ID("/home/a/train.py:99:lost"))
		}
	})
	g := runJob(t, j, nil, nil)
	in, err := export.Open(g.file, nil)
	require.NoError(t, err)
	defer in.Close()
	noted, whole := in.Trace.Steps()
	require.True(t, whole)
	require.Len(t, noted.Begins, 10)
	require.Equal(t, 9, g.results.Processes()[0].Leaks().Steps.Count)
}

// TestGrowthOfABoundedContainer: a replay buffer that fills is not announced, neither before its holder is known nor after.
func TestGrowthOfABoundedContainer(t *testing.T) {
	const holder = "main() local replay[0..99]"
	for most, want := range map[uint64]int{0: 1, 500: 0} { // there is room for 1000
		held := heldByList(keptLine, holder)
		scanned := make(chan bool, 1)
		scan := func(ctx context.Context) (*Scan, error) {
			s, err := held(ctx)
			join := s.Join
			s.Join = func(v *view.View, blocks iter.Seq[heap.Block]) *view.Joined {
				out := join(v, blocks)
				out.Facts = map[string]figures.HolderFacts{holder: {Length: uint64(out.Rows[0].Blocks), Most: most}}
				select {
				case scanned <- true:
				default:
				}
				return out
			}
			return s, err
		}
		g := runJobUntil(t, training(func(j *eventtest.Job, _ int) { j.Alloc(eventtest.Kept, 1000) }), scan, nil, func(*growthRun) bool {
			select {
			case <-scanned:
				return true
			default:
				return false
			}
		})
		require.Len(t, g.said("growing"), want, "bound %d: %s", most, g.notes.notices)
	}
}
