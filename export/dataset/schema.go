// SPDX-License-Identifier: Apache-2.0

// Package dataset writes moments of many processes as one partitioned Parquet dataset, which DuckDB, Spark and other engines query. See
// docs/schemas/dataset.md.
package dataset

import (
	"reflect"
	"strings"

	"github.com/gputrace/gputrace/export/internal/columns"
)

// The kinds of moments.
const (
	End  = "end"  // of a recording or, if the program ended, before it freed everything
	Peak = "peak" // of each device
	Now  = "now"  // of a process that was running
)

// MomentRow is one device of a process at one moment. nil is unknown. Names, types and numbers of columns are part of the interface: a
// new column is appended, and a number is never used again. 1 to 3 are the columns of the folders.
type MomentRow struct {
	Time        int64    `parquet:"time,timestamp(microsecond:local),delta,id(4)" doc:"the moment, UTC; of a peak, when the device had it"`
	Moment      string   `parquet:"moment,dict,id(5)" doc:"\"end\" of the recording, \"peak\" of the device, or \"now\" while the process ran"`
	Process     string   `parquet:"process,dict,id(6)" doc:"the process, also if its PID is used again: start time and PID"`
	Started     *int64   `parquet:"started,optional,timestamp(microsecond:local),id(7)" doc:"when its recording began, UTC"`
	Node        *string  `parquet:"node,optional,dict,id(8)" doc:"machine, as the agent names it"`
	Namespace   *string  `parquet:"namespace,optional,dict,id(9)" doc:"of the Kubernetes pod"`
	Pod         *string  `parquet:"pod,optional,dict,id(10)" doc:"name of the Kubernetes pod, or its UID if the name is not known"`
	Container   *string  `parquet:"container,optional,dict,id(11)" doc:"name of the container, or its identifier"`
	PID         int64    `parquet:"pid,dict,id(12)" doc:"process number on the machine"`
	Program     string   `parquet:"program,dict,id(13)" doc:"name of the script or program"`
	WorldSize   *int64   `parquet:"world_size,optional,dict,id(14)" doc:"number of ranks of the job, as the process's environment counts them"`
	Device      string   `parquet:"device,dict,id(15)" doc:"as the process numbers it: \"cuda:0\""`
	Live        *int64   `parquet:"live_bytes,optional,id(16)" doc:"memory that the framework's allocator had handed out"`
	Reserved    *int64   `parquet:"reserved_bytes,optional,id(17)" doc:"memory that the allocator had reserved from the driver"`
	Before      *int64   `parquet:"before_attach_bytes,optional,id(18)" doc:"part of live_bytes that was allocated before the attach"`
	Other       int64    `parquet:"other_bytes,id(19)" doc:"device memory beside the allocator's, obtained since the attach"`
	Used        *int64   `parquet:"used_bytes,optional,id(20)" doc:"memory that the driver attributes to the process; null at a peak"`
	Total       *int64   `parquet:"device_bytes,optional,id(21)" doc:"size of the device"`
	Allocs      int64    `parquet:"allocations,id(22)" doc:"allocations from the attach to the end of the recording, or to now"`
	Frees       int64    `parquet:"frees,id(23)" doc:"frees in the same time"`
	OOMs        int64    `parquet:"out_of_memory,id(24)" doc:"requests that failed in the same time"`
	Lost        *int64   `parquet:"lost_events,optional,id(25)" doc:"events of the process that were lost"`
	Steps       *int64   `parquet:"steps,optional,id(26)" doc:"complete steps"`
	Verdict     *string  `parquet:"verdict,optional,dict,id(27)" doc:"the verdict's word, as \"gputrace report --brief --json\" has it"`
	Sentence    *string  `parquet:"sentence,optional,dict,id(28)" doc:"the sentence that follows it"`
	Growth      *float64 `parquet:"growth_bytes_per_step,optional,id(29)" doc:"growth of device memory in each step; 0: steady"`
	GrewAt      *int64   `parquet:"grew_at,optional,timestamp(microsecond:local),id(30)" doc:"when growth began, UTC; null: steady or unknown"`
	GrewLine    *string  `parquet:"grew_line,optional,dict,id(31)" doc:"line that grows most"`
	GrewHolder  *string  `parquet:"grew_holder,optional,dict,id(32)" doc:"what holds the memory of that line"`
	GputraceVer string   `parquet:"gputrace,dict,id(33)" doc:"version of gputrace that wrote the row"`
}

