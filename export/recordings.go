// SPDX-License-Identifier: Apache-2.0

package export

import (
	"cmp"
	"fmt"
	"math"
	"os"
	"path/filepath"

	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/event/moment"
	"github.com/gputrace/gputrace/internal/exit"
	"github.com/gputrace/gputrace/internal/sorts"
)

// PeakRows is what was in use at the peak; detail: with what it is for. version is that of gputrace.
func (s *Source) PeakRows(detail bool, version string) ([]view.Row, error) {
	if !detail {
		return s.Trace.Peak().Rows(), nil
	}
	in, err := s.Input(&Window{At: moment.Moment{Kind: moment.Peak}}, version, nil)
	if err == nil {
		err = in.GroupBy(view.ByCategory.String())
	}
	if err != nil {
		return nil, err
	}
	v, err := in.View()
	if err != nil {
		return nil, err
	}
	return v.Rows(), nil
}

// Recordings are those of a folder of results, of a job's one for each process, by rank; any other path is itself.
func Recordings(path string) ([]string, error) {
	if st, err := os.Stat(path); err != nil || !st.IsDir() || exists(filepath.Join(path, TraceName)) {
		return []string{path}, nil // what is wrong shows when it is opened
	}
	found, err := filepath.Glob(filepath.Join(path, "*", TraceName))
	if err != nil || len(found) == 0 {
		return nil, exit.With(exit.Invalid, noRecording(path))
	}
	out := make([]string, 0, len(found))
	for _, trace := range found {
		out = append(out, filepath.Dir(trace))
	}
	sortByRank(out)
	return out, nil
}

// sortByRank orders the folders of a job's processes, rank2-pid7 before rank10-pid5.
func sortByRank(folders []string) {
	key := func(folder string) (rank int, name string) {
		name = filepath.Base(folder)
		if _, err := fmt.Sscanf(name, "rank%d-", &rank); err != nil {
			rank = math.MaxInt
		}
		return rank, name
	}
	sorts.Func(folders, func(x, y string) int {
		rank, name := key(x)
		otherRank, otherName := key(y)
		return cmp.Or(cmp.Compare(rank, otherRank), cmp.Compare(name, otherName))
	})
}
