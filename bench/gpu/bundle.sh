#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# bundle.sh [FOLDER]: dist/gpu, or FOLDER, gets what bench/gpu/run.sh needs on a machine with a GPU and PyTorch that has no Go: the program,
# the benchmark and the tests as programs, and the C test programs. The repository itself goes there too: its Python scripts are run.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
out=${1:-dist/gpu}
rm -rf "$out"
mkdir -p "$out"
go build -ldflags='-s -w' -o "$out/gputrace" ./cmd/gputrace
go build -ldflags='-s -w' -o "$out/bench-gpu" ./bench/gpu
go test -c -tags gpu -ldflags='-s -w' -o "$out/e2e.test" ./e2e
cp -r "$(testdata/setup.sh --print programs)" "$out/programs"
gzip -1 "$out/gputrace" "$out/bench-gpu" "$out/e2e.test"
