#!/bin/bash
# debian-arm64.sh [--torch]: make what a guest with an arm64 kernel runs, in .work/arm64 beside this file, and print that folder:
#
#   root      Debian 13's libraries and CPython 3.13, whose code signs its return addresses
#   old/root  Debian 12's CPython 3.11, whose code does not
#   programs  the C programs of testdata, cross-compiled
#   site      with --torch: PyTorch for arm64 and what it imports, for CPython 3.11
#   standin   with --torch: the stand-in CUDA for it
#
# Nothing is installed. Idempotent. It needs the cross compiler of Debian's gcc-aarch64-linux-gnu and g++-aarch64-linux-gnu.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
suite=trixie architecture=arm64
# shellcheck source-path=SCRIPTDIR
. "$here/debian-unpack.sh"
work=${GPUTRACE_WORK:-$here/.work}/arm64
torch=2.15.0

# finish removes links out of the folder: such as that to the settings of the machine.
finish() { find "$new/root" -xtype l -delete; }

# old unpacks Debian 12's CPython.
old() {
    suite=bookworm
    unpack "$work/old" python3.11-minimal libpython3.11-minimal libpython3.11-stdlib >/dev/null
}

# install_site has pip take what is built for arm64, for the CPython that it is used with.
install_site() {
    [ ! -e "$work/site/complete" ] || return 0
    rm -rf "$work/site"
    grep -iE '^(filelock|fsspec|jinja2|markupsafe|mpmath|networkx|numpy|sympy|typing_extensions)==' "$here/requirements.txt" >"$work/needs"
    "${PYTHON:-python3.11}" -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --no-cache-dir --no-deps --only-binary=:all: \
        --python-version 3.11 --implementation cp --abi cp311 --abi none --platform manylinux_2_28_aarch64 --platform manylinux_2_27_aarch64 \
        --platform manylinux2014_aarch64 --platform any --target "$work/site" "torch==$torch" -r "$work/needs" >&2
    "${PYTHON:-python3.11}" -m compileall -q "$work/site" >/dev/null || true # bytecode is the same; an emulated import takes half as long
    touch "$work/site/complete"
}

# cross runs make for arm64, quietly; its output is shown when it fails.
cross() {
    local log
    log=$(make -C "$@" CC=aarch64-linux-gnu-gcc CXX=aarch64-linux-gnu-g++ 2>&1) || die "make $1: $log"
}

mkdir -p "$work"
unpack "$work/new" python3.13-minimal libpython3.13-minimal libpython3.13-stdlib libc6 libexpat1 zlib1g libffi8 libssl3t64 libbz2-1.0 \
    liblzma5 libuuid1 libstdc++6 libgcc-s1 libgomp1 libtinfo6 bash busybox-static >/dev/null
(old)
[ -e "$work/root" ] || ln -s new/root "$work/root"
exec 8>"$work/lock"
flock 8
cross "$here/programs" B="$work/programs"
if [ "${1-}" = --torch ]; then
    install_site
    cross "$here/standin" TORCH_LIB="$work/site/torch/lib" B="$work/standin"
fi
echo "$work"
