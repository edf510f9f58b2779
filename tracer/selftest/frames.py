# SPDX-License-Identifier: Apache-2.0
# A Python program of gputrace's own whose stacks it knows, see program.S: for each number on its standard input it calls itself as often,
# through C code of Python's in between, then a function of the library that is its argument. Before that it writes, in one line, what
# its frames are, from the leaf on: the name of the function and the line that runs.
import ctypes, json, sys

step = ctypes.CDLL(sys.argv[1]).step
step.argtypes = [ctypes.c_long, ctypes.c_long]

def frames(f):
    while f:
        yield f.f_code.co_name, f.f_lineno
        f = f.f_back

def leaf(n):
    print(json.dumps(list(frames(sys._getframe()))), flush=True); step(n, 0)

def through_c(n):
    return list(map(lambda _: descend(n - 1), [0]))

def descend(n):
    if n == 0:
        return leaf(4)
    return through_c(n) if n % 2 else descend(n - 1)

print("[]", flush=True)
for line in sys.stdin:
    descend(int(line))
    print("[]", flush=True)
