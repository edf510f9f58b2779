"""The predictions of an evaluation are joined on the GPU by torch.cat, batch by batch (huggingface/transformers#7232).

Agreed cause: the logits of the whole evaluation set stay on the GPU; move them to the CPU, or take their argmax first. Device: STANDIN_GPU_MEM=1GiB.
Truth: each batch adds 8 x 64 x 4096 floats, 8,388,608 B, to `preds`, and the next torch.cat needs the old and the new tensor. It fails when it asks
for 248 MiB beside the 240 MiB that 30 batches have joined. Holder: `preds` of prediction_loop. Line: `return torch.cat(`.
--fixed: logits.cpu(), and 64 rows of them.
"""

import sys
from dataclasses import dataclass

import torch
from pace import Pace
from torch import nn

FIXED = "--fixed" in sys.argv


@dataclass
class Args:
    train_batch: int = 8
    eval_batch: int = 8
    length: int = 64
    eval_every: int = 40


class TinyLM(nn.Module):
    def __init__(self, vocab=4096, d=384):
        super().__init__()
        self.emb = nn.Embedding(vocab, d)
        self.block = nn.Sequential(nn.Linear(d, d), nn.GELU(), nn.Linear(d, d))
        self.out = nn.Linear(d, vocab)

    def forward(self, ids):
        return self.out(self.block(self.emb(ids)))


def nested_concat(tensors, new_tensors):
    return torch.cat((tensors, new_tensors), dim=0)


class Trainer:
    def __init__(self, model, args):
        self.model, self.args, self.pace = model, args, Pace(0.02)
        self.opt = torch.optim.AdamW(model.parameters())

    def batch(self, n):
        return torch.zeros(n, self.args.length, dtype=torch.long, device="cuda")

    def prediction_loop(self, batches):
        self.model.eval()
        preds = None
        for _ in range(batches):
            with torch.no_grad():
                logits = self.model(self.batch(self.args.eval_batch))
            if FIXED:
                logits = logits.cpu()
            preds = logits if preds is None else nested_concat(preds, logits)
            if FIXED and preds.shape[0] > 64:
                preds = preds[:64]
            self.pace()
        return preds

    def evaluate(self):
        return self.prediction_loop(1000).argmax(-1)

    def train(self):
        while True:
            for _ in range(self.args.eval_every):
                ids = self.batch(self.args.train_batch)
                loss = self.model(ids).float().logsumexp(-1).mean()
                loss.backward()
                self.opt.step()
                self.opt.zero_grad()
                if not self.pace():
                    return
            self.evaluate()


if __name__ == "__main__":
    Trainer(TinyLM().cuda(), Args()).train()
