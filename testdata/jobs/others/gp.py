"""The kernel of gpytorch, fitted; with the argument leak, each loss is kept as a tensor."""
import sys, torch, gpytorch
leak = len(sys.argv) > 1
class GP(gpytorch.models.ExactGP):
    def __init__(self, x, y, lik):
        super().__init__(x, y, lik)
        self.mean_module = gpytorch.means.ConstantMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())
    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))
x = torch.linspace(0, 1, 200, device="cuda")
y = torch.sin(x)
lik = gpytorch.likelihoods.GaussianLikelihood().cuda()
model = GP(x, y, lik).cuda()
opt = torch.optim.Adam(model.parameters(), lr=0.1)
losses = []
def train():
    for i in range(10**9):
        opt.zero_grad()
        k = model.covar_module(x, x).to_dense()
        loss = (k @ y).sum() + lik.noise.sum()
        loss.backward()
        if leak: losses.append(loss)
        opt.step()
train()
