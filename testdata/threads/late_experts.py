"""A mixture of experts whose optimizer makes an expert's state when the expert is used for the first time. Healthy.

Truth: every fourth step another of 200 experts gets its first gradient, and AdamW two averages of 65,536 B for its weight and two of 512 B
for its bias. The state has at most the 402 parameters of the optimizer, and stops growing when all experts were used.
"""

import torch
from pace import Pace
from torch import nn

experts = nn.ModuleList(nn.Linear(128, 128) for _ in range(200)).cuda()
head = nn.Linear(128, 10).cuda()
optimizer = torch.optim.AdamW([*experts.parameters(), *head.parameters()], lr=1e-3)
pace = Pace()
while True:
    used = experts[min(pace.step // 4, 199)]
    loss = head(used(torch.randn(32, 128, device="cuda"))).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    del loss
    if not pace():
        break
