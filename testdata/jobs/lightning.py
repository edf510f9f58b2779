import torch, pytorch_lightning as pl
class Net(pl.LightningModule):
    def __init__(self):
        super().__init__(); self.net = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.LayerNorm(256), torch.nn.GELU()) for _ in range(8)])
    def training_step(self, batch, i):
        x = batch[0]; return torch.nn.functional.mse_loss(self.net(x), x)
    def configure_optimizers(self): return torch.optim.AdamW(self.parameters(), 1e-3)
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(4096, 256)), batch_size=32)
pl.Trainer(max_epochs=10**6, accelerator="gpu", devices=1, logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False).fit(Net(), data)
