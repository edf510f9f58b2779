// SPDX-License-Identifier: Apache-2.0

package export

import (
	"fmt"
	"io"
	"time"

	"github.com/gputrace/gputrace/export/pprof"
	"github.com/gputrace/gputrace/export/table"
	"github.com/gputrace/gputrace/internal/words"
)

// WriteProfile writes what is in use as a profile.
func WriteProfile(w io.Writer, in *Input) error { return writeProfile(w, in, pprof.InUse) }

func writePprofAlloc(w io.Writer, in *Input) error { return writeProfile(w, in, pprof.Alloc) }

// writeProfile writes a profile with what memory is for. What is in use has the steps of its allocations too: of all allocations
// there are too many.
func writeProfile(w io.Writer, in *Input, kind pprof.Kind) error {
	view, err := in.detailed(kind == pprof.InUse)
	if err != nil {
		return err
	}
	p := pprof.Input{View: view, Kind: kind, Binary: in.Info.Exe, Time: in.Info.Started, Joined: in.Joined}
	if p.Comments, err = exportComments(in); err != nil {
		return err
	}
	p.Rank = in.Info.Rank.Label()
	if in.End != nil {
		p.Time = p.Time.Add(in.End.Duration)
		p.Duration = in.End.Duration
	}
	if s := in.Selection; s.To != 0 {
		p.Duration = time.Duration(s.To - s.From)
	}
	return pprof.Write(w, p)
}

// exportComments identify the run, and say what is concluded of it and what is missing.
func exportComments(in *Input) ([]string, error) {
	title := in.Info.Name
	if in.Info.PID != 0 { // a snapshot does not tell it
		title = fmt.Sprintf("gputrace %s, %s: %s", in.Info.Gputrace, in.Info.Rank.Process(int(in.Info.PID)),
			words.CommandLine(in.Info.Cmdline, in.Info.Name))
	}
	out := []string{title, in.Moment}
	a, err := answerAtEnd(in)
	if err != nil {
		return nil, err
	}
	if sentence := sentenceOf(a); sentence != "" {
		out = append(out, sentence)
	}
	if in.Trace.Damage != nil {
		out = append(out, in.Trace.Damage.Error())
	}
	return append(out, table.Comments(Summary(in.Trace.End(), in.Info, in.End))...), nil
}
