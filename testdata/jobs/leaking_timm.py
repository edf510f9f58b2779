"""A training loop of timm's parts with a moving average of the weights; with the argument leak, the loss of each step is kept as a tensor."""
import sys
import timm
import torch
from timm.optim import create_optimizer_v2
from timm.utils import AverageMeter, ModelEmaV3

net = timm.create_model("resnet10t", pretrained=False, num_classes=10).cuda()
opt = create_optimizer_v2(net, opt="lamb", lr=1e-4)
ema, meter, losses = ModelEmaV3(net), AverageMeter(), []

def train_one_epoch(epoch):
    for i in range(50):
        x = torch.randn(4, 3, 64, 64, device="cuda"); y = torch.randint(0, 10, (4,), device="cuda")
        loss = torch.nn.functional.cross_entropy(net(x), y)
        opt.zero_grad(); loss.backward(); opt.step(); ema.update(net)
        meter.update(loss.item(), 4)
        if "leak" in sys.argv:
            losses.append(loss.detach())
    if epoch == 0: print("TRAINING", flush=True)

for epoch in range(10**9): train_one_epoch(epoch)
