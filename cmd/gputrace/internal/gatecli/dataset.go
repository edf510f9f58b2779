// SPDX-License-Identifier: Apache-2.0

package gatecli

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/urfave/cli/v2"

	flags "github.com/gputrace/gputrace/cmd/gputrace/internal/cli"
	"github.com/gputrace/gputrace/cmd/gputrace/internal/progress"
	"github.com/gputrace/gputrace/export/fleet"
	"github.com/gputrace/gputrace/export/table"
	"github.com/gputrace/gputrace/internal/exit"
	"github.com/gputrace/gputrace/internal/output"
)

// DatasetName is the format of export that is a folder of tables, for many recordings. The others are files of one.
const DatasetName = "dataset"

// DatasetFlags are the flags of gputrace export -f dataset alone.
func DatasetFlags() []cli.Flag {
	return []cli.Flag{flags.Text("job", "", "with -f dataset, the `NAME` of the job if no label has it (default: the folder's name)")}
}

// CheckDataset refuses other formats beside the dataset.
func CheckDataset(list string) error {
	if list != DatasetName {
		return errors.New(DatasetName + " is a folder of tables, not a file: give it alone")
	}
	return nil
}

// Dataset is gputrace export -f dataset. done is false if another format is asked for; selected reports that a moment, a range or rows were
// chosen.
func Dataset(c *cli.Context, shared *Shared, selected bool) (done bool, err error) {
	job, out := flags.Get[string](c, "job"), flags.Get[string](c, "output")
	switch {
	case flags.Get[string](c, "format") != DatasetName && job != "":
		return true, usage("--job needs -f dataset")
	case flags.Get[string](c, "format") != DatasetName:
		return false, nil
	case selected:
		return true, usage("-f dataset has the peak and the end of each recording: give it without a moment, a range, --by or --with")
	case out == output.Stdout:
		return true, usage("-o -: -f dataset is a folder")
	case c.NArg() == 0:
		return true, usage("which recordings? give files or the folders of jobs; see gputrace export --help")
	case out == "":
		out = DatasetName
	}
	p := progress.New(os.Stderr)
	defer p.Stop()
	o, err := shared.Open(c, p.Options(p.Warn))
	if err != nil {
		return true, err
	}
	sum := &fleet.Size{}
	var leftOut error // of the first recording that could not be read
	for _, arg := range c.Args().Slice() {
		size, err := fleet.Write(recordingsOf([]string{arg}), &fleet.Options{
			Dir: out, Job: jobName(job, arg), Version: shared.Version, Open: o,
			LeftOut: func(err error) {
				p.Warn(fmt.Errorf("left out: %w", err))
				leftOut = cmp.Or(leftOut, err)
			},
		})
		if errors.Is(err, fs.ErrPermission) || errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EROFS) {
			return true, exit.Say(fmt.Sprintf("%v\n  give another folder with -o; what was written before is complete", err), err)
		}
		if err != nil {
			return true, err
		}
		sum.Processes, sum.Rows, sum.Bytes = sum.Processes+size.Processes, sum.Rows+size.Rows, sum.Bytes+size.Bytes
	}
	p.Stop()
	if sum.Processes == 0 {
		return true, exit.With(exit.Code(leftOut), errors.New("nothing was written: no recording could be read"))
	}
	fmt.Fprintf(os.Stderr, "wrote %s: %s, %s, %s   cd %s && duckdb -init queries/duckdb.sql -c '.read queries/skew.sql'\n", out,
		table.Plural(uint64(sum.Processes), "process"), table.Plural(uint64(sum.Rows), "row"), table.Bytes(uint64(sum.Bytes)), out)
	if leftOut != nil {
		return true, exit.With(exit.Code(leftOut), errors.New("the dataset lacks the recordings that were left out"))
	}
	return true, nil
}

// jobName returns the name of a job: the given one, or the name of the folder with its results.
func jobName(given, path string) string {
	if given != "" {
		return given
	}
	if st, err := os.Stat(path); err == nil && !st.IsDir() {
		path = filepath.Dir(path)
	}
	full, err := filepath.Abs(path)
	if err != nil {
		return filepath.Base(path)
	}
	return filepath.Base(full)
}
