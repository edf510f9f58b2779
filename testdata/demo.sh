#!/bin/bash
# demo.sh: a GPT trains, gputrace attaches to it by PID for 10 seconds, go tool pprof shows what it wrote.
#
#   make demo                    on the GPU where there is one, else on the stand-in
#   GPUTRACE_REAL=0 make demo    on the stand-in
#   DEMO_SECONDS=3 make demo     a shorter look
#
# The job is stopped at the end, also when something fails. The results stay, in a folder of the current directory.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(dirname "$here")
gputrace=$root/gputrace
seconds=${DEMO_SECONDS:-10}
export GPUTRACE_REAL=${GPUTRACE_REAL:-auto}
logs=$(mktemp -d)
job=
nvml=() # environment in which libnvidia-ml is found, where the system has none

say() { echo "demo: $*" >&2; }
die() {
    say "$*"
    exit 1
}

# show prints a command as a user would type it, then runs it.
show() {
    printf '\n$ %s\n' "$*" >&2
    "$@"
}

stop_job() {
    if [ -z "$job" ] || ! kill "$job" 2>/dev/null; then return; fi
    for _ in $(seq 50); do
        kill -0 "$job" 2>/dev/null || break
        sleep 0.1
    done
    kill -9 "$job" 2>/dev/null || true
    wait "$job" 2>/dev/null || true
}

clean_up() {
    local status=$?
    stop_job
    rm -rf "$logs"
    exit "$status"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# as_root shows a command and runs it, with the stand-in's NVML in reach where that is what there is.
as_root() {
    local sudo=()
    if [ "$(id -u)" != 0 ]; then
        command -v sudo >/dev/null || die "attaching needs root, and there is no sudo"
        sudo=(sudo)
    fi
    printf '\n$ %s\n' "${sudo[*]}${sudo:+ }$*" >&2
    "${sudo[@]}" env "${nvml[@]}" "$@"
}

# steps is how many steps the job has done: it writes a line for each, and device.
steps() { if [ -e "$logs/counters" ]; then wc -l <"$logs/counters"; else echo 0; fi; }

# start_job starts the training script and returns when it has done a few steps: from here on it is any running job. The
# scripts between here and Python replace themselves, so its PID is that of Python.
start_job() {
    "$here/run" "$here/workloads/gpt.py" --steps 0 --counters "$logs/counters" >"$logs/job" 2>&1 &
    job=$!
    say "training started as pid $job (testdata/workloads/gpt.py)"
    for _ in $(seq 3000); do
        if [ "$(steps)" -ge 5 ] 2>/dev/null; then return; fi
        kill -0 "$job" 2>/dev/null || break
        sleep 0.1
    done
    cat "$logs/job" >&2
    die "the training script did not get to its fifth step"
}

main() {
    local out kind
    [ -x "$gputrace" ] || die "no $gputrace: run make build"
    "$here/setup.sh"
    kind=$("$here/setup.sh" --print kind)
    say "device: $kind"
    if [ "$kind" = standin ]; then
        export STANDIN_SHM=$logs/books
        nvml=("LD_LIBRARY_PATH=$("$here/setup.sh" --print standin)" "STANDIN_SHM=$STANDIN_SHM")
    fi
    start_job
    out=gputrace.$job.$(date +%Y%m%d-%H%M%S)
    as_root "$gputrace" -p "$job" -d "${seconds}s" -o "$out"
    say "who holds the memory now:"
    as_root "$gputrace" who -p "$job" --top 10 || say "the job left no moment for it; that can happen at this speed"
    kill -0 "$job" 2>/dev/null || die "the job has ended, and should not have"
    stop_job
    show go tool pprof -top -nodecount=15 "$out/inuse.pb.gz"
    show go tool pprof -top -lines -nodecount=15 "$out/inuse.pb.gz"
    say "what was allocated in these ${seconds} s, dead or alive:"
    show go tool pprof -top -nodecount=15 "$out/alloc.pb.gz"
    printf '\nall of it:\n'
    printf '  %s\n' "$out"/*
    printf '\nin a browser:\n  go tool pprof -http=: %s\n' "$out/inuse.pb.gz"
}

main "$@"
