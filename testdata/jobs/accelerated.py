import torch
from accelerate import Accelerator
from transformers import BertConfig, BertForSequenceClassification
a = Accelerator()
model = BertForSequenceClassification(BertConfig(vocab_size=1000, hidden_size=192, num_hidden_layers=4, num_attention_heads=4, intermediate_size=384))
opt = torch.optim.AdamW(model.parameters(), 1e-4)
data = torch.utils.data.DataLoader([{"input_ids": torch.randint(0, 1000, (48,)), "labels": i % 2} for i in range(2048)], batch_size=16)
model, opt, data = a.prepare(model, opt, data)
while True:
    for batch in data:
        loss = model(**batch).loss
        a.backward(loss); opt.step(); opt.zero_grad()
