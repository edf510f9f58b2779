"""Checks that a recording is the same table in pyarrow, pandas and polars, and adds up to what blocks() has: tables.py RECORDING."""
import sys

import gputrace

recording = gputrace.open(sys.argv[1])
arrow, frame, polar = (recording.allocations(kind) for kind in ("pyarrow", "pandas", "polars"))
assert arrow["bytes"].to_pylist() == frame["bytes"].tolist() == polar["bytes"].to_list()
assert str(frame.dtypes["bytes"]) == "int64[pyarrow]", "columns are Arrow's"
live = frame[frame.free_ts.isna() & ((frame.layer == "torch") | ((frame.layer == "device") & ~frame.segment))]
before = sum(row["bytes"] for row in recording.blocks() if row["line"] == "[before attach]")
assert live.bytes.sum() in (recording.answer["now_bytes"], recording.answer["now_bytes"] - before), (live.bytes.sum(), recording.answer["now_bytes"])
assert len(recording.allocations("polars", since="0s")) <= len(arrow)
print("ok  %d allocations in pyarrow, pandas and polars; those in use are the %d B of the first screen" % (len(frame), live.bytes.sum()))
