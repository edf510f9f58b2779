"""torchvision's ResNet-18 on random images: channels-last, float16 autocast with GradScaler, AdamW."""

import argparse

import loop
import report
import sidecar
import torch
import torchvision
from torch.utils.data import DataLoader, Dataset

CLASSES = 1000


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--size", type=int, default=224, help="height and width of an image")
    loop.arguments(parser, steps=100)
    return sidecar.arguments(parser).parse_args()


class RandomImages(Dataset):
    """A few random images, shown again and again: making new ones would take longer than training."""

    def __init__(self, size, images=64, samples=4096):
        self.images, self.samples = torch.randn(images, 3, size, size), samples

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        return self.images[index % len(self.images)], index % CLASSES


def make_loader(options):
    data = RandomImages(options.size)
    return DataLoader(data, batch_size=options.batch, pin_memory=True, num_workers=options.workers, drop_last=True)


class Trainer:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        new = hasattr(torch.amp, "GradScaler")  # since 2.3
        self.scaler = torch.amp.GradScaler("cuda") if new else torch.cuda.amp.GradScaler()

    def forward(self, images, labels):
        images = images.cuda(non_blocking=True).to(memory_format=torch.channels_last)
        labels = labels.cuda(non_blocking=True)
        with torch.autocast("cuda", dtype=torch.float16):
            return torch.nn.functional.cross_entropy(self.model(images), labels)

    def step(self, images, labels):
        self.optimizer.zero_grad()
        loss = self.forward(images, labels)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss.detach()


def train(trainer, loader, options, side):
    progress = report.Progress("resnet")
    stream = loop.batches(loader)
    for step in loop.counted(options):
        loss = trainer.step(*next(stream))
        side.step(step)
        progress.step(step, loss)
    progress.result()


def main():
    options = parse_arguments()
    torch.manual_seed(1)
    side = sidecar.Sidecar(options)
    model = torchvision.models.resnet18(num_classes=CLASSES).cuda().to(memory_format=torch.channels_last)
    train(Trainer(model), make_loader(options), options, side)
    side.finish()


if __name__ == "__main__":
    main()
