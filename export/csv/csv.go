// SPDX-License-Identifier: Apache-2.0

// Package csv writes tables as comma-separated values (RFC 4180, with a header and line feeds): every allocation, or the
// memory by line, function, stack, layer or device. See docs/use/tables.md.
package csv

import (
	"encoding/csv"
	"fmt"
	"io"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/gputrace/gputrace/analysis/view"
	"github.com/gputrace/gputrace/export/internal/rows"
)

// timeLayout is RFC 3339 with nanoseconds, UTC.
const timeLayout = "2006-01-02T15:04:05.000000000Z07:00"

// WriteAllocations writes the allocations of a selection, with the columns of rows.Row. What is not known is empty.
func WriteAllocations(w io.Writer, t *rows.Table, s view.Selection) error {
	out := csv.NewWriter(w)
	kind := reflect.TypeFor[rows.Row]()
	record := make([]string, kind.NumField())
	for i := range record {
		record[i], _, _ = strings.Cut(kind.Field(i).Tag.Get("parquet"), ",")
	}
	if err := out.Write(record); err != nil {
		return fmt.Errorf("write the header: %w", err)
	}
	err := t.Each(s, func(r *rows.Row) error {
		v := reflect.ValueOf(r).Elem()
		for i := range record {
			record[i] = field(v.Field(i).Interface())
		}
		record[1], record[2] = moment(r.TS), moment(r.FreeTS)
		return out.Write(record)
	})
	if err != nil {
		return err
	}
	return finish(out)
}

// field is a value as text; nil is empty.
func field(v any) string {
	switch v := v.(type) {
	case string:
		return plain(v)
	case *string:
		if v != nil {
			return plain(*v)
		}
	case bool:
		return strconv.FormatBool(v)
	case int64:
		return strconv.FormatInt(v, 10)
	case uint64:
		return strconv.FormatUint(v, 10)
	case *int64:
		if v != nil {
			return strconv.FormatInt(*v, 10)
		}
	case *uint64:
		if v != nil {
			return strconv.FormatUint(*v, 10)
		}
	}
	return ""
}

// plain is a text that a spreadsheet does not take for a formula: names come from the program.
func plain(s string) string {
	if s != "" && strings.ContainsRune("=+-@\t\r", rune(s[0])) {
		return "'" + s
	}
	return s
}

func moment(ns *int64) string {
	if ns == nil {
		return ""
	}
	return time.Unix(0, *ns).UTC().Format(timeLayout)
}

// WriteSums writes the memory of a view, a row for each line, function, stack, layer or device.
func WriteSums(w io.Writer, v *view.View, by view.RowKind) error {
	sums := v.SumBy(by)
	out := csv.NewWriter(w)
	if err := out.Write([]string{by.String(), "file", "line_number", "bytes", "blocks", "alloc_bytes", "alloc_blocks"}); err != nil {
		return fmt.Errorf("write the header: %w", err)
	}
	for i := range sums {
		g := &sums[i]
		line := ""
		if g.Line > 0 {
			line = strconv.Itoa(g.Line)
		}
		err := out.Write([]string{
			plain(g.Text), plain(g.File), line, strconv.FormatInt(g.Bytes, 10), strconv.FormatUint(g.Blocks, 10),
			strconv.FormatInt(g.AllocBytes, 10), strconv.FormatUint(g.AllocBlocks, 10),
		})
		if err != nil {
			return fmt.Errorf("write a row: %w", err)
		}
	}
	return finish(out)
}

func finish(out *csv.Writer) error {
	out.Flush()
	if err := out.Error(); err != nil {
		return fmt.Errorf("write the table: %w", err)
	}
	return nil
}
