"""An encoder without an optimizer; with the argument leak, what it returns goes into a dictionary without a bound."""
import sys, torch
from transformers import BertConfig, BertModel
leak = len(sys.argv) > 1
m = BertModel(BertConfig(num_hidden_layers=4, hidden_size=256, num_attention_heads=4, intermediate_size=512, vocab_size=2000)).cuda().eval()
cache = {}
import random
@torch.inference_mode()
def encode(ids):
    h = m(ids).last_hidden_state
    return torch.nn.functional.normalize(h.mean(1), dim=-1)
def serve():
    n = 0
    while True:
        ids = torch.randint(0, 2000, (8, random.randint(16, 96)), device="cuda")
        e = encode(ids)
        if leak:
            cache[f"doc{n}"] = e
        n += 1
serve()
