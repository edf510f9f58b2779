// SPDX-License-Identifier: Apache-2.0

// Package columns writes structs as the rows of a Parquet file. A field is a column, with a tag of parquet-go; a pointer is an
// optional column, and nil is null.
package columns

import (
	"fmt"
	"io"
	"reflect"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/compress/zstd"
)

// batch is how many rows are handed over at once.
const batch = 4096

// groupRows is how many rows of a file are compressed together; a reader can skip the others.
const groupRows = 1 << 16

// Schema returns the schema of a type of rows. parquet-go takes the options of a tag only if the field is no pointer.
func Schema[R any](name string) *parquet.Schema {
	row := reflect.TypeFor[R]()
	fields := make([]reflect.StructField, row.NumField())
	for i := range fields {
		f := row.Field(i)
		if f.Type.Kind() == reflect.Pointer {
			f.Type = f.Type.Elem()
		}
		fields[i] = reflect.StructField{Name: f.Name, Type: f.Type, Tag: f.Tag}
	}
	return parquet.NewSchema(name, parquet.SchemaOf(reflect.New(reflect.StructOf(fields)).Interface()))
}

// rowWriter is the part of parquet.Writer that is used.
type rowWriter interface {
	WriteRows(rows []parquet.Row) (int, error)
	Close() error
}

// Writer writes rows.
type Writer[R any] struct {
	out rowWriter
	buf []parquet.Row
}

// NewWriter begins a file. version is of gputrace.
func NewWriter[R any](w io.Writer, schema *parquet.Schema, version string) *Writer[R] {
	return &Writer[R]{
		out: parquet.NewWriter(w, schema, parquet.Compression(&zstd.Codec{Level: zstd.SpeedDefault}),
			parquet.CreatedBy("gputrace", version, ""), parquet.MaxRowsPerRowGroup(groupRows)),
		buf: make([]parquet.Row, 0, batch),
	}
}

// Write adds a row.
func (w *Writer[R]) Write(r *R) error {
	w.buf = w.buf[:len(w.buf)+1]
	last := &w.buf[len(w.buf)-1]
	*last = values((*last)[:0], reflect.ValueOf(r).Elem())
	if len(w.buf) < batch {
		return nil
	}
	return w.flush()
}

func (w *Writer[R]) flush() error {
	if _, err := w.out.WriteRows(w.buf); err != nil {
		return fmt.Errorf("write rows: %w", err)
	}
	w.buf = w.buf[:0]
	return nil
}

// Close ends the file.
func (w *Writer[R]) Close() error {
	if err := w.flush(); err != nil {
		return err
	}
	if err := w.out.Close(); err != nil {
		return fmt.Errorf("end the file: %w", err)
	}
	return nil
}

// values appends the columns of a row. A pointer's definition level is 1 where it points to something; nil is null.
func values(to parquet.Row, row reflect.Value) parquet.Row {
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

// value returns the value of a field of a type that rows have.
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
