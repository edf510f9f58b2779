"""A training job on the fake MPS device: parameters, and steps with activations, gradients and one batch that is kept by mistake. Of each
step it writes what is live, by its own books: one line of JSON, into the file that is named first."""
import ctypes
import json
import os
import sys

lib = ctypes.CDLL(os.environ["GPUTRACE_FAKE_TORCH"])
lib.torch_empty.restype, lib.torch_empty.argtypes = ctypes.c_void_p, [ctypes.c_size_t, ctypes.c_int]
lib.torch_free.restype, lib.torch_free.argtypes = None, [ctypes.c_void_p]
live = 0


class Tensor:
    def __init__(self, n):
        global live
        self.n, self.p = n, lib.torch_empty(n, 0)
        if self.p is None:
            raise RuntimeError(f"MPS backend out of memory. Tried to allocate {n} bytes")
        live += n

    def __del__(self):
        global live
        if self.p is not None:
            lib.torch_free(self.p)
            live -= self.n


class Linear:
    def __init__(self, n):
        self.weight = Tensor(n * n * 4)
        self.n = n

    def forward(self, x):
        return Tensor(x.n)


class Model:
    def __init__(self):
        self.layers = [Linear(300 + 100 * i) for i in range(4)]

    def forward(self, x):
        kept = [x]
        for layer in self.layers:
            kept.append(layer.forward(kept[-1]))
        return kept


history = []


def train_step(model, i, leak):
    x = Tensor(700_000)
    activations = model.forward(x)
    gradients = [Tensor(layer.weight.n) for layer in reversed(model.layers)]
    if leak:
        history.append(Tensor(leak))
    del activations, gradients


def main():
    out = open(sys.argv[1], "w", buffering=1)
    rounds, leak = int(sys.argv[2]), int(sys.argv[3])
    Tensor(100)  # with it the device is made, and PyTorch's allocator found
    model = Model()
    for i in range(rounds):
        train_step(model, i, leak)
        out.write(json.dumps({"step": i, "live": live}) + "\n")
    if "oom" in sys.argv:
        history.append(Tensor(1_500_000_000))
        history.append(Tensor(400_000_000))


if __name__ == "__main__":
    main()
