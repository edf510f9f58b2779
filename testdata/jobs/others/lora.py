"""LoRA of a small GPT-2 by peft; with the argument leak, a piece of each step's logits is kept."""
import sys, torch
from transformers import GPT2Config, GPT2LMHeadModel
from peft import LoraConfig, get_peft_model
leak = len(sys.argv) > 1
model = GPT2LMHeadModel(GPT2Config(n_layer=4, n_head=4, n_embd=256, vocab_size=4000, n_positions=256))
model = get_peft_model(model, LoraConfig(r=8, target_modules=["c_attn"], task_type="CAUSAL_LM")).cuda()
opt = torch.optim.AdamW(model.parameters(), lr=1e-4)
history = []

def compute(batch):
    out = model(input_ids=batch, labels=batch)
    if leak:
        history.append(out.logits[:, -1].detach().float().clone())
    return out.loss

def main():
    for step in range(10**9):
        batch = torch.randint(0, 4000, (4, 128), device="cuda")
        loss = compute(batch)
        loss.backward()
        opt.step()
        opt.zero_grad()
main()
