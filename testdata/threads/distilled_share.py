"""Knowledge distillation on a share of a GPU: set_per_process_memory_fraction(0.3), and a schedule that doubles the batch every 40 steps.

Truth: the device has 4 GiB (STANDIN_GPU_MEM=4GiB), the process may have 0.3 of it, 1,288,490,188 B; it fails at the first batch that needs more, with most of the
device free. Without the limit the request and the rest of the step would have fitted: at the failing batch of 16,384 rows a step needs under 2 GiB.
Nothing grows within a batch size. Line: in the teacher's or the student's forward. Advice: the process's own limit.
--fixed: the batch stays at 1,024 rows.
"""

import sys

import torch
from pace import Pace
from torch import nn

torch.cuda.set_per_process_memory_fraction(0.3)


def network(width):
    return nn.Sequential(nn.Linear(1024, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 4096)).cuda()


def main():
    teacher, student, pace = network(4096).eval().requires_grad_(False), network(1024), Pace(0.02)
    optimizer = torch.optim.AdamW(student.parameters())
    while True:
        rows = min(512 * 2 ** (pace.step // 40), 1024 if "--fixed" in sys.argv else 16384)
        x = torch.rand(rows, 1024, device="cuda")
        with torch.no_grad():
            target = teacher(x)
        loss = nn.functional.kl_div(student(x).log_softmax(1), target.log_softmax(1), log_target=True, reduction="batchmean")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if not pace():
            break


main()
