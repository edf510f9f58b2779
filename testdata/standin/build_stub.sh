#!/bin/bash
# build_stub.sh SONAME: link one stub library into $B/lib. Called by the Makefile, which sets B, CC and CFLAGS.
set -euo pipefail
soname=$1
name=${soname%%.so*}
name=${name#lib}
name=${name%%-*} # a bundled library has a hash in its name
gen=$B/gen/$soname
sources=()
libs=()
flags=()
case $name in
cudart)
    major=${soname##*.so.}
    sources=(runtime/*.c)
    flags=(-DCUDART_MAJOR="${major%%.*}")
    [[ $soname != libcudart-* ]] || flags+=(-DREDIRECT_STATIC)
    ;;
*)
    # Libraries that own device memory call the driver directly, as NVIDIA's do.
    if [ -e "libs/$name.c" ]; then
        sources=("libs/$name.c")
        libs=("$B/lib/libcuda.so.1")
    fi
    ;;
esac
read -ra cflags <<<"$CFLAGS"
# Without prototypes and without builtins: a stub's name may be one that the compiler knows.
"$CC" "${cflags[@]}" -w -fno-builtin -c "$gen.c" -o "$gen.o"
"$CC" "${cflags[@]}" "${flags[@]}" -shared -Wl,-soname,"$soname" -Wl,--version-script="$gen.map" \
    "$gen.o" "${sources[@]}" "${libs[@]}" -o "$B/lib/$soname" -ldl -lpthread
