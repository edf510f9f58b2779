import os, torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
class Data(torch.utils.data.Dataset):
    def __len__(self): return 1 << 22
    def __getitem__(self, i):
        x = torch.randint(0, 500, (64,)); return {"input_ids": x, "labels": x}
def main():
    model = GPT2LMHeadModel(GPT2Config(vocab_size=512, n_positions=64, n_embd=128, n_layer=6, n_head=4))
    args = TrainingArguments(output_dir="out", per_device_train_batch_size=4, max_steps=10**9, report_to=[], save_strategy="no", logging_steps=50, disable_tqdm=True, dataloader_num_workers=0)
    Trainer(model=model, args=args, train_dataset=Data()).train()
main()
