"""The embeddings of a corpus are collected in a list and joined by torch.cat.

Device: STANDIN_GPU_MEM=1GiB, of which the context has 460 MiB. 160 batches have 320 MiB, and so has their copy.
Truth: out of memory in torch.cat, since the parts and the whole do not fit together: keep the parts on the CPU.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F
from pace import Pace
from torch.utils.data import DataLoader, Dataset

DEV = "cuda"
PACE = Pace(0.03)


class PassageDataset(Dataset):
    def __init__(self, n, seq_len=16, vocab=30000):
        self.n, self.seq_len, self.vocab = n, seq_len, vocab

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        return torch.randint(1, self.vocab, (self.seq_len,), generator=g)


class BiEncoder(nn.Module):
    def __init__(self, vocab=30000, dim=128, out=512):
        super().__init__()
        self.words = nn.Embedding(vocab, dim, padding_idx=0)
        self.ffn = nn.Sequential(nn.Linear(dim, 256), nn.Tanh(), nn.Linear(256, out))

    def forward(self, ids):
        mask = (ids > 0).unsqueeze(-1).float()
        pooled = (self.words(ids) * mask).sum(1) / mask.sum(1).clamp(min=1)
        return F.normalize(self.ffn(pooled), dim=-1)


class Retriever:
    def __init__(self, model, batch_size=1024):
        self.model = model.to(DEV).eval()
        self.batch_size = batch_size

    @torch.no_grad()
    def encode(self, dataset, desc):
        loader = DataLoader(dataset, batch_size=self.batch_size, shuffle=False)
        parts = []
        for i, ids in enumerate(loader):
            parts.append(self.model(ids.to(DEV)))
            if i % 25 == 0:
                print(f"[{desc}] batch {i}/{len(loader)}", flush=True)
            PACE()
        return torch.cat(parts, dim=0)

    @torch.no_grad()
    def search(self, queries, corpus, k=10):
        best = []
        for q in queries.split(64):
            best.append((q @ corpus.t()).topk(k, dim=-1).indices.cpu())
        return torch.cat(best)


def warm_start(model, steps=20):
    model.to(DEV).train()
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        a = torch.randint(1, 30000, (128, 16), device=DEV)
        z = model(a)
        loss = F.cross_entropy(z @ z.t() / 0.05, torch.arange(128, device=DEV))
        loss.backward()
        opt.step()
        opt.zero_grad()
        PACE()


def main():
    torch.manual_seed(3)
    model = BiEncoder()
    warm_start(model)
    retriever = Retriever(model)
    queries = retriever.encode(PassageDataset(2048), "queries")
    corpus = retriever.encode(PassageDataset(160 * 1024), "corpus")
    hits = retriever.search(queries, corpus)
    print("done", tuple(hits.shape))


if __name__ == "__main__":
    main()
