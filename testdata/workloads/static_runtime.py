"""Makes NVIDIA's runtime jump to the stand-in's, in the running process, if it is linked statically.

That runtime only runs on NVIDIA's driver. CuPy's wheel keeps the names of its functions. If another wheel has the same build of the
runtime without names, each function is found by its code: all bytes are equal except the distances to other functions and to data.
"""

import ctypes
import mmap
import os
import re
import struct
import subprocess

MARK = b"/cudart.shm."  # a name that the runtime gives to files
JUMP = b"\xff\x25" + bytes(4)  # jmp *0(%rip), and the address behind it


def names(file):
    """Returns the address and the size of each entry point in the table of local symbols."""
    table = subprocess.run(["nm", "-S", file], capture_output=True, text=True, check=True).stdout
    return {name: (int(at, 16), int(size, 16)) for at, size, name in re.findall(r"^(\w+) (\w+) t (cuda\w+)$", table, re.M)}


def code(file):
    """Returns the address of the file's section .text, and its content."""
    table = subprocess.run(["readelf", "-SW", file], capture_output=True, text=True, check=True).stdout
    address, offset, size = (int(n, 16) for n in re.search(r"] \.text +PROGBITS +(\w+) (\w+) (\w+)", table).groups())
    with open(file, "rb") as f:
        f.seek(offset)
        return address, f.read(size)


def patterns(file):
    """Returns for each entry point its address and an expression that matches its code anywhere."""
    known = names(file)
    first, last = min(a for a, _ in known.values()), max(a + n for a, n in known.values())
    command = ["objdump", "-dw", f"--start-address={first}", f"--stop-address={last}", file]
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.findall(r"^ *(\w+):\t((?:\w\w )+) *\t?(.*)$", listing, re.M)
    at = {int(a, 16): (bytes.fromhex(b), text) for a, b, text in found}
    out = {}
    for name, (begin, size) in known.items():
        expression, pc = b"", begin
        while pc < begin + size and pc in at:
            instruction, text = at[pc]
            pc += len(instruction)
            expression += masked(instruction, text, pc, begin, begin + size)
        if pc >= begin + size:
            out[name] = begin, re.compile(expression, re.DOTALL)
    return out


def masked(instruction, text, following, begin, end):
    """Returns an expression for an instruction: a distance to something outside of the function may be any."""
    m = re.search(r"\(%rip\).*# (\w+)", text) or re.match(r"(?:call|j\w+) +(\w+)", text)
    target = int(m[1], 16) if m else begin
    if begin <= target < end:
        return re.escape(instruction)
    distance = struct.pack("<i", target - following)
    before, _, after = instruction.rpartition(distance)
    return re.escape(before) + b"...." + re.escape(after)


def located(wanted, address, text):
    """Yields the name and the address of each function of wanted that is in the code, once."""
    deltas = [0]
    for name, (at, expression) in sorted(wanted.items(), key=lambda x: x[1][0]):
        hit = next((m for d in deltas if 0 <= at + d - address and (m := expression.match(text, at + d - address))), None)
        if not hit:
            hit = expression.search(text)
            if not hit or expression.search(text, hit.start() + 1):
                continue
            deltas.insert(0, hit.start() + address - at)
        yield name, hit.start() + address


def loaded_at(file):
    with open("/proc/self/maps", encoding="utf-8") as maps:
        return min(int(line.split("-")[0], 16) for line in maps if line.rstrip().endswith(os.path.realpath(file)))


def linked():
    """Returns the mapped files that contain the runtime."""
    with open("/proc/self/maps", encoding="utf-8") as maps:
        files = {line.split(None, 5)[5].rstrip() for line in maps if " r-xp " in line and line.rstrip().endswith(".so")}
    return [file for file in sorted(files) if has_mark(file)]


def has_mark(file):
    with open(file, "rb") as f, mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ) as content:
        return content.find(MARK) >= 0


def redirect(named, target):
    """Makes each runtime in the process jump to that of target, a library. named is a file with the runtime and its names."""
    wanted = patterns(named)
    for file in linked():
        base, found = loaded_at(file), dict(located(wanted, *code(file)))
        if len(found) < len(wanted):
            raise OSError(f"{file}: {len(found)} functions of the runtime, of {len(wanted)}")
        for name, at in found.items():
            to = getattr(target, name, None)
            if to is not None:
                put(base + at, ctypes.cast(to, ctypes.c_void_p).value)


def put(at, target):
    page = at & -mmap.PAGESIZE
    every = mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
    if ctypes.CDLL(None).mprotect(ctypes.c_void_p(page), ctypes.c_size_t(2 * mmap.PAGESIZE), every):
        raise OSError("mprotect")
    ctypes.memmove(at, JUMP + struct.pack("<Q", target), 14)
