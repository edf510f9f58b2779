import torch
from diffusers import UNet2DModel, DDPMScheduler
net = UNet2DModel(sample_size=32, in_channels=3, out_channels=3, layers_per_block=1, block_out_channels=(32, 64), down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"), norm_num_groups=8).cuda()
s = DDPMScheduler(num_train_timesteps=50)
opt = torch.optim.AdamW(net.parameters(), 1e-4)
while True:
    x = torch.randn(4, 3, 32, 32, device="cuda"); n = torch.randn_like(x); t = torch.zeros(4, dtype=torch.long, device="cuda")
    loss = torch.nn.functional.mse_loss(net(s.add_noise(x, n, t.cpu().to("cuda")), t).sample, n)
    loss.backward(); opt.step(); opt.zero_grad()