// LineRow is the memory of one line of a program in a MomentRow. The bytes of its rows add up to live_bytes and other_bytes of it.
type LineRow struct {
	Time       int64   `parquet:"time,timestamp(microsecond:local),delta,id(4)" doc:"as in moments"`
	Moment     string  `parquet:"moment,dict,id(5)" doc:"as in moments"`
	Process    string  `parquet:"process,dict,id(6)" doc:"as in moments"`
	Node       *string `parquet:"node,optional,dict,id(7)" doc:"as in moments"`
	Namespace  *string `parquet:"namespace,optional,dict,id(8)" doc:"as in moments"`
	Pod        *string `parquet:"pod,optional,dict,id(9)" doc:"as in moments"`
	Device     string  `parquet:"device,dict,id(10)" doc:"as in moments"`
	Layer      string  `parquet:"layer,dict,id(11)" doc:"\"torch\" for the framework's allocator, or \"device\""`
	Line       string  `parquet:"line,dict,id(12)" doc:"\"train.py:88 main\", a native symbol, or \"[before attach]\" and its like"`
	File       *string `parquet:"file,optional,dict,id(13)" doc:"path of a Python line"`
	LineNumber *int64  `parquet:"line_number,optional,dict,id(14)" doc:"number of a Python line"`
	Phase      string  `parquet:"phase,dict,id(15)" doc:"part of the step in which it was allocated"`
	Category   *string `parquet:"category,optional,dict,id(16)" doc:"what the memory is for; null in rows of the agent"`
	Bytes      int64   `parquet:"bytes,id(17)" doc:"in use at the moment; negative only for lost events"`
	Blocks     *int64  `parquet:"blocks,optional,id(18)" doc:"number of blocks"`
}

// The tables, which are folders of the dataset.
const (
	Moments = "moments"
	Lines   = "lines"
)

var (
	momentSchema = columns.Schema[MomentRow](Moments)
	lineSchema   = columns.Schema[LineRow](Lines)
)

// Column describes a column.
type Column struct {
	Name, Type, About string
	ID                string // of the field, in the file
	Optional          bool
}

// folderColumns are the columns that are folders.
var folderColumns = []Column{
	{"job", "string", "name of the job: the label job or job_id, --job, or the folder of the results", "1", true},
	{"day", "date", "UTC day of the moment; of a recording, that on which it began", "2", false},
	{"rank", "int", "rank of the process in its job", "3", true},
}

// Columns returns the columns of a table in their order.
func Columns(table string) []Column {
	row := reflect.TypeFor[MomentRow]()
	if table == Lines {
		row = reflect.TypeFor[LineRow]()
	}
	out := append([]Column(nil), folderColumns...)
	for i := range row.NumField() {
		f := row.Field(i)
		name, options, _ := strings.Cut(f.Tag.Get("parquet"), ",")
		_, id, _ := strings.Cut(options, "id(")
		c := Column{Name: name, ID: strings.TrimSuffix(id, ")"), About: f.Tag.Get("doc"), Optional: f.Type.Kind() == reflect.Pointer}
		kind := f.Type
		if c.Optional {
			kind = kind.Elem()
		}
		switch {
		case strings.Contains(options, "timestamp"):
			c.Type = "timestamp"
		case kind.Kind() == reflect.Int64:
			c.Type = "bigint"
		case kind.Kind() == reflect.Float64:
			c.Type = "double"
		default:
			c.Type = "string"
		}
		out = append(out, c)
	}
	return out
}
