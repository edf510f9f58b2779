"""A GPT (nanoGPT shape, 124 M parameters) on random tokens: bfloat16 autocast, attention, gradient clipping, AdamW."""

import argparse

import loop
import report
import sidecar
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

HEAD_WIDTH = 64


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seq", type=int, default=512, help="tokens of a sample")
    parser.add_argument("--width", type=int, default=768, help=f"channels, a multiple of {HEAD_WIDTH}")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--vocab", type=int, default=50304)
    parser.add_argument("--accumulate", type=int, default=1, help="backward passes of a step")
    loop.arguments(parser, steps=100)
    return sidecar.arguments(parser).parse_args()


class RandomTokens(Dataset):
    def __init__(self, vocab, seq, samples=4096):
        self.vocab, self.seq, self.samples = vocab, seq, samples

    def __len__(self):
        return self.samples

    def __getitem__(self, index):
        tokens = torch.randint(0, self.vocab, (self.seq + 1,))
        return tokens[:-1], tokens[1:]


class CausalSelfAttention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.heads = width // HEAD_WIDTH
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def split_heads(self, x):
        batch, seq, width = x.shape
        return x.view(batch, seq, self.heads, width // self.heads).transpose(1, 2)

    def forward(self, x):
        q, k, v = (self.split_heads(part) for part in self.qkv(x).split(x.shape[2], dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(x.shape))


class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = CausalSelfAttention(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, vocab, seq, width, layers):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab, width), nn.Embedding(seq, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, idx, targets):
        x = self.tokens(idx) + self.positions(torch.arange(idx.shape[1], device=idx.device))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1))


def make_loader(options):
    data = RandomTokens(options.vocab, options.seq)
    return DataLoader(data, batch_size=options.batch, pin_memory=True, num_workers=options.workers, drop_last=True)


def forward_backward(model, batch, accumulate):
    idx, targets = (part.cuda(non_blocking=True) for part in batch)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(idx, targets)
    (loss / accumulate).backward()
    return loss.detach()


def train_step(model, optimizer, stream, accumulate):
    optimizer.zero_grad(set_to_none=True)
    for _ in range(accumulate):
        loss = forward_backward(model, next(stream), accumulate)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss


def train(model, optimizer, loader, options, side):
    progress = report.Progress("gpt")
    stream = loop.batches(loader)
    for step in loop.counted(options):
        loss = train_step(model, optimizer, stream, options.accumulate)
        side.step(step)
        progress.step(step, loss)
    progress.result()


def main():
    options = parse_arguments()
    torch.manual_seed(1)
    side = sidecar.Sidecar(options)
    with torch.device("cuda"):
        model = GPT(options.vocab, options.seq, options.width, options.layers)
    print("parameters", sum(p.numel() for p in model.parameters()), flush=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1)
    train(model, optimizer, make_loader(options), options, side)
    side.finish()


if __name__ == "__main__":
    main()
