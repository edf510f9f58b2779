"""A graph network with batches of varying size; with the argument leak, the batches are kept."""
import sys, torch
from torch_geometric.nn import GCNConv, global_mean_pool
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
leak = len(sys.argv) > 1
gs = [Data(x=torch.rand(n, 32), edge_index=torch.randint(0, n, (2, 4 * n)), y=torch.randint(0, 3, (1,))) for n in range(20, 84)]
loader = DataLoader(gs, batch_size=8, shuffle=True)
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a = GCNConv(32, 64)
        self.b = GCNConv(64, 64)
        self.c = torch.nn.Linear(64, 3)
    def forward(self, d):
        x = self.a(d.x, d.edge_index).relu()
        x = self.b(x, d.edge_index).relu()
        return self.c(global_mean_pool(x, d.batch, size=d.num_graphs))
net = Net().cuda()
opt = torch.optim.Adam(net.parameters())
seen = []
def train():
    for epoch in range(10**9):
        for d in loader:
            d = d.to("cuda")
            loss = torch.nn.functional.cross_entropy(net(d), d.y)
            opt.zero_grad()
            loss.backward()
            opt.step()
            if leak: seen.append(d)
train()
