"""Programs that confirm the leak detector: written after its thresholds were chosen, by somebody who did not choose them.

    confirm.py --case memoized --steps 100

Those of LEAKS keep more and more; those of HEALTHY do not, however it looks.
"""

import argparse
import collections
import ctypes
import functools
import random
import weakref

import loop
import sidecar
import torch
import torch.nn.functional as F
from torch import nn

WARM = 10  # steps before a leak begins


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--case", choices=[*LEAKS, *HEALTHY], required=True)
    loop.arguments(parser, steps=100)
    return sidecar.arguments(parser).parse_args()


class Encoder(nn.Module):
    """A small transformer over tokens."""

    def __init__(self, width=64, layers=2, words=100):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(width, 4, 2 * width, batch_first=True) for _ in range(layers))
        self.head = nn.Linear(width, words)

    def forward(self, tokens):
        hidden = self.words(tokens)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.head(hidden)


class Run:
    """What all cases share: a model, an optimizer, batches and the count of steps."""

    def __init__(self, options, side):
        self.options, self.side = options, side
        self.model = Encoder().cuda()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)

    def steps(self):
        for step in loop.counted(self.options):
            yield step
            self.side.step(step)
        self.side.finish()

    def tokens(self, length=16, batch=4):
        return torch.randint(0, 100, (batch, length)).cuda()

    def loss(self, tokens):
        return F.cross_entropy(self.model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())

    def update(self, loss):
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


# ---- they leak ----


def running_total(run):
    """The mean loss is computed of losses that still have their graphs."""
    total = 0
    for step in run.steps():
        loss = run.loss(run.tokens())
        run.update(loss)
        if step > WARM:
            total = total + run.loss(run.tokens())


def memoized(run):
    """A function without a bound on its cache, called with something that is new each time."""

    @functools.lru_cache(maxsize=None)
    def mask(step):
        return torch.ones(32, 32, device="cuda").tril()

    for step in run.steps():
        mask(max(step, WARM))
        run.update(run.loss(run.tokens()))


class Recorder:
    """Keeps what a layer puts out, by a hook."""

    def __init__(self, model):
        self.model, self.outputs = model, collections.defaultdict(list)

    def attach(self):
        self.model.layers[1].linear1.register_forward_hook(self.keep)

    def keep(self, module, _inputs, output):
        self.outputs[id(module)].append(output.detach().mean(0))


def hooks(run):
    """A hook that somebody forgot keeps a part of each output."""
    recorder = Recorder(run.model)
    for step in run.steps():
        if step == WARM:
            recorder.attach()
        run.update(run.loss(run.tokens()))


def sessions(run):
    """A server that never drops the state of a client."""
    clients = {}
    with torch.inference_mode():
        for step in run.steps():
            logits = run.model(run.tokens(batch=1))
            logits.argmax(-1).cpu()
            if step > WARM:
                clients["client-%d" % step] = {"state": logits[:, -1].clone(), "history": run.tokens(64, 1)}


def every_seventh(run):
    """Weights are kept for a plot, each seventh step, among batches of many sizes."""
    sizes, history = random.Random(11), []
    for step in run.steps():
        run.update(run.loss(run.tokens(sizes.randint(4, 48), sizes.randint(1, 6))))
        if step % 7 == 0:
            history.append(run.model.head.weight.detach().clone())


def pinned(run):
    """Batches in pinned memory are kept on the host."""
    kept = []
    for step in run.steps():
        batch = torch.randint(0, 100, (4, 16)).pin_memory()
        run.update(run.loss(batch.cuda(non_blocking=True)))
        if step > WARM:
            kept.append(batch)


def raw(run):
    """A library of its own takes device memory, and does not give it back."""
    runtime = ctypes.CDLL("libcudart.so.%s" % torch.version.cuda.split(".")[0])
    for step in run.steps():
        run.update(run.loss(run.tokens()))
        if step > WARM:
            take_scratch(runtime)


def take_scratch(runtime):
    pointer = ctypes.c_void_p()
    if runtime.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(1 << 20)):
        raise MemoryError("cudaMalloc")


def graph_of_state(run):
    """The state of a recurrent network is carried on without detach, in a chain that grows."""
    cell = nn.GRUCell(64, 64).cuda()
    state = torch.zeros(4, 64, device="cuda")
    for step in run.steps():
        run.update(run.loss(run.tokens()))
        state = cell(torch.randn(4, 64, device="cuda"), state if step > WARM else state.detach())


def slow_growth(run):
    """A context that gets longer with each step, made anew each time."""
    context = torch.zeros(4, 1, 64, device="cuda")
    for step in run.steps():
        run.update(run.loss(run.tokens()))
        context = torch.cat([context, torch.randn(4, 1, 64, device="cuda")], 1)


