#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# run.sh bench PAGE [OPTIONS OF bench-gpu] | test LOG SECONDS GROUP...: what bundle.sh has made, on a machine with a GPU and no Go.
#   PYTHON=/opt/venv/bin/python bench/gpu/run.sh bench gpu.md
#   bench/gpu/run.sh test gpu.log 200 'TestGPU' 'TestTotals'      the groups run beside each other, for so many seconds at most
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
bundle=${BUNDLE:-dist/gpu}
python=${PYTHON:-$(command -v python3)}
what=${1:?bench or test}
into=$(realpath -m "${2:?a file}")
shift 2
work=${TMPDIR:-/tmp}/gputrace-gpu-bundle
mkdir -p "$work"
for program in gputrace bench-gpu e2e.test; do
    [ -x "$work/$program" ] || gzip -dc "$bundle/$program.gz" >"$work/$program"
    chmod +x "$work/$program"
done

case $what in
bench)
    exec "$work/bench-gpu" -python "$python" -gputrace "$work/gputrace" -programs "$bundle/programs" -o "$into" "$@"
    ;;
test)
    limit=${1:?seconds} number=0
    shift
    # The tests build the program with go and ask setup.sh for the rest: here both hand out what is there.
    mkdir -p "$work/bin" "$work/tree"
    cp -r testdata e2e "$work/tree/"
    printf '#!/bin/sh\n[ "$1" = build ] && exec cp "%s" "$3"\nexit 1\n' "$work/gputrace" >"$work/bin/go"
    cat >"$work/tree/testdata/setup.sh" <<END
#!/bin/sh
case \$2 in
kind) echo real ;;
python) echo "$python" ;;
programs) echo "$PWD/$bundle/programs" ;;
site) "$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' ;;
run) echo "$work/tree/testdata/run" ;;
esac
END
    chmod +x "$work/bin/go" "$work/tree/testdata/setup.sh"
    export PATH="$work/bin:$PATH" GPUTRACE_REAL=1
    cd "$work/tree/e2e"
    : >"$into"
    for group in "$@"; do
        number=$((number + 1))
        timeout -k 5 "$limit" "$work/e2e.test" -test.v -test.count=1 -test.run "$group" >"$into.$number" 2>&1 &
    done
    wait
    for file in "$into".[0-9]*; do
        cat "$file" >>"$into"
        rm "$file"
    done
    grep -cE '^ *--- PASS' "$into" || true
    grep -E '^ *--- FAIL|^panic' "$into" || true
    ;;
esac
