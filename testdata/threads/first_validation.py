"""A long validation before training leaves a segment of 266 MiB; Adam's state is put into it, and the same validation fails after the epoch, with 1 GiB.

Truth: fragmentation: 134 MiB live, 214 MiB the largest piece, 190 MiB of the device free, 264 MiB asked for. Line: `return self.encode(mel)[...`.
pytorch/pytorch#35901. The step is not larger: the line got as much before the first step.
"""

import time
import torch
import torch.nn as nn
import torch.nn.functional as F

DEVICE = "cuda"
MEL, HID, VOCAB = 80, 1024, 64


class Transducer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp = nn.Linear(MEL, HID)
        self.enc = nn.ModuleList(nn.Linear(HID, HID) for _ in range(8))
        self.pred = nn.Embedding(VOCAB, HID)
        self.enc_out = nn.Linear(HID, VOCAB)
        self.pred_out = nn.Linear(HID, VOCAB)

    def encode(self, mel):
        h = torch.tanh(self.inp(mel))
        for layer in self.enc:
            h = h + torch.tanh(layer(h))
        return self.enc_out(h)

    def joint(self, mel, tokens):
        return self.encode(mel)[:, :, None, :] + self.pred_out(self.pred(tokens))[:, None, :, :]


class SpeechModule:
    def __init__(self):
        self.model = Transducer().to(DEVICE)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=2e-4)

    def training_step(self, mel, tokens):
        lattice = self.model.joint(mel.to(DEVICE), tokens.to(DEVICE))
        loss = F.softplus(lattice.mean())
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    @torch.no_grad()
    def validate(self, mel, tokens):
        self.model.eval()
        lattice = self.model.joint(mel.to(DEVICE), tokens.to(DEVICE))
        best = lattice.mean().item()
        self.model.train()
        return best


class Trainer:
    def __init__(self, module, steps_per_epoch=220):
        self.module = module
        self.steps = steps_per_epoch

    def batch(self, frames, labels):
        time.sleep(0.07)
        return torch.randn(1, frames, MEL), torch.randint(0, VOCAB, (1, labels))

    def run_validation(self):
        long_form = self.batch(2200, 492)
        score = self.module.validate(*long_form)
        print(f"val score {score:.3f}", flush=True)

    def fit(self, epochs=3):
        print("sanity checking", flush=True)
        self.run_validation()
        for epoch in range(epochs):
            for step in range(1, self.steps + 1):
                loss = self.module.training_step(*self.batch(160 + (step * 37) % 80, 24))
                if step % 25 == 0:
                    print(f"epoch {epoch} step {step} loss {loss:.3f}", flush=True)
            self.run_validation()


if __name__ == "__main__":
    torch.manual_seed(0)
    Trainer(SpeechModule()).fit()
