#!/bin/bash
# setup.sh: install PyTorch and build the stand-in CUDA for it, into .work/ beside this file. Idempotent.
#
#   setup.sh                     PyTorch without the NVIDIA wheels (1.5 GB on disk), the stand-in, the test programs
#   setup.sh --print NAME        the same, then print one value: python, standin, programs, run, kind, site
#   setup.sh --print speedscope  install the speedscope that a test opens files with, and print its folder; nothing else
#   setup.sh --print axe         the same of axe-core, which finds what keeps people from using a page: print its script
#   setup.sh --print llama       the same of a build of llama.cpp for CUDA: print its library
#   setup.sh --print helm        build Helm, and print the program; nothing else
#   setup.sh --print receivers   build the servers of receivers/, to which the agent sends in tests, and print their folder; nothing else
#   setup.sh --print pyspark     all of the first line, then the same of Apache Spark for Python, which needs Java: print its folder
#   setup.sh --versions          print the versions of PyTorch that are known here, one a line; nothing else
#
#   TORCH_VERSION=2.15.0         which PyTorch: a version in the table below, or any with TORCHVISION_VERSION set
#   PYTHON=python3.11            which Python makes the venv: at least 3.8, and one for which that PyTorch was built;
#                                PyTorch 1.13.1 takes 3.10
#   GPUTRACE_VENV=DIR            use this venv as it is
#   GPUTRACE_REAL=1              PyTorch with its NVIDIA wheels and no stand-in, for a machine with a GPU (6 GB on disk);
#                                auto: where there is a GPU with a driver
#
# Progress goes to stderr; nothing is printed when there is nothing to do.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
work=${GPUTRACE_WORK:-$here/.work}
torch_version=${TORCH_VERSION:-2.15.0}
kind=standin
print=
speedscope=1.25.0
axe=4.14.1
llama=1.7.15
helm=3.22.0
pyspark=4.1.1

say() { echo "setup: $*" >&2; }
die() {
    say "$*"
    exit 1
}

usage() { sed -n '2,/^set /{/^set /d;s/^# \{0,1\}//;p}' "${BASH_SOURCE[0]}" >&2; }

has_gpu() {
    [ -e /dev/nvidiactl ] && "$(find_python)" -c 'import ctypes; assert ctypes.CDLL("libcuda.so.1").cuInit(0) == 0' 2>/dev/null
}

parse_arguments() {
    case ${GPUTRACE_REAL:-0} in
    1) kind=real ;;
    auto) ! has_gpu || kind=real ;;
    esac
    while [ $# -gt 0 ]; do
        case $1 in
        --versions) versions | cut -d' ' -f1 && exit 0 ;;
        --print)
            print=${2:?--print needs a name}
            shift
            ;;
        -h | --help) usage && exit 0 ;;
        *) usage && exit 2 ;;
        esac
        shift
    done
}

# versions: the last patch release of each PyTorch, and the torchvision that was built against it.
versions() {
    cat <<'END'
1.13.1 0.14.1
2.0.1 0.15.2
2.1.2 0.16.2
2.2.2 0.17.2
2.3.1 0.18.1
2.4.1 0.19.1
2.5.1 0.20.1
2.6.0 0.21.0
2.7.1 0.22.1
2.8.0 0.23.0
2.9.1 0.24.1
2.10.0 0.25.0
2.11.0 0.26.0
2.12.1 0.27.1
2.13.0 0.28.0
2.14.1 0.29.1
2.15.0 0.29.2
END
}

torchvision_for() {
    local torch vision
    while read -r torch vision; do
        [ "$torch" != "$1" ] || { echo "$vision" && return; }
    done < <(versions)
    die "no torchvision known for PyTorch $1: set TORCHVISION_VERSION"
}

# pythons lists where a Python may be, the best first. PyTorch 1.13 and its torchvision were built up to 3.10.
pythons() {
    [ -z "${PYTHON:-}" ] || { echo "$PYTHON" && return; }
    case $torch_version in
    1.*) printf '%s\n' python3.10 "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.10.*/bin/python ;;
    *) printf '%s\n' python3.11 python3 ;;
    esac
}

find_python() {
    local candidate
    for candidate in $(pythons); do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 8))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    die "no Python for PyTorch $torch_version: set PYTHON"
}

# PyTorch before 2.3 was built for NumPy 1; the torchvision of 2.0 and 2.1 imports requests, and uses it for downloads only.
requirements() {
    case $torch_version in
    1.*) requirements_1 ;;
    2.[01].*) numpy_1 && requests ;;
    2.2.*) numpy_1 ;;
    *) cat "$here/requirements.txt" ;;
    esac
}

numpy_1() { sed 's/^numpy==.*/numpy==1.26.4/' "$here/requirements.txt"; }

requests() { printf '%s\n' requests==2.32.5 urllib3==2.5.0 idna==3.10 certifi==2025.8.3 charset-normalizer==3.4.3; }

# unpinned is the same for another Python than the pins were made for: what there is for it, with what that needs.
unpinned() { requirements | sed -E 's/^numpy==1\..*/numpy<2/; s/==.*//'; }

# pinned_for reports whether all versions in the requirements are for a Python.
pinned_for() {
    local want='(3, 11)'
    [[ $torch_version != 1.* ]] || want='(3, 10)'
    "$1" -c "import sys; sys.exit(sys.version_info[:2] != $want)"
}

# PyTorch 1.13 needs less, of what there is for Python 3.10.
requirements_1() {
    printf '%s\n' numpy==1.26.4 pillow==11.3.0 setuptools==65.5.0 typing_extensions==4.15.0
    requests
}

