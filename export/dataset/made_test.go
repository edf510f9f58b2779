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

// compaction returns the statements with which DuckDB makes few large files of many small ones.
func compaction() string {
	out := `-- Writes the dataset into the folder compact, with a file for each job and day, the rank as a column, and the same field ids:
--     mkdir compact && duckdb -init queries/duckdb.sql -c ".read queries/duckdb_compact.sql"
--     cd compact && duckdb -init ../queries/duckdb.sql -c ".read ../queries/skew.sql"
`
	for _, table := range []string{dataset.Moments, dataset.Lines} {
		var ids []string
		for _, c := range dataset.Columns(table)[2:] {
			ids = append(ids, c.Name+": "+c.ID)
		}
		out += "COPY (SELECT * FROM " + table + " ORDER BY job, day, rank, process, time)\n" +
			"    TO 'compact/" + table + "' (FORMAT parquet, COMPRESSION zstd, PARTITION_BY (job, day), FIELD_IDS {\n    " + strings.Join(ids,
			",\n    ") + "});\n"
	}
	return out
}

// TestMadeQueries: the files of statements that name the columns have all of them.
func TestMadeQueries(t *testing.T) {
	for name, want := range map[string]string{"spark.sql": sparkViews(), "duckdb_compact.sql": compaction()} {
		if *update {
			require.NoError(t, os.WriteFile("queries/"+name, []byte(want), 0o644))
			continue
		}
		text, err := dataset.Queries.ReadFile("queries/" + name)
		require.NoError(t, err)
		require.Equal(t, want, string(text), "go test -update writes it")
	}
}
