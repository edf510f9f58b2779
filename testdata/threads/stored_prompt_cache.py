"""A key-value cache that was stored for one prompt is handed to every conversation (MemTensor/MemOS#2301).

Agreed cause: generation appends to the stored DynamicCache in place (torch.cat), so it accumulates the prompt and the answer of every turn.
Truth: 4 layers x (keys and values) x 16 tokens a turn x 1,024 floats = 524,288 B a turn; each token replaces 8 tensors by longer ones.
Lines: `self.keys[layer] = torch.cat(...)` and `self.values[layer] = ...`. Holder: `store['memory'].keys[0..3]` and `.values[0..3]`.
Advice: generate on a copy. --fixed: copy.deepcopy(store['memory']).
"""

import copy
import sys

import torch
from pace import Pace
from torch import nn

LAYERS, WIDTH = 4, 1024


class DynamicCache:
    def __init__(self, tokens):
        self.keys = [torch.zeros(1, tokens, WIDTH, device="cuda") for _ in range(LAYERS)]
        self.values = [torch.zeros(1, tokens, WIDTH, device="cuda") for _ in range(LAYERS)]

    def update(self, layer, key, value):
        self.keys[layer] = torch.cat([self.keys[layer], key], dim=1)
        self.values[layer] = torch.cat([self.values[layer], value], dim=1)
        return self.keys[layer], self.values[layer]


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.ModuleList(nn.Linear(WIDTH, 3 * WIDTH) for _ in range(LAYERS))

    def forward(self, x, cache):
        for layer, projection in enumerate(self.qkv):
            query, key, value = projection(x).chunk(3, dim=-1)
            keys, values = cache.update(layer, key, value)
            x = torch.softmax(query @ keys.transpose(1, 2), dim=-1) @ values
        return x


@torch.inference_mode()
def chat(model, cache, tokens=16):
    x = torch.zeros(1, 1, WIDTH, device="cuda")
    for _ in range(tokens):
        x = model(x, cache)
    return x


def main():
    model, pace = Decoder().cuda().eval(), Pace(0.05)
    store = {"memory": DynamicCache(64)}
    while pace():
        chat(model, copy.deepcopy(store["memory"]) if "--fixed" in sys.argv else store["memory"])


main()