# refresh VENV PIP...: what the requirements have got since the venv was made is installed.
refresh() {
    local venv=$1 needs=requirements
    [ "$here/requirements.txt" -nt "$venv/complete" ] || return 0
    pinned_for "$venv/bin/python" || needs=unpinned
    "${@:2}" -r <("$needs") >&2
    touch "$venv/complete"
}

# install_torch fills the venv, and marks it complete: an interrupted installation is not taken for a whole one.
install_torch() {
    local venv=$1 python vision
    local pip=("$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-cache-dir)
    if [ -e "$venv/complete" ]; then
        refresh "$venv" "${pip[@]}"
        return
    fi
    python=$(find_python)
    vision=${TORCHVISION_VERSION:-$(torchvision_for "$torch_version")}
    say "installing PyTorch $torch_version and torchvision $vision into $venv"
    rm -rf "$venv"
    "$python" -m venv "$venv"
    local needs=requirements
    pinned_for "$python" || needs=unpinned
    if [ "$kind" = real ]; then
        "${pip[@]}" "torch==$torch_version" "torchvision==$vision" -r <("$needs") >&2
    else
        [ $needs = requirements ] || "${pip[@]}" -r <(unpinned) >&2
        "${pip[@]}" --no-deps "torch==$torch_version" "torchvision==$vision" -r <("$needs") >&2
    fi
    touch "$venv/complete"
}

# build runs make quietly; its output is shown when it fails.
build() {
    local folder=$1
    shift
    [ -n "$(make -C "$folder" -q "$@" 2>/dev/null || echo stale)" ] || return 0
    say "building $(basename "$folder")"
    local log
    log=$(make -C "$folder" "$@" 2>&1) || {
        echo "$log" >&2
        die "building $folder failed"
    }
}

site_packages() { "$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }

build_all() {
    local version
    version=$(sed -n "s/^__version__ = '\([0-9.]*\).*/\1/p" "$site/torch/version.py")
    standin=$work/standin-$version
    programs=$work/programs
    [ "$kind" = real ] || build "$here/standin" TORCH_LIB="$site/torch/lib" B="$standin" PYTHON="$venv/bin/python"
    build "$here/programs" B="$programs"
}

print_value() {
    case $1 in
    python) echo "$venv/bin/python" ;;
    standin) echo "$standin/lib" ;;
    programs) echo "$programs" ;;
    run) echo "$here/run" ;;
    kind) echo "$kind" ;;
    site) echo "$site" ;;
    pyspark) install_pip pyspark "$pyspark" ;;
    *) die "--print: no value named $1" ;;
    esac
}

# install_npm NAME VERSION unpacks an npm package, without what it needs beside itself, and prints its folder.
install_npm() {
    local plain=${1#@} folder new
    plain=${plain//\//-}
    folder=$work/$plain-$2
    if [ ! -e "$folder" ]; then
        say "installing $1 $2"
        new=$(mktemp -d "$work/$plain.XXXXXX")
        (cd "$new" && npm pack --silent "$1@$2" >/dev/null && tar xzf "$plain-$2.tgz") || die "npm could not fetch $1 $2"
        mv "$new/package" "$folder"
        rm -rf "$new"
    fi
    echo "$folder"
}

# install_pip NAME VERSION installs a Python package with what it needs, apart from PyTorch's, and prints its folder.
install_pip() {
    local folder=$work/$1-$2
    if [ ! -e "$folder" ]; then
        say "installing $1 $2"
        rm -rf "$folder.new"
        "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-cache-dir --target "$folder.new" "$1==$2" >&2
        mv "$folder.new" "$folder"
    fi
    echo "$folder"
}

# build_helm: Helm, by the checksums of Go's own database.
build_helm() {
    local dir=$work/helm-$helm
    if [ ! -x "$dir/helm" ]; then
        say "building Helm $helm"
        GOBIN=$dir.part go install -trimpath -ldflags='-s -w' "helm.sh/helm/v3/cmd/helm@v$helm" >&2
        rm -rf "$dir"
        mv "$dir.part" "$dir"
    fi
    echo "$dir/helm"
}

# build_receivers: the folder's name has the digest of their sources.
build_receivers() {
    local dir
    dir=$work/receivers-$(cat "$here"/receivers/go.{mod,sum} "$here"/receivers/*/*.go | sha256sum | cut -c1-12)
    if [ ! -x "$dir/collector" ]; then
        say "building the OpenTelemetry Collector and a receiver of Pyroscope's API"
        rm -rf "$dir"
        mkdir -p "$dir.part"
        (cd "$here/receivers" && go build -trimpath -ldflags='-s -w' -o "$dir.part/" ./...) >&2
        mv "$dir.part" "$dir"
    fi
    echo "$dir"
}

main() {
    parse_arguments "$@"
    mkdir -p "$work"
    # Several tests may want it at the same time; that of one version does not wait while another one is installed.
    exec 8>"$work/lock-$kind-$torch_version"
    flock 8
    case $print in
    speedscope) echo "$(install_npm speedscope "$speedscope")/dist/release" && return ;;
    axe) echo "$(install_npm axe-core "$axe")/axe.min.js" && return ;;
    llama) echo "$(install_npm @fugood/node-llama-linux-x64-cuda "$llama")/index.node" && return ;;
    helm) build_helm && return ;;
    receivers) build_receivers && return ;;
    esac
    venv=$work/venv-$torch_version
    [ "$kind" = standin ] || venv=$work/venv-real-$torch_version
    if [ -n "${GPUTRACE_VENV:-}" ]; then venv=$GPUTRACE_VENV; else install_torch "$venv"; fi
    site=$(site_packages "$venv")
    exec 9>"$work/lock" # what is built is shared by the versions
    flock 9
    build_all
    exec 9>&- 8>&-
    [ -z "$print" ] || print_value "$print"
}

main "$@"
