// SPDX-License-Identifier: Apache-2.0

// Package parquet writes every allocation as a row of an Apache Parquet file, for DuckDB, pandas, Polars and their like. See
// docs/tables.md.
package parquet

import (
	"fmt"
	"io"
	"reflect"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/compress/zstd"

	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/export/internal/rows"
)

// batch is how many rows are handed over at once.
const batch = 4096

// groupRows is how many rows of a file are compressed together; a reader can skip the others.
const groupRows = 1 << 16

// schema is that of rows.Row, whose pointers are optional columns. The library takes the options of its tags at the types that they
// point to only.
var schema = func() *parquet.Schema {
	row := reflect.TypeFor[rows.Row]()
	fields := make([]reflect.StructField, row.NumField())
	for i := range fields {
		f := row.Field(i)
		if f.Type.Kind() == reflect.Pointer {
			f.Type = f.Type.Elem()
		}
		fields[i] = reflect.StructField{Name: f.Name, Type: f.Type, Tag: f.Tag}
	}
	return parquet.NewSchema("Row", parquet.SchemaOf(reflect.New(reflect.StructOf(fields)).Interface()))
}()

// Write writes the allocations of a selection, each when it ended, those that live last. What is not known is null.
func Write(w io.Writer, t *rows.Table, s view.Selection) error {
	out := parquet.NewWriter(w, schema, parquet.Compression(&zstd.Codec{Level: zstd.SpeedDefault}),
		parquet.CreatedBy("gputrace", t.Version, ""), parquet.MaxRowsPerRowGroup(groupRows))
	buf := make([]parquet.Row, 0, batch)
	flush := func() error {
		if _, err := out.WriteRows(buf); err != nil {
			return fmt.Errorf("write rows: %w", err)
		}
		buf = buf[:0]
		return nil
	}
	err := t.Each(s, func(r *rows.Row) error {
		buf = buf[:len(buf)+1]
		last := &buf[len(buf)-1]
		*last = values((*last)[:0], r)
		if len(buf) < batch {
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

// values appends the columns of a row. A pointer's definition level is 1 where it points to something; nil is null.
func values(to parquet.Row, r *rows.Row) parquet.Row {
	row := reflect.ValueOf(r).Elem()
	for i := range row.NumField() {
		field := row.Field(i)
		switch {
		case field.Kind() != reflect.Pointer:
			to = append(to, value(field).Level(0, 0, i))
		case field.IsNil():
			to = append(to, parquet.NullValue().Level(0, 0, i))
		default:
			to = append(to, value(field.Elem()).Level(0, 1, i))
		}
	}
	return to
}

// value is that of a field of one of the types that rows.Row has.
func value(field reflect.Value) parquet.Value {
	switch field.Kind() {
	case reflect.Int64:
		return parquet.Int64Value(field.Int())
	case reflect.Uint64:
		return parquet.Int64Value(int64(field.Uint()))
	default:
		return parquet.ValueOf(field.Interface())
	}
}
