// SPDX-License-Identifier: Apache-2.0

package dataset_test

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gputrace/gputrace/export/dataset"
)

// sparkViews returns the statements that name the columns for Spark, which would otherwise guess the types of folders.
func sparkViews() string {
	out := "-- Views of the dataset for Spark, to be run in the folder of the dataset, or with whole paths. Made of the schema by the tests.\n"
	for _, table := range []string{dataset.Moments, dataset.Lines} {
		out += "CREATE OR REPLACE TEMPORARY VIEW " + table + " (\n"
		var columns []string
		for _, c := range dataset.Columns(table) {
			kind := c.Type
			if kind == "timestamp" {
				kind = "timestamp_ntz"
			}
			columns = append(columns, "    "+c.Name+" "+kind)
		}
		out += strings.Join(columns, ",\n") + "\n) USING parquet OPTIONS (path '" + table + "');\n"
	}
	return out
}

// TestSparkViews: the file for Spark has all columns.
func TestSparkViews(t *testing.T) {
	want := sparkViews()
	if *update {
		require.NoError(t, os.WriteFile("queries/spark.sql", []byte(want), 0o644))
	}
	text, err := dataset.Queries.ReadFile("queries/spark.sql")
	require.NoError(t, err)
	require.Equal(t, want, string(text), "go test -update writes it")
}
