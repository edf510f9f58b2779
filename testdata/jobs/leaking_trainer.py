"""transformers' Trainer that evaluates; with the argument leak, a callback keeps a copy of weights at each step."""
import sys
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

class Data(torch.utils.data.Dataset):
    def __init__(self, n): self.n = n
    def __len__(self): return self.n
    def __getitem__(self, i):
        x = torch.randint(0, 500, (64,)); return {"input_ids": x, "labels": x}

class Watch(TrainerCallback):
    def __init__(self): self.history = []
    def on_step_end(self, args, state, control, model=None, **kwargs):
        if state.global_step == 20: print("TRAINING", flush=True)
        if "leak" in sys.argv:
            self.history.append(model.transformer.wpe.weight.detach().clone())

def main():
    model = GPT2LMHeadModel(GPT2Config(vocab_size=512, n_positions=64, n_embd=128, n_layer=6, n_head=4))
    args = TrainingArguments(output_dir="out", per_device_train_batch_size=4, max_steps=10**9, report_to=[], save_strategy="no", logging_steps=50, disable_tqdm=True, dataloader_num_workers=0, eval_strategy="steps", eval_steps=30)
    Trainer(model=model, args=args, train_dataset=Data(1 << 22), eval_dataset=Data(40), callbacks=[Watch()]).train()

main()
