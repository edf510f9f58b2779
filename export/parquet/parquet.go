// SPDX-License-Identifier: Apache-2.0

// Package parquet writes every allocation, or every event, as a row of an Apache Parquet file, for DuckDB, pandas, Polars and their like.
// See docs/use/tables.md.
package parquet

import (
	"io"

	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/export/internal/columns"
	"github.com/gputrace/gputrace/export/internal/rows"
)

var (
	schema = columns.Schema[rows.Row]("Row")
	events = columns.Schema[rows.Event]("Event")
)

// Write writes the allocations of a selection, each when it ended, those that live last. What is not known is null.
func Write(w io.Writer, t *rows.Table, s view.Selection) error {
	out := columns.NewWriter[rows.Row](w, schema, t.Version)
	if err := t.Each(s, out.Write); err != nil {
		return err
	}
	return out.Close()
}

// WriteEvents writes the events of a selection's range, in their order, with the totals after each. What is not known is null.
func WriteEvents(w io.Writer, t *rows.Table, s view.Selection) error {
	out := columns.NewWriter[rows.Event](w, events, t.Version)
	if err := t.EachEvent(s, out.Write); err != nil {
		return err
	}
	return out.Close()
}
