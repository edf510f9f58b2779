"""How long a script trains: a number of steps, a number of seconds, or until it is killed."""

import itertools
import time


def arguments(parser, steps):
    """Add the options that all scripts share to an argparse parser."""
    parser.add_argument("--steps", type=int, default=steps, help="training steps; 0: until killed")
    parser.add_argument("--seconds", type=float, help="stop after this time")
    parser.add_argument("--workers", type=int, default=0, help="DataLoader worker processes")
    return parser


def batches(loader):
    """Repeat a loader for ever, one epoch behind the other."""
    while True:
        yield from loader


def counted(options):
    """Yield the numbers of the steps, from 1, until the options say stop."""
    end = time.monotonic() + options.seconds if options.seconds else float("inf")
    for step in itertools.count(1):
        yield step
        if step == options.steps or time.monotonic() >= end:
            return
