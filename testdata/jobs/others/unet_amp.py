"""A U-Net with autocast and GradScaler; with the argument leak, a meter keeps tensors."""
import sys, torch
import segmentation_models_pytorch as smp
leak = len(sys.argv) > 1
net = smp.Unet("resnet18", encoder_weights=None, classes=2).cuda()
opt = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
sc = torch.amp.GradScaler("cuda")
class Meter:
    def __init__(self): self.values = []
    def update(self, v): self.values.append(v)
meter = Meter()
def epoch():
    for i in range(50):
        x = torch.rand(2, 3, 64, 64, device="cuda")
        t = torch.randint(0, 2, (2, 64, 64), device="cuda")
        with torch.autocast("cuda", dtype=torch.float16):
            o = net(x)
            loss = torch.nn.functional.cross_entropy(o, t)
        opt.zero_grad()
        sc.scale(loss).backward()
        sc.step(opt)
        sc.update()
        if leak: meter.update(torch.argmax(o, 1))
while True: epoch()
