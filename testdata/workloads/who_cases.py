"""What the programs who_*.py share: each of their cases holds device memory in one particular way, and says how.

    who_python.py --list                    the names of the cases, a line for each run: what can be together is
    who_python.py --cases NAMES --ask DIR   makes them, prints READY <pid>, answers questions in DIR (who_answer.py)

Several cases (separated by commas) are made one inside the other: where one would wait, the next begins.
A case calls expect(tensor, words) for the tensors that it is about and hold() where it is to be looked at. DIR/expected has, for
each tensor, its address and the words that the name of its holder must contain, in that order.
"""

import argparse
import os

import torch
import who_answer

CASES = {}
ALONE = set()
BYTES = 3 << 20  # of a block; each is 512 bytes larger than the one before

_expected = []
_waiting = []
_desk = None
_count = 0


def case(function):
    """Register a case under its function's name."""
    CASES[function.__name__] = function
    return function


def alone(function):
    """Register a case that must have a process of its own."""
    ALONE.add(function.__name__)
    return case(function)


def block(**options):
    """A new tensor on the device."""
    global _count
    _count += 1
    return torch.empty(BYTES + 512 * _count, dtype=torch.uint8, device="cuda", **options)


def floats(*shape, **options):
    """A new tensor that can have a gradient."""
    return torch.ones(*shape, device="cuda", **options)


def expect(tensor, *words):
    """Say what the name of a tensor's holder must contain. It keeps no reference."""
    _expected.append({"address": tensor.untyped_storage().data_ptr(), "words": list(words)})


def expect_kind(tensor, category, *words):
    """The same for memory that no path leads to: what it must be called."""
    expect(tensor, *words)
    _expected[-1]["category"] = category


def hold():
    """Stay here until the test is done."""
    if _waiting:
        return CASES[_waiting.pop(0)]()
    who_answer.publish(os.path.join(_desk.folder, "expected"), _expected)
    print("READY", os.getpid(), flush=True)
    return _desk.serve()


def main(description):
    global _desk
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--list", action="store_true", help="print the names of the cases")
    parser.add_argument("--cases", metavar="NAME,NAME", type=lambda text: text.split(","))
    parser.add_argument("--ask", metavar="DIR", help="answer questions in DIR")
    options = parser.parse_args()
    if options.list:
        print(",".join(name for name in CASES if name not in ALONE), *sorted(ALONE), sep="\n")
        return
    _desk = who_answer.Desk(options.ask)
    torch.cuda.init()
    _waiting.extend(options.cases)
    hold()
