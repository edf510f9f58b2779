#!/bin/bash
# debian-unpack.sh: to be sourced. unpack FOLDER PACKAGE... unpacks packages of Debian 14, or of the suite in $suite and the architecture
# in $architecture, into FOLDER/root, with a libc of their own where they name one, and has finish FOLDER make what it needs beside that. Nothing is installed. Idempotent. Each package is checked
# by apt against the suite's signature.
set -euo pipefail
suite=${suite:-forky}
architecture=${architecture:-$(dpkg --print-architecture)}

die() {
    echo "$(basename "$0" .sh): $*" >&2
    exit 1
}

# mirror is where this machine gets its own Debian packages.
mirror() {
    # shellcheck disable=SC2016 # apt-get expands them
    apt-get indextargets --format '$(REPO_URI) $(CODENAME)' 'Created-By: Packages' | sed -n '/-security$/d;s/ [a-z]*$//p' | head -n 1
}

# apt_get runs apt-get with lists and settings of its own.
apt_get() {
    apt-get -q -o "Dir::Etc::sourcelist=$new/apt/sources.list" -o Dir::Etc::sourceparts=- -o "Dir::State::lists=$new/apt/lists" \
        -o "Dir::State::status=$new/apt/status" -o "Dir::Cache=$new/apt" -o APT::Sandbox::User=root \
        -o "APT::Architecture=$architecture" -o "APT::Architectures=$architecture" -o Acquire::Languages=none -o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false "$@" >&2
}

# fetch FOLDER PACKAGE...
fetch() {
    local folder=$1 url deb
    shift
    url=$(mirror)
    [ -n "$url" ] || die "no Debian mirror in the sources of apt"
    new=$(mktemp -d "$folder.XXXXXX")
    mkdir -p "$new/apt/lists/partial" "$new/apt/archives/partial" "$new/root"
    touch "$new/apt/status"
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $url $suite main" >"$new/apt/sources.list"
    apt_get update
    (cd "$new/apt/archives" && apt_get download "$@")
    for deb in "$new"/apt/archives/*.deb; do dpkg -x "$deb" "$new/root"; done
    finish "$folder"
    rm -rf "$new/apt" "$folder"
    mv "$new" "$folder"
}

# unpack FOLDER PACKAGE... prints FOLDER.
unpack() {
    local folder=$1 log
    mkdir -p "$(dirname "$folder")"
    exec 9>"$folder.lock"
    flock 9 # several tests may want it at the same time
    if [ ! -e "$folder/root" ]; then
        command -v apt-get >/dev/null || die "there is no apt-get here; packages of Debian are what is tested"
        log=$(fetch "$@" 2>&1) || die "could not unpack $2 of Debian: $log"
    fi
    echo "$folder"
}
