"""The training loop of skorch; with the argument leak, a callback keeps predictions with their graph."""
import sys, torch, numpy as np
from skorch import NeuralNetClassifier
from skorch.callbacks import Callback
leak = len(sys.argv) > 1
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.l = torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(512, 10))
    def forward(self, x): return torch.softmax(self.l(x), -1)
class Keep(Callback):
    def initialize(self):
        self.kept = []
        return self
    def on_batch_end(self, net, X=None, y=None, training=None, y_pred=None, loss=None, **kw):
        if leak and training: self.kept.append(y_pred)
X = np.random.rand(4096, 64).astype("float32")
y = np.random.randint(0, 10, 4096).astype("int64")
net = NeuralNetClassifier(Net, max_epochs=10**6, lr=0.1, batch_size=64, device="cuda", callbacks=[("keep", Keep())], verbose=0, callbacks__valid_acc=None, callbacks__print_log=None)
net.fit(X, y)
