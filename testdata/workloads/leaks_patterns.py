"""Eight ways in which training scripts leak, and their repair: ResNet-18 for 32x32 images, the pattern active after a warm-up.

    leaks_patterns.py --pattern 3           --fixed: the same without the leak; --pattern 0: healthy
"""

import argparse
import collections

import loop
import sidecar
import torch
import torch.nn.functional as F
from torch import nn

CLASSES = 10
SNAPSHOT_EVERY = 3  # steps between the large ones of patterns 2 and 5


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--pattern", type=int, default=0, choices=range(len(PATTERNS)))
    parser.add_argument("--fixed", action="store_true", help="without the leak")
    parser.add_argument("--warmup", type=int, default=10, help="steps before the pattern")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--device", default="cuda", choices=["cuda", "mps"])
    parser.add_argument("--width", type=int, default=64, help="channels of the first layer; 8: the same leaks, of small blocks")
    loop.arguments(parser, steps=22)
    return sidecar.arguments(parser).parse_args()


# ---- the model ----


class Relu(nn.Module):
    """Not in place: every activation has memory of its own."""

    def forward(self, x):
        return F.relu(x)


def convolution(inputs, outputs, stride=1, size=3):
    return nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)


class Residual(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.body = nn.Sequential(
            convolution(inputs, outputs, stride),
            nn.BatchNorm2d(outputs),
            Relu(),
            convolution(outputs, outputs),
            nn.BatchNorm2d(outputs),
        )
        self.down = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.down = nn.Sequential(convolution(inputs, outputs, stride, size=1), nn.BatchNorm2d(outputs))
        self.relu = Relu()

    def forward(self, x):
        return self.relu(self.body(x) + self.down(x))


class ResNet(nn.Module):
    """ResNet-18, its stem without stride and pooling."""

    def __init__(self, width=64):
        super().__init__()
        self.stem = nn.Sequential(convolution(3, width), nn.BatchNorm2d(width), Relu())
        self.layer1, self.layer2 = self.stage(width, width, 1), self.stage(width, 2 * width, 2)
        self.layer3, self.layer4 = self.stage(2 * width, 4 * width, 2), self.stage(4 * width, 8 * width, 2)
        self.head = nn.Linear(8 * width, CLASSES)

    @staticmethod
    def stage(inputs, outputs, stride):
        return nn.Sequential(Residual(inputs, outputs, stride), Residual(outputs, outputs, 1))

    def features(self, images):
        x = self.stem(images)
        for layer in (self.layer1, self.layer2, self.layer3, self.layer4):
            x = layer(x)
        return x.mean((2, 3))

    def forward(self, images):
        return self.head(self.features(images))


# ---- training ----


class Trainer:
    def __init__(self, options, side):
        self.options, self.side = options, side
        self.fixed, self.device = options.fixed, options.device
        self.model = ResNet(options.width).to(self.device)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)

    def steps(self):
        """Whether the pattern is active, for each step. The last one ends in the hold."""
        for step in loop.counted(self.options):
            yield step > self.options.warmup
            self.side.step(step)
        self.side.finish()

    def batch(self):
        size = self.options.batch
        return torch.randn(size, 3, 32, 32).to(self.device), torch.randint(0, CLASSES, (size,)).to(self.device)

    def forward(self, images, labels):
        return F.cross_entropy(self.model(images), labels)

    def update(self, loss):
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()


def healthy(trainer):
    for _ in trainer.steps():
        trainer.update(trainer.forward(*trainer.batch()))


# ---- the patterns ----


def hooked_activations(trainer):
    """1: a hook keeps the last layer's output."""
    kept = collections.deque(maxlen=1) if trainer.fixed else []
    active = False

    def keep(module, inputs, output):
        if active:
            kept.append(output.detach())

    trainer.model.layer4.register_forward_hook(keep)
    for active in trainer.steps():
        trainer.update(trainer.forward(*trainer.batch()))


def gradient_snapshots(trainer):
    """2: copies of all gradients, where their norms were meant."""
    snapshots = []
    for step, active in enumerate(trainer.steps()):
        trainer.update(trainer.forward(*trainer.batch()))
        if active and step % SNAPSHOT_EVERY == 0:
            gradients = [p.grad for p in trainer.model.parameters()]
            snapshots.append([g.norm().item() if trainer.fixed else g.clone() for g in gradients])
            del gradients


def kept_inputs(trainer):
    """3: copies of the batches."""
    seen = []
    for active in trainer.steps():
        images, labels = trainer.batch()
        trainer.update(trainer.forward(images, labels))
        if active:
            seen.append(images.mean().item() if trainer.fixed else images.clone())


def autocast_captures(trainer):
    """4: features in half precision."""
    captured = collections.deque(maxlen=1) if trainer.fixed else []
    active = False

    def capture(module, inputs, output):
        if active:
            captured.append(output.detach())

    trainer.model.layer4.register_forward_hook(capture)
    for active in trainer.steps():
        images, labels = trainer.batch()
        with torch.autocast(trainer.device, dtype=torch.float16):
            loss = trainer.forward(images, labels)
        trainer.update(loss)


def discarded_optimizers(trainer):
    """5: optimizers that nobody needs any more."""
    graveyard = []
    for step, active in enumerate(trainer.steps()):
        trainer.update(trainer.forward(*trainer.batch()))
        if active and step % SNAPSHOT_EVERY == 0:
            if not (trainer.fixed and graveyard):
                graveyard.append(torch.optim.Adam(trainer.model.parameters()))
            graveyard[-1].step()


def scaled_losses(trainer):
    """6: losses, scaled for half precision."""
    history = []
    scaler = torch.cuda.amp.GradScaler() if trainer.device == "cuda" else torch.amp.GradScaler(trainer.device)
    for active in trainer.steps():
        images, labels = trainer.batch()
        with torch.autocast(trainer.device, dtype=torch.float16):
            loss = trainer.forward(images, labels)
        scaled = scaler.scale(loss)
        trainer.optimizer.zero_grad()
        scaled.backward()
        scaler.step(trainer.optimizer)
        scaler.update()
        if active:
            history.append(scaled.item() if trainer.fixed else scaled.detach())


def evaluation_graphs(trainer):
    """7: an evaluation without no_grad, its output kept with the graph."""
    results = []
    for active in trainer.steps():
        images, labels = trainer.batch()
        trainer.update(trainer.forward(images, labels))
        if active and trainer.fixed:
            with torch.no_grad():
                results.append(trainer.model(images).argmax(1).cpu())
        elif active:
            results.append((images.clone(), trainer.model(images)))


def detached_fragments(trainer):
    """8: small graphs over detached features."""
    fragments = []
    for active in trainer.steps():
        images, labels = trainer.batch()
        features = trainer.model.features(images)
        trainer.update(F.cross_entropy(trainer.model.head(features), labels))
        if active:
            detached = features.detach().requires_grad_(True)
            value = (detached.tanh() * detached).mean()
            fragments.append(value.item() if trainer.fixed else value)


PATTERNS = [
    healthy,
    hooked_activations,
    gradient_snapshots,
    kept_inputs,
    autocast_captures,
    discarded_optimizers,
    scaled_losses,
    evaluation_graphs,
    detached_fragments,
]


def main():
    options = parse_arguments()
    torch.manual_seed(1)
    side = sidecar.Sidecar(options)
    PATTERNS[options.pattern](Trainer(options, side))


if __name__ == "__main__":
    main()
