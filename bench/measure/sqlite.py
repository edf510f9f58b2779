# SPDX-License-Identifier: Apache-2.0
"""sqlite.py ALLOCATIONS.csv OUT.db: the events of a recording as rows of SQLite, with a write-ahead log. Prints events, CPU seconds to
write them, bytes of the file, and CPU seconds to add up what is allocated by stack, as JSON."""
import csv
import json
import os
import sqlite3
import sys
import time

csv.field_size_limit(1 << 30)


def events(path):
    out = []
    with open(path, newline='', encoding='utf-8') as f:
        for r in csv.DictReader(f):
            size, stack = int(r['bytes'] or 0), int(r['stack_id'] or 0)
            signed = stack - (1 << 64) if stack >= 1 << 63 else stack
            out.append((r['ts'], 1, r['tid'], r['stream'], r['addr'], size, signed))
            if r['free_ts']:
                out.append((r['free_ts'], 2, r['tid'], r['stream'], r['addr'], size, signed))
    out.sort()
    return out


def main():
    rows = events(sys.argv[1])
    db = sqlite3.connect(sys.argv[2])
    db.execute('pragma journal_mode = wal')
    db.execute('create table events (ts text, kind int, tid int, stream int, addr int, size int, stack int)')
    begin = time.process_time()
    for i in range(0, len(rows), 8192):
        with db:
            db.executemany('insert into events values (?, ?, ?, ?, ?, ?, ?)', rows[i:i + 8192])
    written = time.process_time() - begin
    begin = time.process_time()
    db.execute('select stack, sum(size) from events where kind = 1 group by stack order by 2 desc').fetchall()
    queried = time.process_time() - begin
    db.execute('pragma wal_checkpoint(truncate)')
    db.close()
    json.dump({'events': len(rows), 'write': written, 'bytes': os.path.getsize(sys.argv[2]), 'open': queried}, sys.stdout)


main()
