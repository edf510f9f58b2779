"""Cross-validation with LoRA: functools.lru_cache on a helper keeps each fold's model, until 1 GiB is full. meta-pytorch/torchtune#904.

Truth: out of memory by growth, 46,585,856 B a fold of 38 steps; within a fold nothing grows. Line: `self.weight = nn.Parameter(`. Holder:
`get_adapter_params.cache`. Advice: a smaller maxsize, or no cache.
"""

import functools
import gc
import time
import torch
import torch.nn as nn
import torch.nn.functional as F

DEVICE = "cuda"
DIM, LAYERS, RANK = 896, 14, 8


class LoRALinear(nn.Module):
    def __init__(self, dim, rank):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(dim, dim).normal_(std=0.02), requires_grad=False)
        self.lora_a = nn.Linear(dim, rank, bias=False)
        self.lora_b = nn.Linear(rank, dim, bias=False)

    def adapter_params(self):
        return ["lora_a.weight", "lora_b.weight"]

    def forward(self, x):
        return F.linear(x, self.weight) + self.lora_b(self.lora_a(x))


class LoRAEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(LoRALinear(DIM, RANK) for _ in range(LAYERS))
        self.head = nn.Linear(DIM, 3)

    def forward(self, x):
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return self.head(x)


@functools.lru_cache()
def get_adapter_params(model):
    params = {}
    for name, module in model.named_modules():
        if hasattr(module, "adapter_params"):
            wanted = module.adapter_params()
            for n, p in module.named_parameters():
                if n in wanted:
                    params[f"{name}.{n}"] = p
    return params


def build_model():
    with torch.device(DEVICE):
        return LoRAEncoder()


def run_fold(fold, n_folds, features, labels, epochs=2, batch=32):
    model = build_model()
    adapters = get_adapter_params(model)
    opt = torch.optim.AdamW(list(adapters.values()) + list(model.head.parameters()), lr=1e-3)
    rows = torch.arange(len(features))
    train = rows[rows % n_folds != fold]
    for _ in range(epochs):
        for chunk in train[torch.randperm(len(train))].split(batch):
            time.sleep(0.05)
            logits = model(features[chunk].to(DEVICE))
            loss = F.cross_entropy(logits, labels[chunk].to(DEVICE))
            opt.zero_grad()
            loss.backward()
            opt.step()
    with torch.no_grad():
        test = rows[rows % n_folds == fold]
        acc = (model(features[test].to(DEVICE)).argmax(-1).cpu() == labels[test]).float().mean().item()
    return loss.item(), acc


def main():
    torch.manual_seed(0)
    features, labels = torch.randn(640, DIM), torch.randint(0, 3, (640,))
    n_folds = 20
    for fold in range(n_folds):
        loss, acc = run_fold(fold, n_folds, features, labels)
        gc.collect()
        torch.cuda.empty_cache()
        print(f"fold {fold + 1}/{n_folds} loss {loss:.3f} acc {acc:.3f}", flush=True)


if __name__ == "__main__":
    main()
