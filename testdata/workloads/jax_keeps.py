"""A jitted function makes three arrays a step, of which the last is kept. Prints what JAX's own statistics have
gained, bytes in use and allocations, and then the bytes in use before and after.

jax_keeps.py DIR: begins when there is DIR/go, ends when there is DIR/hold.
"""

import os
import sys
import time

import jax
import jax._src.hardware_utils
import jax.numpy as jnp

# JAX looks for the device file of a GPU, which is not needed here.
jax._src.hardware_utils.has_visible_nvidia_gpu = lambda: True

STEPS = 250


@jax.jit
def twice(x):
    return x * 2 + 1


def wait_for(name):
    while not os.path.exists(os.path.join(sys.argv[1], name)):
        time.sleep(0.01)


def step(x, kept):
    y = twice(x)
    z = twice(y)
    kept.append(twice(z))
    kept[-1].block_until_ready()


def main():
    device = jax.devices()[0]
    x, kept = jnp.ones((512, 512), jnp.float32), []
    twice(x).block_until_ready()
    print("READY", os.getpid(), flush=True)
    wait_for("go")
    before = device.memory_stats()
    for _ in range(STEPS):
        step(x, kept)
        time.sleep(0.03)
    after = device.memory_stats()
    gained = [after[key] - before[key] for key in ("bytes_in_use", "num_allocs")]
    print("KEPT", *gained, before["bytes_in_use"], after["bytes_in_use"], flush=True)
    wait_for("hold")


main()
