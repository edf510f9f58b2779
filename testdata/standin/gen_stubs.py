#!/usr/bin/env python3
"""Write stub sources for the NVIDIA libraries that a PyTorch wheel imports: one weak function per imported symbol.

usage: gen_stubs.py TORCH_LIB_DIR OUT_DIR     writes OUT_DIR/<soname>.c, .map and preload, prints the sonames

A stub returns 0. One whose name says "create" also stores a handle (writable memory) where its first argument points.
libs/*.c and runtime/*.c hold strong definitions of the calls whose outputs PyTorch reads.
"""
import pathlib
import re
import subprocess
import sys

# Which library a symbol belongs to, by the start of its name; the first match counts.
LIBRARY_OF = [
    (re.compile(prefix), library)
    for prefix, library in [
        (r"cublasLt", "libcublasLt.so"),
        (r"cublas", "libcublas.so"),
        (r"cudnn", "libcudnn.so"),
        (r"cufft", "libcufft.so"),
        (r"curand", "libcurand.so"),
        (r"cusparseLt", "libcusparseLt.so"),
        (r"cusparse", "libcusparse.so"),
        (r"cusolver", "libcusolver.so"),
        (r"cupti", "libcupti.so"),
        (r"nvtx", "libnvToolsExt.so"),
        (r"nvrtc", "libnvrtc.so"),
        (r"p?nccl", "libnccl.so"),
        (r"cuFile", "libcufile.so"),
        (r"nvshmem", "libnvshmem_host.so"),
        (r"(__)?cuda[A-Z]", "libcudart.so"),
    ]
]
RESULT = {"libcupti.so": 15}  # CUPTI_ERROR_NOT_INITIALIZED: no profiler on this machine
DRIVER = "libcuda.so"  # written by hand, not generated


def output_of(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def needed(lib):
    return re.findall(r"NEEDED.*\[(lib(?:cu|nv|nccl)[^]]*)\]", output_of("readelf", "-d", lib))


def imports(lib):
    """Yields (library, symbol, version, is_object) for every undefined symbol that is NVIDIA's."""
    for line in output_of("readelf", "--dyn-syms", "-W", lib).splitlines():
        fields = line.split()
        if len(fields) < 8 or fields[6] != "UND":
            continue
        name, _, version = fields[7].partition("@")
        library = next((library for prefix, library in LIBRARY_OF if prefix.match(name)), None)
        if library:
            yield library, name, version.strip("@"), fields[3] == "OBJECT"


def stub(name, is_object, result):
    if is_object:
        return f"WEAK long {name};"
    if re.search(r"(?<!Descriptor)Create(?!dDescr)", name) and not result:
        return f"WEAK long {name}(void **h) {{ if (h) *h = handle; return 0; }}"
    if name.endswith("String"):
        return f'WEAK const char *{name}(void) {{ return "stand-in"; }}'
    return f"WEAK long {name}(void) {{ return {result}; }}"


def base_of(soname):
    """The library's plain name: PyTorch 1.13 bundles a libcudart-e409450e.so.11.0."""
    return re.sub(r"-[0-9a-f]{8}$", "", soname[: soname.index(".so")]) + ".so"


def unnamed(sonames, symbols):
    """Libraries that are used but that nothing names: NVIDIA's libcublas.so brings its libcublasLt.so of the same version."""
    if "libcublasLt.so" in symbols and not any(base_of(s) == "libcublasLt.so" for s in sonames):
        return {s.replace("libcublas.so", "libcublasLt.so") for s in sonames if base_of(s) == "libcublas.so"}
    return set()


def write_library(out, soname, symbols):
    base = base_of(soname)
    marker = re.sub(r"\W", "_", base)
    lines = ["#define WEAK __attribute__((weak))", "static char handle[65536] __attribute__((unused));"]
    lines.append(f"int standin_{marker} = 1;")
    lines += [stub(name, is_object, RESULT.get(base, 0)) for name, (_, is_object) in sorted(symbols.items())]
    (out / f"{soname}.c").write_text("\n".join(lines) + "\n")
    # NVIDIA gives each library one version node, by its soname; NVSHMEM's is named otherwise, so take what is imported.
    node = next((version for _, (version, _) in sorted(symbols.items()) if version), soname)
    (out / f"{soname}.map").write_text(f"{node} {{ global: *; }};\n")


def main():
    torch_lib, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    sonames, symbols = set(), {}
    for lib in sorted(torch_lib.glob("*.so")):
        sonames.update(needed(lib))
        for library, name, version, is_object in imports(lib):
            symbols.setdefault(library, {})[name] = (version, is_object)
    preload = unnamed(sonames, symbols)
    for soname in sorted(sonames | preload):
        base = base_of(soname)
        if base == DRIVER:
            continue
        if (torch_lib / soname).exists():  # bundled in the wheel
            if base != "libcudart.so":
                continue
            preload.add(soname)  # NVIDIA's does not run on our driver, and PyTorch's DT_RPATH finds it first
        write_library(out, soname, symbols.get(base, {}))
        print(soname)
    (out / "preload").write_text("".join(f"{soname}\n" for soname in sorted(preload)))


main()
