"""Training loops that keep more memory for a while, or look as if, and do not leak.

    healthy.py --loop evaluation --steps 80
"""

import argparse
import collections
import copy
import gc
import random

import loop
import sidecar
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

EPOCH = 10  # steps
ACCUMULATED = 4  # passes of an optimizer's step
QUEUE = 12  # batches


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--loop", choices=LOOPS, required=True)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--size", type=int, default=128, help="features of a layer")
    loop.arguments(parser, steps=80)
    return sidecar.arguments(parser).parse_args()


def network(size, outputs=10):
    return nn.Sequential(nn.Linear(size, size), nn.ReLU(), nn.Linear(size, size), nn.ReLU(), nn.Linear(size, outputs)).cuda()


class Trainer:
    def __init__(self, options, side):
        self.options, self.side = options, side
        self.model = network(options.size)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    def steps(self):
        for step in loop.counted(self.options):
            yield step
            self.side.step(step)
        self.side.finish()

    def batch(self, size=None):
        size = size or self.options.batch
        return torch.randn(size, self.options.size).cuda(), torch.randint(0, 10, (size,)).cuda()

    def loss(self, images, labels):
        return F.cross_entropy(self.model(images), labels)

    def update(self, loss):
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


# ---- the loops ----


def evaluation(trainer):
    """The model is evaluated after each epoch, and saved."""
    best = None
    for step in trainer.steps():
        trainer.update(trainer.loss(*trainer.batch()))
        if step % EPOCH == 0:
            with torch.no_grad():
                outputs = [trainer.model(trainer.batch()[0]) for _ in range(5)]
                torch.cat(outputs).mean().item()
            best = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    return best


def accumulation(trainer):
    """Gradients of several passes are added up."""
    for step in trainer.steps():
        (trainer.loss(*trainer.batch()) / ACCUMULATED).backward()
        if step % ACCUMULATED == 0:
            trainer.optimizer.step()
            trainer.optimizer.zero_grad()


def checkpointing(trainer):
    """Activations are computed again in the backward pass."""
    for _ in trainer.steps():
        images, labels = trainer.batch()
        hidden = checkpoint(trainer.model[:3], images.requires_grad_(True), use_reentrant=False)
        trainer.update(F.cross_entropy(trainer.model[3:](hidden), labels))


def varying(trainer):
    """Batches have different sizes."""
    sizes = random.Random(1)
    for _ in trainer.steps():
        trainer.update(trainer.loss(*trainer.batch(sizes.randint(1, 4 * trainer.options.batch))))


def averaged(trainer):
    """A moving average of the parameters, in a second model."""
    average = copy.deepcopy(trainer.model)
    for _ in trainer.steps():
        trainer.update(trainer.loss(*trainer.batch()))
        with torch.no_grad():
            for kept, parameter in zip(average.parameters(), trainer.model.parameters()):
                kept.mul_(0.9).add_(parameter, alpha=0.1)


def queued(trainer):
    """The last batches are kept."""
    kept = collections.deque(maxlen=QUEUE)
    for _ in trainer.steps():
        images, labels = trainer.batch()
        trainer.update(trainer.loss(images, labels))
        kept.append(images)


def adversarial(trainer):
    """Two models, and an optimizer for each."""
    size = trainer.options.size
    critic = network(size, outputs=1)
    other = torch.optim.Adam(critic.parameters(), lr=1e-3)
    generator = network(size, outputs=size)
    optimizer = torch.optim.Adam(generator.parameters(), lr=1e-3)
    for _ in trainer.steps():
        images, _labels = trainer.batch()
        made = generator(torch.randn_like(images))
        other.zero_grad()
        (critic(made.detach()).mean() - critic(images).mean()).backward()
        other.step()
        optimizer.zero_grad()
        (-critic(made).mean()).backward()
        optimizer.step()


def scaled(trainer):
    """Half precision, with scaled losses."""
    scaler = torch.amp.GradScaler("cuda")
    history = []
    for _ in trainer.steps():
        with torch.autocast("cuda", dtype=torch.float16):
            loss = trainer.loss(*trainer.batch())
        trainer.optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(trainer.optimizer)
        scaler.update()
        history.append(loss.item())


# ---- the second set, written when the thresholds were chosen ----


def cyclic(trainer):
    """Cycles of references keep activations until the collector runs."""
    for step in trainer.steps():
        images, labels = trainer.batch()
        cycle = [images]
        cycle.append(cycle)
        trainer.update(trainer.loss(images, labels))
        if step % 9 == 0:
            gc.collect()


def cached(trainer):
    """Masks are made for each length that is new: fewer and fewer are."""
    masks, lengths = {}, random.Random(2)
    for _ in trainer.steps():
        length = lengths.randint(1, 16)
        if length not in masks:
            masks[length] = torch.ones(length, length, device="cuda")
        images, labels = trainer.batch()
        trainer.update(trainer.loss(images * masks[length].mean(), labels))


def serving(trainer):
    """Tokens are generated with a cache that grows up to its limit, and is dropped with its request."""
    size = trainer.options.size
    keys = None
    for step in trainer.steps():
        with torch.no_grad():
            token = trainer.model[0](torch.randn(1, size, device="cuda"))
            keys = token if keys is None else torch.cat([keys, token])
            (trainer.model(keys[-1:]) @ torch.randn(10, 1, device="cuda")).item()
        if step % 13 == 0:
            keys = None


def rescheduled(trainer):
    """A schedule, clipped gradients, a plain SGD whose steps allocate nothing, and losses that are kept of one epoch."""
    trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(trainer.optimizer, EPOCH)
    losses = []
    for step in trainer.steps():
        loss = trainer.loss(*trainer.batch())
        trainer.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(trainer.model.parameters(), 1.0)
        trainer.optimizer.step()
        schedule.step()
        losses.append(loss.detach())
        if step % EPOCH == 0:
            torch.stack(losses).mean().item()
            losses.clear()


def pooled(trainer):
    """A replay buffer from which old entries are dropped at random."""
    kept, choice = [], random.Random(3)
    for _ in trainer.steps():
        images, labels = trainer.batch()
        trainer.update(trainer.loss(images, labels))
        kept.append(images)
        if len(kept) > 8:
            kept.pop(choice.randrange(len(kept)))


LOOPS = {
    f.__name__: f
    for f in (
        evaluation, accumulation, checkpointing, varying, averaged, queued, adversarial, scaled,
        cyclic, cached, serving, rescheduled, pooled,
    )
}  # fmt: skip


def main():
    options = parse_arguments()
    torch.manual_seed(1)
    LOOPS[options.loop](Trainer(options, sidecar.Sidecar(options)))


if __name__ == "__main__":
    main()
