# SPDX-License-Identifier: Apache-2.0
"""ask.py duckdb|spark [QUERIES]: ask the dataset in the current folder its queries, and print the rows of each as JSON.

ask.py compact: compact the dataset instead."""

import datetime
import json
import os
import pathlib
import sys
import time


def plain(value):
    """Times are microseconds, and whole numbers are integers, in all engines."""
    if isinstance(value, datetime.datetime):
        return (value - datetime.datetime(1970, 1, 1)) // datetime.timedelta(microseconds=1)
    if isinstance(value, datetime.date):
        return value.isoformat()
    return int(value) if hasattr(value, "__int__") and not isinstance(value, str) and int(value) == value else value


def duckdb(views):
    import duckdb

    connection = duckdb.connect()
    connection.execute(views)
    return lambda question: connection.execute(question).fetchall(), lambda: connection.close()


def spark(views):
    from pyspark.sql import SparkSession

    # The questions run once, on little data: to compile them would take longest.
    os.environ["PYSPARK_SUBMIT_ARGS"] = "--driver-java-options '-XX:TieredStopAtLevel=1 -XX:+UseSerialGC' pyspark-shell"
    session = (
        SparkSession.builder.master("local[2]").appName("gputrace")
        .config("spark.sql.sources.parallelPartitionDiscovery.threshold", "1000000").config("spark.sql.files.openCostInBytes", "16384")
        .config("spark.sql.codegen.wholeStage", "false").config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        .config("spark.ui.showConsoleProgress", "false").config("spark.ui.enabled", "false").config("spark.sql.shuffle.partitions", "1").config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1").config("spark.sql.session.timeZone", "America/New_York").getOrCreate()
    )
    for statement in views.split(";"):
        if statement.strip():
            session.sql(statement)
    for view in ("moments", "lines"):  # the files of a rank are small: each is read once for all questions
        session.sql(f"CACHE TABLE {view}")
    return lambda question: [tuple(row) for row in session.sql(question).collect()], session.stop


def main():
    engine = sys.argv[1]
    began = time.monotonic()
    folder = pathlib.Path(sys.argv[2] if len(sys.argv) > 2 else "queries")
    if engine == "compact":
        run, close = duckdb((folder / "duckdb.sql").read_text())
        pathlib.Path("compact").mkdir()
        run((folder / "duckdb_compact.sql").read_text())
        close()
        print("{}")
        return
    ask, close = {"duckdb": duckdb, "spark": spark}[engine]((folder / f"{engine}.sql").read_text())
    answers, seconds = {}, {"start": time.monotonic() - began}
    for path in sorted(folder.glob("*.sql")):
        if path.stem.startswith(("duckdb", "spark")):
            continue
        began = time.monotonic()
        answers[path.stem] = [[plain(value) for value in row] for row in ask(path.read_text())]
        seconds[path.stem] = time.monotonic() - began
    close()
    print({name: round(s, 2) for name, s in seconds.items()}, file=sys.stderr)
    print(json.dumps(answers))


main()
