"""A chat server keeps keys and values of recent prefixes in an OrderedDict of at most 24 entries, full before the attach; lengths vary. Healthy.

Truth: steady, without a word of growth in the past. Line of what stays: `return self.k(h), self.v(h)`. Holder: `c.entries`.
"""

import random
from collections import OrderedDict

import torch
from torch import nn
from pace import Pace

PACE = Pace(0.03)

DIM, HEADS, LAYERS = 128, 4, 3


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.q = nn.Linear(DIM, DIM)
        self.k = nn.Linear(DIM, DIM)
        self.v = nn.Linear(DIM, DIM)
        self.o = nn.Linear(DIM, DIM)

    def kv(self, h):
        return self.k(h), self.v(h)

    def attend(self, h, k, v):
        a = torch.softmax(self.q(h) @ k.transpose(-1, -2) / DIM ** 0.5, -1)
        return h + self.o(a @ v)


class LM(nn.Module):
    def __init__(self, vocab=1000):
        super().__init__()
        self.emb = nn.Embedding(vocab, DIM)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.head = nn.Linear(DIM, vocab)

    def prefill(self, ids):
        h, past = self.emb(ids), []
        for layer in self.layers:
            k, v = layer.kv(h)
            past.append((k, v))
            h = layer.attend(h, k, v)
        return past

    def decode(self, token, past):
        h, new = self.emb(token), []
        for layer, (k, v) in zip(self.layers, past):
            k1, v1 = layer.kv(h)
            k, v = torch.cat([k, k1], 1), torch.cat([v, v1], 1)
            h = layer.attend(h, k, v)
            new.append((k, v))
        return self.head(h), new


class PrefixCache:
    def __init__(self, capacity=24):
        self.entries = OrderedDict()
        self.capacity = capacity
        self.hits = self.misses = 0

    def get(self, key, make):
        if key in self.entries:
            self.hits += 1
            self.entries.move_to_end(key)
        else:
            self.misses += 1
            self.entries[key] = make()
            while len(self.entries) > self.capacity:
                self.entries.popitem(last=False)
        return self.entries[key]


class Server:
    def __init__(self, seed=7):
        self.lm = LM().cuda().eval()
        self.cache = PrefixCache()
        self.rng = random.Random(seed)

    def request(self):
        n = self.rng.randrange(400)
        return n, 48 + (n * 37) % 200

    @torch.inference_mode()
    def handle(self):
        key, length = self.request()
        past = self.cache.get(key, lambda: self.lm.prefill(torch.randint(0, 1000, (1, length)).cuda()))
        tok = torch.zeros(1, 1, dtype=torch.long, device="cuda")
        for _ in range(self.rng.randrange(3, 9)):
            logits, past = self.lm.decode(tok, past)
            tok = logits.argmax(-1)


def main(requests=5000):
    server = Server()
    for i in range(requests):
        server.handle()
        if not PACE():
            raise SystemExit
        if i % 50 == 0:
            c = server.cache
            print(i, "entries", len(c.entries), "hit", c.hits, "mem", torch.cuda.memory_allocated(), flush=True)


if __name__ == "__main__":
    main()
