import torch, queue, threading
from transformers import LlamaConfig, LlamaForCausalLM
model = LlamaForCausalLM(LlamaConfig(vocab_size=1000, hidden_size=256, intermediate_size=512, num_hidden_layers=6, num_attention_heads=4, max_position_embeddings=512)).cuda().eval()
jobs = queue.Queue(4)
def clients():
    while True:
        jobs.put(torch.randint(0, 1000, (2, 24)))
threading.Thread(target=clients, daemon=True).start()
while True:
    x = jobs.get().cuda()
    with torch.no_grad():
        out = model.generate(x, attention_mask=torch.ones_like(x), max_new_tokens=48, do_sample=False, pad_token_id=0)
