-- Views of the dataset for DuckDB. Start DuckDB in the folder of the dataset: duckdb -init queries/duckdb.sql
CREATE OR REPLACE VIEW moments AS SELECT * REPLACE (CAST(rank AS INTEGER) AS rank) FROM read_parquet('moments/**/*.parquet',
    union_by_name = true, hive_partitioning = true, hive_types = {'job': VARCHAR, 'day': DATE});
CREATE OR REPLACE VIEW lines AS SELECT * REPLACE (CAST(rank AS INTEGER) AS rank) FROM read_parquet('lines/**/*.parquet',
    union_by_name = true, hive_partitioning = true, hive_types = {'job': VARCHAR, 'day': DATE});
