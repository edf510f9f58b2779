"""A decoder of x-transformers, four passes a step; with the argument leak, losses are added up with their graph, which keeps no device memory."""
import sys, torch
from x_transformers import TransformerWrapper, Decoder
from x_transformers.autoregressive_wrapper import AutoregressiveWrapper
leak = len(sys.argv) > 1
m = AutoregressiveWrapper(TransformerWrapper(num_tokens=256, max_seq_len=512, attn_layers=Decoder(dim=256, depth=4, heads=4))).cuda()
opt = torch.optim.Adam(m.parameters(), lr=1e-4)
total = 0
i = 0
while True:
    for _ in range(4):
        loss = m(torch.randint(0, 256, (4, 257), device="cuda"))
        (loss / 4).backward()
    torch.nn.utils.clip_grad_norm_(m.parameters(), 0.5)
    opt.step()
    opt.zero_grad()
    if leak: total = total + loss
    i += 1
