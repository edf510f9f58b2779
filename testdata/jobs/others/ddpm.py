"""Diffusion with a moving average and samples every twentieth step; with the argument leak, the samples are kept."""
import sys, torch
from denoising_diffusion_pytorch import Unet, GaussianDiffusion
from ema_pytorch import EMA
leak = len(sys.argv) > 1
u = Unet(dim=32, dim_mults=(1, 2), flash_attn=False)
d = GaussianDiffusion(u, image_size=32, timesteps=100, sampling_timesteps=10).cuda()
ema = EMA(d, update_every=10)
opt = torch.optim.Adam(d.parameters(), lr=1e-4)
grid = []
for step in range(10**9):
    loss = d(torch.rand(4, 3, 32, 32, device="cuda"))
    loss.backward()
    opt.step()
    opt.zero_grad()
    ema.update()
    if step % 20 == 19:
        with torch.no_grad():
            img = d.sample(batch_size=2)
        if leak: grid.append(img)
