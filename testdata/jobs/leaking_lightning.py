"""Lightning with a validation each epoch; with the argument leak, the graph of a second forward pass is kept at each step."""
import sys
import pytorch_lightning as pl
import torch

class Net(pl.LightningModule):
    def __init__(self):
        super().__init__(); self.losses = []
        self.net = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.LayerNorm(256), torch.nn.GELU()) for _ in range(8)])
    def training_step(self, batch, i):
        if self.global_step == 20: print("TRAINING", flush=True)
        x = batch[0]; loss = torch.nn.functional.mse_loss(self.net(x), x)
        if "leak" in sys.argv:
            self.losses.append(self.net(x).mean())
        return loss
    def validation_step(self, batch, i):
        return self.net(batch[0]).mean()
    def configure_optimizers(self): return torch.optim.SGD(self.parameters(), 1e-3, momentum=0.9)

data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(1024, 256)), batch_size=32)
pl.Trainer(max_epochs=10**6, accelerator="gpu", devices=1, logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False).fit(Net(), data, data)
