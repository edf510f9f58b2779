// SPDX-License-Identifier: Apache-2.0

// Package parquet writes every allocation as a row of an Apache Parquet file, for DuckDB, pandas, Polars and their like. See
// docs/tables.md.
package parquet

import (
	"fmt"
	"io"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/compress/zstd"

	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/export/internal/rows"
)

// batch is how many rows are handed over at once.
const batch = 4096

// groupRows is how many rows of a file are compressed together; a reader can skip the others.
const groupRows = 1 << 16

// Write writes the allocations of a selection, each when it ended, those that live last. What is not known is null.
func Write(w io.Writer, t *rows.Table, s view.Selection) error {
	out := parquet.NewGenericWriter[rows.Row](w, parquet.Compression(&zstd.Codec{Level: zstd.SpeedFastest}),
		parquet.CreatedBy("gputrace", t.Version, ""), parquet.MaxRowsPerRowGroup(groupRows))
	buf := make([]rows.Row, 0, batch)
	flush := func() error {
		if _, err := out.Write(buf); err != nil {
			return fmt.Errorf("write rows: %w", err)
		}
		buf = buf[:0]
		return nil
	}
	err := t.Each(s, func(r *rows.Row) error {
		if buf = append(buf, *r); len(buf) < batch {
			return nil
		}
		return flush()
	})
	if err == nil {
		err = flush()
	}
	if err != nil {
		return err
	}
	if err := out.Close(); err != nil {
		return fmt.Errorf("end the file: %w", err)
	}
	return nil
}
