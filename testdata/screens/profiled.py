"""A job that is looked at by torch.profiler, with two workers that load its data."""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    data = DataLoader(TensorDataset(torch.randn(65536, 512)), batch_size=256, num_workers=2)
    model = nn.Sequential(nn.Linear(512, 4096), nn.ReLU(), nn.Linear(4096, 512)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.profiler.schedule(wait=5, warmup=1, active=2)
    with torch.profiler.profile(schedule=schedule) as profiler:
        while True:
            for (x,) in data:
                x = x.cuda()
                optimizer.zero_grad()
                (model(x) - x).square().mean().backward()
                optimizer.step()
                profiler.step()
                time.sleep(0.02)


if __name__ == "__main__":
    main()
