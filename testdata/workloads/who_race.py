"""A job at full speed that writes down, for every name it gives to memory, from when to when the name was right.

    who_race.py --ask DIR     prints READY <pid> and trains until DIR/stop exists; then DONE

DIR/names has a name a line. DIR/log has records of three 64-bit numbers: a time (CLOCK_BOOTTIME, nanoseconds), the line of the
name plus 1, negative when it ends, and the address. A name begins with the time before it was given, and ends with the time
after it was taken away. Names are spelled by their steps: "ring[3]", "step() local loss.grad_fn.next[0].saved".
"""

import argparse
import os
import struct
import time

import torch
from torch import nn

BOXES = 24
WIDTH = 64
LAYERS = 4
PERIODS = 11  # a box is filled anew every 1, 2, 4, ... steps


def now():
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class Log:
    """The names that are right at the moment, and what was."""

    def __init__(self, folder):
        self.names, self.numbers = open(os.path.join(folder, "names"), "w"), {}
        self.records = open(os.path.join(folder, "log"), "wb")
        self.current = {}

    def record(self, at, name, sign, address):
        number = self.numbers.get(name)
        if number is None:
            number = self.numbers[name] = len(self.numbers) + 1
            self.names.write(name + "\n")
        self.records.write(struct.pack("<QqQ", at, sign * number, address))

    def begin(self, at, name, tensor):
        """From at on, the name may be right."""
        address = tensor.untyped_storage().data_ptr()
        self.current.setdefault(name, []).append(address)
        self.record(at, name, 1, address)

    def end(self, name):
        """Until now, the name may have been right."""
        at = now()
        for address in self.current.pop(name, ()):
            self.record(at, name, -1, address)

    def end_all(self, prefix):
        for name in [n for n in self.current if n.startswith(prefix)]:
            self.end(name)

    def finish(self):
        self.names.close()
        self.records.close()


class Plain:
    pass


log = None
ring = [None] * BOXES
table = {}
holder = Plain()
holder.inner = Plain()
sizes = 0


def fresh():
    """A tensor of a size that comes again only after a while."""
    global sizes
    sizes = (sizes + 1) % 4096
    return torch.empty(256 * (sizes + 1), dtype=torch.uint8, device="cuda")


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))

    def forward(self, x):
        name = "Model.forward() local x"
        log.begin(now(), name, x)
        for i in range(LAYERS):
            at = now()
            x = torch.tanh(self.layers[i](x))
            log.end(name)
            log.begin(at, name, x)
        out = x
        log.begin(at, "Model.forward() local out", out)
        return out


def log_graph(at, name, node):
    """What the nodes below one have saved, by the way to them."""
    if node is None:
        return
    for attribute in dir(node):
        if attribute.startswith("_saved_") and isinstance(getattr(node, attribute), torch.Tensor):
            log.begin(at, name + ".saved", getattr(node, attribute))
    if hasattr(node, "variable"):
        log.begin(at, name + ".variable", node.variable)
        return
    for i, (below, _) in enumerate(node.next_functions):
        log_graph(at, "%s.next[%d]" % (name, i), below)


def each_parameter():
    """The name of each parameter, and the same with dots. The parameters themselves are held by nothing but the model."""
    for i in range(LAYERS):
        for kind in ("weight", "bias"):
            yield "model.layers[%d].%s" % (i, kind), "layers.%d.%s" % (i, kind)


def step():
    at = now()
    x = torch.empty(32, WIDTH, device="cuda")
    log.begin(at, "step() local x", x)
    at = now()
    log.record(at, "forward", 1, 0)
    loss = model(x).square().mean()
    log.end_all("Model.forward()")
    log.record(now(), "forward", -1, 0)
    log.begin(at, "step() local loss", loss)
    log_graph(at, "step() local loss.grad_fn", loss.grad_fn)
    at = now()
    optimizer.zero_grad()
    for name, _ in each_parameter():
        log.end(name + ".grad")
    at = now()
    loss.backward()
    log.end_all("step() local loss.grad_fn")
    for name, dotted in each_parameter():
        log.begin(at, name + ".grad", model.get_parameter(dotted).grad)
    optimizer.step()
    del x
    log.end("step() local x")
    loss = None
    log.end("step() local loss")


def fill(number):
    """Fill the boxes whose turn it is."""
    for i in range(BOXES):
        if number % (1 << i % PERIODS) == 0:
            replace("ring[%d]" % i, lambda tensor, i=i: ring.__setitem__(i, tensor))
            replace("table['k%d']" % i, lambda tensor, i=i: table.__setitem__("k%d" % i, tensor))
    if number % 64 == 0:
        replace("holder.inner.last", lambda tensor: setattr(holder.inner, "last", tensor))


def replace(name, put):
    at = now()
    tensor = fresh()
    # While this function has it, it is a name of its own.
    log.begin(at, "replace() local tensor", tensor)
    log.begin(at, "fill.<locals>.<lambda>() local tensor", tensor)
    put(tensor)
    log.end(name)
    log.begin(at, name, tensor)
    del tensor
    log.end("replace() local tensor")
    log.end("fill.<locals>.<lambda>() local tensor")


def chunks():
    while True:
        at = now()
        chunk = fresh()
        log.end("stream chunks() local chunk")
        log.end("chunks() local chunk")
        log.begin(at, "stream chunks() local chunk", chunk)
        log.begin(at, "chunks() local chunk", chunk)
        yield


def log_lasting():
    for i, (name, dotted) in enumerate(each_parameter()):
        log.begin(0, name, model.get_parameter(dotted))
        log.begin(0, "optimizer.param_groups[0]['params'][%d]" % i, model.get_parameter(dotted))
        for key in optimizer.state[model.get_parameter(dotted)]:
            if optimizer.state[model.get_parameter(dotted)][key].is_cuda:
                for parameter in (name, "optimizer.param_groups[0]['params'][%d]" % i):
                    log.begin(0, "optimizer.state[%s]['%s']" % (parameter, key), optimizer.state[model.get_parameter(dotted)][key])


def main():
    global log, model, optimizer, stream
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--ask", metavar="DIR", required=True)
    folder = parser.parse_args().ask
    log = Log(folder)
    model = Model().cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    stream = chunks()
    step()
    log_lasting()
    number = 0
    while not os.path.exists(os.path.join(folder, "stop")):
        step()
        fill(number)
        if number % 16 == 0:
            next(stream)
        number += 1
        if number == 100:
            print("READY", os.getpid(), flush=True)
    log.finish()
    print("DONE", number, flush=True)


if __name__ == "__main__":
    main()
