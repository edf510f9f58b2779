"""A loop keeps what each training step returns, the batch too, until the epoch ends (Lightning-AI/pytorch-lightning#15514).

Device: STANDIN_GPU_MEM=1GiB, of which the context has 460 MiB. `loop.epoch_outputs` gets 256 x 1280 floats = 1,310,720 B and a loss of 4 B (512 B) with each batch;
an epoch of 600 batches needs 750 MiB. The failure is caught, the outputs are dropped, and the second epoch keeps none.
Truth: out of memory, caught: a leak of 1.25 MiB a step until then, of `x`.
"""

import torch
from pace import Pace
from torch import nn

PACE = Pace(0.025)


class TabularModule(nn.Module):
    def __init__(self, device):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1280, 128), nn.ReLU(), nn.Linear(128, 16))
        self.device = device
        self.to(device)

    def training_step(self):
        PACE()
        x = torch.randn(256, 1280).to(self.device)
        y = torch.randint(16, (256,)).to(self.device)
        return {"loss": nn.functional.cross_entropy(self.net(x), y), "x": x}

    def training_epoch_end(self, outputs):
        losses = torch.stack([o["loss"] for o in outputs])
        centre = torch.stack([o["x"].mean(0) for o in outputs]).mean(0)
        print(f"epoch end: loss {losses.mean().item():.4f}, centre {centre.norm().item():.4f}", flush=True)


class TrainingEpochLoop:
    def __init__(self, module, optimizer, batches):
        self.module, self.optimizer, self.batches = module, optimizer, batches
        self.epoch_outputs = []

    def advance(self, collect):
        output = self.module.training_step()
        loss = output["loss"]
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        if collect:
            output["loss"] = loss.detach()
            self.epoch_outputs.append(output)

    def run(self, epoch, collect):
        for batch in range(self.batches):
            self.advance(collect)
            if batch % 100 == 0:
                print(f"epoch {epoch} batch {batch}", flush=True)
        if collect:
            self.module.training_epoch_end(self.epoch_outputs)
        self.epoch_outputs.clear()


class Trainer:
    def __init__(self, module, batches_per_epoch=600):
        self.module = module
        self.optimizer = torch.optim.Adam(module.parameters(), lr=1e-3)
        self.loop = TrainingEpochLoop(module, self.optimizer, batches_per_epoch)
        self.collect = True
        self.failures = []

    def fit(self, epochs):
        for epoch in range(epochs):
            try:
                self.loop.run(epoch, self.collect)
            except torch.cuda.OutOfMemoryError as error:
                self.failures.append(f"epoch {epoch}: {str(error)[:80]}")
                self.loop.epoch_outputs.clear()
                self.collect = False
            if not self.collect:
                torch.cuda.empty_cache()
                print(f"epoch {epoch} over, no statistics at the end of the next", flush=True)


if __name__ == "__main__":
    trainer = Trainer(TabularModule(torch.device("cuda")))
    trainer.fit(2)
    print("finished", trainer.failures)
