#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# pictures.sh [FOLDER]: the pictures of README.md and of the guides, of real recordings of testdata/workloads on the stand-in. Needs root.
#
#   make pictures                  writes docs/pictures/*.png
#   PICTURES_WORK=FOLDER           keep the recordings there
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(dirname "$here")
gputrace=${GPUTRACE:-$root/gputrace}
out=${1:-$root/docs/pictures}
work=${PICTURES_WORK:-$(mktemp -d)}
job=

clean_up() {
    [ -z "$job" ] || kill "$job" 2>/dev/null || true
    [ -n "${PICTURES_WORK:-}" ] || rm -rf "$work"
}
trap clean_up EXIT

say() { echo "pictures: $*" >&2; }

# start WORKLOAD [ARGUMENT...]: the job waits until it is let go.
start() {
    rm -f "$work/go"
    (cd "$work" && STANDIN_SHM=$work/memory exec "$here/run" "$here/workloads/$1" --wait --go go "${@:2}") >"$work/job" 2>&1 &
    job=$!
    for _ in $(seq 1200); do
        ! grep -q READY "$work/job" || return 0
        kill -0 "$job" 2>/dev/null || break
        sleep 0.1
    done
    cat "$work/job" >&2
    exit 1
}

# record NAME SECONDS: attaches to the job, and lets it go.
record() {
    say "record $1 for $2 s"
    (sleep 2 && touch "$work/go") &
    LD_LIBRARY_PATH=$("$here/setup.sh" --print standin) STANDIN_SHM=$work/memory \
        "$gputrace" -p "$job" -d "$2s" -o "$work/$1" -f html,svg >"$work/$1.log" 2>&1 || {
        cat "$work/$1.log" >&2
        exit 1
    }
    kill "$job" 2>/dev/null || true
    wait "$job" 2>/dev/null || true
    job=
}

# shoot NAME RECORDING WIDTH HEIGHT [SCRIPT [FLAG...]]: a picture of its page, without what says on which machine it was made.
shoot() {
    local plain="document.getElementById('command').textContent = '';
        for (const f of document.querySelectorAll('#facts span')) if (/^(pid|Linux|gputrace)/.test(f.textContent)) f.remove();"
    "$work/picture" -o "$out/$1.png" -width "$3" -height "$4" -script "$plain ${5:-}" "${@:6}" "$work/$2/report.html"
}

main() {
    mkdir -p "$out" "$work"
    "$here/setup.sh"
    (cd "$root/e2e/browser" && go build -o "$work/picture" ./picture)
    start leak.py --batch 24 && record leak 5
    start gpt.py --steps 0 --layers 6 --batch 4 && record gpt 8
    start leak.py --batch 512 && record oom 30
    shoot page leak 1280 1000
    shoot page-dark leak 1280 1000 '' -theme dark
    shoot page-steady gpt 1280 900
    shoot oom oom 1280 900
    shoot segments oom 1280 420 "const s = document.getElementById('segmentsCard'); s.open = true; setTimeout(() => s.scrollIntoView(), 300);"
    shoot narrow leak 400 900
    "$work/picture" -o "$out/memory.png" -width 960 -height 450 -ready svg "$work/leak/memory.svg"
}

main
