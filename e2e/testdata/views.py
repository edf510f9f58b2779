"""views.py FOLDER: what each file of a result says is in use at the end, in bytes, as other programs read it. JSON."""
import collections
import csv
import gzip
import json
import os
import pickle
import re
import sys

import duckdb

csv.field_size_limit(1 << 30)


def lines(name):
    with open(name, encoding='utf-8') as f:
        return f.read().splitlines()


def snapshot(name):
    with open(name, 'rb') as f:
        held = pickle.load(f)
    return sum(b['size'] for s in held['segments'] for b in s['blocks'] if b['state'] == 'active_allocated')


def parquet(name):
    (total,), = duckdb.sql(f"select sum(bytes) from '{name}' where free_ts is null and layer = 'torch'").fetchall()
    return int(total)


def rows(name):
    with open(name, newline='', encoding='utf-8') as f:
        return sum(int(r['bytes']) for r in csv.DictReader(f) if r['free_ts'] == '' and r['layer'] == 'torch')


def counters(name):
    last = {}
    with gzip.open(name) as f:
        for e in json.load(f)['traceEvents']:
            if e['ph'] == 'C' and e['name'].endswith(' allocated'):
                last[e['pid'], e['name']] = e['args']['bytes']
    return sum(last.values())


def dumps(name):
    heaps = {}
    with open(name, encoding='utf-8') as f:
        for d in json.load(f)['dumps']:
            heaps[d['sequence']] = sum(allocated - freed for _, allocated, freed, _, _ in d['samples'])
    return sum(heaps.values())


def main():
    os.chdir(sys.argv[1])
    said = collections.OrderedDict()
    said['snapshot'] = snapshot('snapshot.pickle')
    said['parquet'] = parquet('allocations.parquet')
    said['csv'] = rows('allocations.csv')
    with open('memory.json', encoding='utf-8') as f:
        table = json.load(f)
    said['json'] = table['summary']['bytes']
    said['json lines'] = sum(r['bytes'] for r in table['lines'])
    said['json peak'] = sum(a['peak'] for a in table['accounts'])
    said['folded'] = sum(int(re.search(r' (-?\d+)$', line)[1]) for line in lines('memory.folded'))
    with open('memory.speedscope.json', encoding='utf-8') as f:
        for i, p in enumerate(json.load(f)['profiles']):
            assert p['unit'] == 'bytes'
            said[f'speedscope {i}'] = sum(p['weights'])
    said['chrome'] = counters('timeline.json.gz')
    said['perfetto'] = dumps('perfetto.json')
    json.dump(said, sys.stdout)


main()
