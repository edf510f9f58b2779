#!/bin/bash
# debian-python.sh: unpack the CPython 3.14 of Debian 14 into .work/ beside this file, with the libraries that it needs, and
# print its folder: bin/python3.14 runs it, include/python3.14 has its headers. Nothing is installed. Idempotent.
#
# pyenv, which the other versions come from, builds each from source. Debian's is static, stripped and not relocatable.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
version=3.14
suite=forky
packages="python$version-minimal libpython$version-minimal libpython$version-stdlib libpython$version-dev
    libc6 libexpat1 zlib1g libffi8"
folder=${GPUTRACE_WORK:-$here/.work}/debian-python$version

die() {
    echo "debian-python: $*" >&2
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
        -o Acquire::Languages=none -o Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false "$@" >&2
}

# write_runner writes the script that runs it with its own libc: this machine's is older.
write_runner() {
    local lib=$folder/root/usr/lib/x86_64-linux-gnu
    mkdir "$new/bin"
    cat >"$new/bin/python$version" <<END
#!/bin/sh
export PYTHONHOME='$folder/root/usr'
exec '$lib/ld-linux-x86-64.so.2' --library-path '$lib' '$folder/root/usr/bin/python$version' "\$@"
END
    chmod +x "$new/bin/python$version"
    ln -s root/usr/include "$new/include"
}

install() {
    local url deb
    url=$(mirror)
    [ -n "$url" ] || die "no Debian mirror in the sources of apt"
    new=$(mktemp -d "$folder.XXXXXX")
    mkdir -p "$new/apt/lists/partial" "$new/apt/archives/partial" "$new/root"
    touch "$new/apt/status"
    echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $url $suite main" >"$new/apt/sources.list"
    apt_get update
    # shellcheck disable=SC2086 # a list of words
    (cd "$new/apt/archives" && apt_get download $packages)
    for deb in "$new"/apt/archives/*.deb; do dpkg -x "$deb" "$new/root"; done
    write_runner
    rm -rf "$new/apt" "$folder"
    mv "$new" "$folder"
}

main() {
    mkdir -p "$(dirname "$folder")"
    exec 9>"$folder.lock"
    flock 9 # several tests may want it at the same time
    if [ ! -e "$folder/bin/python$version" ]; then
        command -v apt-get >/dev/null || die "there is no apt-get here; the CPython $version of Debian is what is tested"
        local log
        log=$(install 2>&1) || die "could not unpack CPython $version of Debian: $log"
    fi
    echo "$folder"
}

main
