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
timeline = [recording.timeline(kind) for kind in ("pyarrow", "pandas", "polars")]
assert timeline[0]["live"].to_pylist() == timeline[2]["live"].to_list() and len(timeline[0]) == len(timeline[1])
assert len(recording.events()) >= len(timeline[0]), "events of other layers are left out of a timeline"
peak = max((n for n in timeline[0]["live"].to_pylist() if n is not None), default=0)
assert peak <= recording.answer["peak_bytes"], (peak, recording.answer["peak_bytes"])
print("ok  the timeline has %d events, and its peak %d B" % (len(timeline[0]), peak))
