import torch, torchvision
model = torchvision.models.resnet18(num_classes=10).cuda()
opt = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
while True:
    x = torch.randn(8, 3, 64, 64, device="cuda"); y = torch.randint(0, 10, (8,), device="cuda")
    loss = torch.nn.functional.cross_entropy(model(x), y)
    opt.zero_grad(); loss.backward(); opt.step()
