import torch, timm
net = timm.create_model("vit_tiny_patch16_224", pretrained=False, img_size=64, num_classes=10).cuda()
opt = torch.optim.AdamW(net.parameters(), 1e-4)
while True:
    x = torch.randn(4, 3, 64, 64, device="cuda")
    loss = net(x).square().mean(); loss.backward(); opt.step(); opt.zero_grad()
