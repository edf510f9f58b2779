// SPDX-License-Identifier: Apache-2.0

package export

import (
	"errors"
	"fmt"
	"io"

	"github.com/gputrace/gputrace/analysis/allocator"
	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/export/snapshot"
	"github.com/gputrace/gputrace/internal/exit"
)

// writeSnapshot writes the moment, or the end of the range, with the history that leads there.
func writeSnapshot(w io.Writer, in *Input) error {
	o := allocator.LayoutOptions{Selection: in.Selection, Entries: snapshot.MaxEntries}
	if o.Selection.To != 0 {
		o.Entries = 0
	}
	layouts, err := allocator.Layouts(in.Trace, o)
	switch {
	case errors.Is(err, view.ErrPeakBefore):
		return exit.With(exit.Error, err)
	case err != nil:
		return err
	}
	for i := range layouts {
		warnOfLayout(&layouts[i], in)
	}
	return snapshot.WriteTrace(w, snapshot.TraceInput{Layouts: layouts, Stack: in.Trace.Stack, Boot: bootOf(in)})
}

// warnOfLayout says what is not as in a snapshot of PyTorch's own.
func warnOfLayout(l *allocator.Layout, in *Input) {
	if l.LeftOut > 0 && in.Selection.To == 0 {
		in.Warn(fmt.Errorf("%s: the history has the last %d entries; %d before are left out, for the viewer's sake: --from and --to "+
			"choose others",
			l.Device, snapshot.Entries(l), l.LeftOut))
	} else if n := snapshot.Entries(l); n > snapshot.MaxEntries {
		in.Warn(fmt.Errorf("%s: the history has %d entries: the viewer is slow with more than %d", l.Device, n, snapshot.MaxEntries))
	}
	if m := l.MadeUp; m.Objects > 0 {
		in.Warn(fmt.Errorf("%s: %d blocks (%d bytes) lie in no known segment: segments are made up for them", l.Device, m.Objects, m.Bytes))
	}
	if l.Unplaced != 0 {
		in.Warn(fmt.Errorf("%s: %d bytes of the allocator's total are in no known block, and not in the snapshot", l.Device, l.Unplaced))
	}
}