# ---- they do not ----


def truncated(run):
    """The same recurrent network, whose state is detached."""
    cell = nn.GRUCell(64, 64).cuda()
    state = torch.zeros(4, 64, device="cuda")
    for _ in run.steps():
        run.update(run.loss(run.tokens()))
        state = cell(torch.randn(4, 64, device="cuda"), state.detach())


def curriculum(run):
    """Sequences get longer for the first third, and stay so."""
    for step in run.steps():
        run.update(run.loss(run.tokens(4 + min(step, run.options.steps // 3))))


def dataset_on_device(run):
    """The samples of the first epoch stay on the device, for all later ones."""
    samples = {}
    for step in run.steps():
        key = step % 20
        if key not in samples:
            samples[key] = run.tokens()
        run.update(run.loss(samples[key]))


def least_recent(run):
    """A cache with a bound, that is full soon."""

    @functools.lru_cache(maxsize=8)
    def mask(length):
        return torch.ones(length, length, device="cuda").tril()

    lengths = random.Random(5)
    for _ in run.steps():
        length = lengths.randint(4, 40)
        mask(length)
        run.update(run.loss(run.tokens(length)))


def averaged_models(run):
    """Stochastic weight averaging, that begins late."""
    average = torch.optim.swa_utils.AveragedModel(run.model)
    for step in run.steps():
        run.update(run.loss(run.tokens()))
        if step > run.options.steps // 2:
            average.update_parameters(run.model)


def best_of(run):
    """Copies of the three best models are kept."""
    best = []
    for step in run.steps():
        loss = run.loss(run.tokens())
        run.update(loss)
        if step % 5 == 0:
            best.append((loss.item(), step, {k: v.clone() for k, v in run.model.state_dict().items()}))
            best = sorted(best, key=lambda entry: entry[:2])[:3]


def validated(run):
    """Predictions of an evaluation are gathered, concatenated and dropped, each 25 steps; the best are kept on the host."""
    scores = []
    for step in run.steps():
        run.update(run.loss(run.tokens()))
        if step % 25 == 0:
            run.model.eval()
            with torch.no_grad():
                outputs = [run.model(run.tokens()).cpu() for _ in range(12)]
            scores.append(torch.cat(outputs).mean())
            run.model.train()


def beams(run):
    """Tokens are searched for with several beams, with a cache for each request."""
    with torch.no_grad():
        for _ in run.steps():
            tokens = run.tokens(4, 1).repeat(3, 1)
            for _ in range(6):
                scores = run.model(tokens)[:, -1].log_softmax(-1)
                tokens = torch.cat([tokens, scores.topk(1).indices], 1)
            tokens.cpu()


def unfrozen(run):
    """Layers are trained one after the other, each from a tenth of the steps on."""
    for layer in run.model.layers:
        layer.requires_grad_(False)
    for step in run.steps():
        if step % (run.options.steps // 5) == 0 and step // (run.options.steps // 5) <= 2:
            run.model.layers[step // (run.options.steps // 5) - 1].requires_grad_(True)
        run.update(run.loss(run.tokens()))


def weakly(run):
    """What is registered by weak references goes with its batch."""
    registered = weakref.WeakValueDictionary()
    for step in run.steps():
        tokens = run.tokens()
        registered[step] = tokens
        run.update(run.loss(tokens))


def replayed(run):
    """A replay buffer that fills in the first third, then overwrites its oldest."""
    memory = collections.deque(maxlen=run.options.steps // 3)
    choice = random.Random(3)
    for _ in run.steps():
        memory.append(run.tokens())
        run.update(run.loss(choice.choice(memory)))


def clipped_and_logged(run):
    """Norms are logged as numbers, histograms once in ten steps."""
    history = []
    for step in run.steps():
        run.loss(run.tokens()).backward()
        norm = nn.utils.clip_grad_norm_(run.model.parameters(), 1.0)
        run.optimizer.step()
        run.optimizer.zero_grad()
        history.append(norm.item())
        if step % 10 == 0:
            history.append(torch.cat([p.detach().flatten() for p in run.model.parameters()]).cpu().histc(10))


LEAKS = {f.__name__: f for f in (running_total, memoized, hooks, sessions, every_seventh, pinned, raw, graph_of_state, slow_growth)}
HEALTHY = {
    f.__name__: f
    for f in (
        truncated, curriculum, dataset_on_device, least_recent, averaged_models, best_of, validated, beams, unfrozen, weakly,
        replayed, clipped_and_logged,
    )
}  # fmt: skip


def main():
    options = parse_arguments()
    torch.manual_seed(1)
    (LEAKS | HEALTHY)[options.case](Run(options, sidecar.Sidecar(options)))


if __name__ == "__main__":
    main()
