"""A notebook: a kernel of IPython that is given one cell after another, as a browser gives them. It prints the kernel's PID, waits
until there is the file that its argument names, and goes on; the last cell does not end. It needs ipykernel."""

import os
import sys
import time

from jupyter_client.manager import start_new_kernel

CELLS = [
    "import time, torch\nfrom torch import nn",
    "model = nn.Sequential(nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 1024)).cuda()\noptimizer = torch.optim.SGD(model.parameters(), 1e-3)\nlosses = []",
    """def step():
    x = torch.randn(64, 1024, device="cuda")
    loss = (model(x) - x).square().mean()
    losses.append(loss)
    loss.backward(retain_graph=True)
    optimizer.step()
    optimizer.zero_grad()""",
    "torch.zeros(1 << 20, device='cuda')",
    """def train():
    scratch = torch.ones(1 << 20, device="cuda")
    while True:
        step()
        time.sleep(0.01)""",
    "# a cell of which the second line runs\ntrain()",
]


def main():
    manager, client = start_new_kernel(kernel_name="python3")
    try:
        for number, cell in enumerate(CELLS, 1):
            if number == 4:
                print("KERNEL", manager.provisioner.process.pid, flush=True)
                while not os.path.exists(sys.argv[1]):
                    time.sleep(0.01)
            if number == len(CELLS):
                print("TRAINING", flush=True)
            reply = client.execute_interactive(cell, output_hook=lambda message: None, timeout=600)
            assert reply["content"]["status"] == "ok" and reply["content"]["execution_count"] == number, reply
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


if __name__ == "__main__":
    main()
