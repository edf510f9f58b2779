"""dtrace for tests: it takes the printf formats of the script that it is given, and prints by them what a process would have done, as mode
says: events of two processors out of order, drops, lines that are cut, garbage, an early end."""
import os
import re
import signal
import sys
import time

assert sys.argv[1:5] == ["-Z", "-x", "mangled", "-p"] and sys.argv[6] == "-s", sys.argv
target, script, mode = int(sys.argv[5]), open(sys.argv[7]).read(), os.environ["GPUTRACE_FAKE_DTRACE"]
formats = {f.split("|")[1][0]: f.replace("\\n", "\n") for f in re.findall(r'printf\("(GPT\|[^"]*)"', script)}
assert set(formats) == {"B", "A", "E", "F", "R"} | (set("HMUPD") if "objc$target" in script else set()), formats
if mode == "nometal" and "objc$target" in script:
    print("dtrace: failed to compile script x.d: line 12: invalid probe specifier", file=sys.stderr)
    sys.exit(1)
STACK = """
              libtorch_cpu.dylib`__ZN2at6detail9empty_mpsEN3c108ArrayRefIxEE+0x24
              libtorch_python.dylib`0x1234
              Python`_PyEval_EvalFrameDefault+0x5a10
              Python`Py_BytesMain+0x29
              0x18f0d3154
"""
REFUSALS = {
    "root": "dtrace: failed to initialize dtrace: DTrace requires additional privileges",
    "hardened": f"dtrace: failed to grab pid {target}: the current security restriction (system integrity protection enabled) prevents dtrace "
                "from attaching to an executable not signed with the [com.apple.security.get-task-allow] entitlement",
    "rosetta": f"dtrace: failed to grab pid {target}: DTrace cannot instrument translated processes",
    "compile": "dtrace: failed to compile script x.d: line 3: syntax error near \"ustack\"",
    "silent": "",
}
clock = 10**12
live = 0


def out(text):
    sys.stdout.write(text)
    sys.stdout.flush()


def err(text):
    print(text, file=sys.stderr, flush=True)


def alloc(at, address, size, stack=STACK, end=True):
    return formats["A"].replace("%x", "%x") % (at, 7, address, size) + stack + (formats["E"] if end else "")


def free(at, address):
    return formats["F"] % (at, 7, address)


err("dtrace: system integrity protection is on, some features will not be available\n")
if mode in REFUSALS:
    err(REFUSALS[mode])
    sys.exit(1)
out(formats["B"] % (clock, target))
if mode == "early":
    out(alloc(clock + 1000, 0x1000, 4096))
    err("dtrace: processing aborted: Abort due to systemic unresponsiveness")
    sys.exit(1)
out(free(clock + 10, 0xdead00))  # of what was allocated before
for i in range(100):  # each step keeps 4096 bytes, and frees the rest; the processor that frees is read first
    at = clock + 1000 + 1000 * i
    temporary = alloc(at + 1, 0x700000, 100_000 + i)
    kept = alloc(at + 2, 0x100000 + 0x1000 * i, 4096)
    if i % 2:
        out(free(at + 3, 0x700000) + kept + temporary)
    else:
        out(temporary + kept + free(at + 3, 0x700000))
if mode == "heaps":
    def line(kind, at, *numbers):
        return formats[kind] % (at, 7, *numbers) + (STACK + formats["E"] if kind in "RHM" else "")

    at = clock + 500_000
    MIB = 1 << 20
    out(line("H", at, 0x5000, 32 * MIB) * 2)  # by two initialisers of one object
    out(line("H", at + 1, 0x6000, 8 * MIB))
    for i in range(3):
        out(line("U", at + 10 + 2 * i, 0x51000 + i, 2 * MIB, 0x5000, 2 * MIB * i) + alloc(at + 11 + 2 * i, 0x51000 + i, 2 * MIB - 100))
    out(free(at + 20, 0x51000) + alloc(at + 21, 0x51000, MIB))  # the buffer is handed out again, whole
    out(line("M", at + 22, 0x7000, 5 * MIB))
    out(line("R", at + 23, 3 << 30))
    out(line("H", at + 24, 0, 64 * MIB))  # refused by Metal
    out(line("P", at + 25, 0x6000) + line("D", at + 26, 0x6000))
    out(line("H", at + 27, 0x6000, 16 * MIB))  # at the address of that
    out(alloc(at + 28, 0x51001, MIB))  # whose end was dropped
if mode == "losses":
    err("dtrace: 12 drops on CPU 3")
    err("dtrace: 3 dynamic variable drops with non-empty dirty list")
    out("a line of the program's own\n" + "x" * 200_000 + "\n")
    out("GPT|A|nonsense|1|2|3\n")
    out(alloc(clock + 900_000, 0x900000, 8192, "\n".join(STACK.split("\n")[:3])[:-3], end=False))
    out(free(clock + 900_001, 0x900000)[:-1] + "zz\n")  # behind what was cut
    out(free(clock + 900_002, 0xbad))
signal.signal(signal.SIGINT, lambda *_: sys.exit(0))
if mode != "stop":
    os.kill(target, signal.SIGKILL if mode != "cut" else 0)
if mode == "cut":
    out(alloc(clock + 900_000, 0x900000, 8192, STACK[:100], end=False).rstrip("\n"))
    os._exit(0)
while os.path.exists(f"/proc/{target}"):
    time.sleep(0.01)
err(f"dtrace: pid {target} has exited")
