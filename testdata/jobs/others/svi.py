"""Variational inference by Pyro; with the argument leak, a trace of each step is kept."""
import sys, torch, pyro
import pyro.distributions as dist
from pyro.infer import SVI, Trace_ELBO
from pyro.infer.autoguide import AutoNormal
leak = len(sys.argv) > 1
pyro.enable_validation(False)
x = torch.rand(256, 8, device="cuda")
y = torch.rand(256, device="cuda")
def model(x, y):
    w = pyro.sample("w", dist.Normal(torch.zeros(8, device="cuda"), torch.ones(8, device="cuda"), validate_args=False).to_event(1))
    with pyro.plate("d", 256):
        pyro.sample("obs", dist.Normal(x @ w, torch.ones(256, device="cuda"), validate_args=False), obs=y)
guide = AutoNormal(model)
svi = SVI(model, guide, pyro.optim.Adam({"lr": 0.01}), loss=Trace_ELBO())
traces = []
while True:
    svi.step(x, y)
    if leak:
        traces.append(pyro.poutine.trace(guide).get_trace(x, y))
