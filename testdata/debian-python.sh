#!/bin/bash
# debian-python.sh VERSION: unpack the CPython 3.14 or 3.15 of Debian 14 into .work/ beside this file, with the libraries that it needs,
# and print its folder: bin/python3.14 runs it, include/python3.14 has its headers.
#
# pyenv, which the other versions come from, builds each from source. Debian's is static, stripped and not relocatable.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source-path=SCRIPTDIR
. "$here/debian-unpack.sh"
version=${1:?usage: debian-python.sh VERSION}

# finish writes the script that runs it with its own libc, because this machine's is older. The script finds its folder, which may be moved.
finish() {
    mkdir "$new/bin"
    cat >"$new/bin/python$version" <<END
#!/bin/sh
PYTHONHOME=\$(cd "\$(dirname "\$0")/../root/usr" && pwd)
export PYTHONHOME
lib=\$PYTHONHOME/lib/x86_64-linux-gnu
exec "\$lib/ld-linux-x86-64.so.2" --library-path "\$lib" "\$PYTHONHOME/bin/python$version" "\$@"
END
    chmod +x "$new/bin/python$version"
    ln -s root/usr/include "$new/include"
}

unpack "${GPUTRACE_WORK:-$here/.work}/debian-python$version" "python$version-minimal" "libpython$version-minimal" \
    "libpython$version" "libpython$version-stdlib" "libpython$version-dev" libc6 libexpat1 zlib1g libffi8
