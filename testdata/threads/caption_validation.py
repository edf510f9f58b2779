"""sgrvinod/a-PyTorch-Tutorial-to-Image-Captioning#57: a validation without no_grad, whose batches keep their graphs; with 1 GiB the training fits.

Truth: out of memory in validate(), in the decoder's forward or at the loss: each batch's graph stays until the next result takes its place.
Holder: the locals of validate() and the graph behind them. Advice: torch.no_grad().
"""

import time

import torch
from torch import nn
import torch.nn.functional as F

VOCAB, LEN, EMB, HID = 5700, 20, 96, 128


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 32, 3, stride=2, padding=1)
        self.proj = nn.Linear(32, HID)

    def forward(self, img):
        return self.proj(F.relu(self.conv(img)).mean((2, 3)))


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = nn.Embedding(VOCAB, EMB)
        self.lstm = nn.LSTMCell(EMB, HID)
        self.drop = nn.Dropout(0.3)
        self.fc = nn.Linear(HID, VOCAB)

    def forward(self, feat, caps):
        h, c = feat, torch.zeros_like(feat)
        outs = []
        e = self.emb(caps)
        for t in range(caps.size(1)):
            h, c = self.lstm(e[:, t], (h, c))
            outs.append(h)
        return self.fc(self.drop(torch.stack(outs, 1)))


class CaptionData:
    def __init__(self, batches, bs, seed):
        self.batches, self.bs, self.seed = batches, bs, seed

    def __iter__(self):
        g = torch.Generator().manual_seed(self.seed)
        for _ in range(self.batches):
            yield torch.randn(self.bs, 3, 24, 24, generator=g), torch.randint(0, VOCAB, (self.bs, LEN), generator=g)


class Meter:
    def __init__(self):
        self.sum = self.n = 0

    def update(self, v, n=1):
        self.sum += v * n
        self.n += n

    @property
    def avg(self):
        return self.sum / max(self.n, 1)


def topk_accuracy(scores, targets, k=5):
    _, ind = scores.topk(k, -1)
    return ind.eq(targets.unsqueeze(-1)).any(-1).float().mean().item()


def train(loader, enc, dec, crit, opt):
    enc.train(), dec.train()
    m = Meter()
    for img, caps in loader:
        img, caps = img.cuda(), caps.cuda()
        loss = crit(dec(enc(img), caps).flatten(0, 1), caps.flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        m.update(loss.item())
    print("train", round(m.avg, 3), "mem", torch.cuda.memory_allocated(), "peak", torch.cuda.max_memory_allocated(), "res", torch.cuda.max_memory_reserved(), flush=True)


def validate(loader, enc, dec, crit):
    enc.eval(), dec.eval()
    losses, accs = Meter(), Meter()
    for img, caps in loader:
        img, caps = img.cuda(), caps.cuda()
        scores = dec(enc(img), caps)
        scores_copy = scores.clone()
        loss = crit(scores.flatten(0, 1), caps.flatten())
        losses.update(loss.item())
        accs.update(topk_accuracy(scores_copy, caps))
        time.sleep(0.02)
    print("valid", round(losses.avg, 3), "top5", round(accs.avg, 3), "peak", torch.cuda.max_memory_allocated(), "res", torch.cuda.max_memory_reserved(), flush=True)


def main():
    enc, dec = Encoder().cuda(), Decoder().cuda()
    opt = torch.optim.Adam(list(enc.parameters()) + list(dec.parameters()), lr=1e-3)
    crit = nn.CrossEntropyLoss()
    bs = 256
    for epoch in range(3):
        train(CaptionData(6, bs, epoch), enc, dec, crit, opt)
        validate(CaptionData(4, bs, 99), enc, dec, crit)


if __name__ == "__main__":
    main()
