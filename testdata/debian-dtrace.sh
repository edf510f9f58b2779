#!/bin/bash
# debian-dtrace.sh: unpack the dtrace of Debian 14 into .work/ beside this file, with the libraries that it needs, and print its folder:
# bin/dtrace is a compiler of D, and as root on a kernel with uprobes a tracer. It is of the same origin as that of macOS, and
# takes the same arguments but for "-x mangled", which is left out.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source-path=SCRIPTDIR
. "$here/debian-unpack.sh"

# finish FOLDER writes the script that runs it with its own libc. Its folder of D libraries is one without any: those are of the kernel's
# types, which not every kernel has. Where it traces it needs debugfs, which is mounted for it alone.
finish() {
    mkdir "$new/bin" "$new/d"
    cp "$new/root/usr/lib/x86_64-linux-gnu/dtrace/bpf_dlib.o" "$new/d"
    cat >"$new/bin/dtrace" <<END
#!/bin/bash
here=\$(cd "\$(dirname "\$0")/.." && pwd)
lib=\$here/root/usr/lib/x86_64-linux-gnu
args=()
while [ \$# -gt 0 ]; do
    if [ "\$1 \${2:-}" = "-x mangled" ]; then shift; else args+=("\$1"); fi
    shift
done
[ -e /sys/kernel/debug/tracing ] || [ -n "\${GPUTRACE_DEBUGFS:-}" ] ||
    exec env GPUTRACE_DEBUGFS=mounted unshare -m sh -c 'mount -t debugfs debugfs /sys/kernel/debug && exec "\$@"' sh "\$0" "\${args[@]}"
exec "\$lib/ld-linux-x86-64.so.2" --library-path "\$lib" "\$here/root/usr/sbin/dtrace" -x "syslibdir=\$here/d" "\${args[@]}"
END
    chmod +x "$new/bin/dtrace"
}

unpack "${GPUTRACE_WORK:-$here/.work}/debian-dtrace" dtrace libdtrace2 libc6 libctf-nobfd0 libelf1t64 libfuse3-4 libpcap0.8t64 libpfm4 \
    zlib1g libzstd1 libsystemd0 libdbus-1-3 libsframe3 libgcc-s1
