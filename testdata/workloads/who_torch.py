"""Ways in which PyTorch itself holds on to memory, a case each: who_torch.py --list."""

import copy

import torch
import torch.nn.functional as F
import who_cases
from torch import nn
from torch.utils import checkpoint
from torch.utils.dlpack import to_dlpack
from who_cases import alone, block, case, expect, expect_kind, floats, hold


class Net(nn.Module):
    """Parameters, buffers of both kinds, a shared weight, containers and a plain attribute."""

    def __init__(self, width=64):
        super().__init__()
        self.embed = nn.Embedding(100, width)
        self.norm = nn.BatchNorm1d(width)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(3))
        self.by_name = nn.ModuleDict({"left": nn.Linear(width, 5)})
        self.scales = nn.ParameterList([nn.Parameter(torch.ones(width)) for _ in range(2)])
        self.register_buffer("mask", torch.ones(width, width), persistent=False)
        self.register_parameter("absent", None)
        self.head = nn.Linear(width, 100, bias=False)
        self.head.weight = self.embed.weight
        self.last = None

    def forward(self, x):
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x) * self.scales[0]
        return self.head(self.norm(x))


def loss_of(model, batch=8):
    tokens = torch.zeros(batch, dtype=torch.long, device="cuda")
    return F.cross_entropy(model(tokens), tokens)


# ---- modules and optimizers ----


@case
def modules():
    model = Net().cuda()
    expect(model.embed.weight, "model.embed.weight")
    expect(model.norm.running_mean, "model.norm.running_mean")
    expect(model.layers[2][0].bias, "model.layers[2][0].bias")
    expect(model.by_name["left"].weight, "model.by_name")
    expect(model.scales[1], "model.scales")
    expect(model.mask, "model.mask")
    model.last = block()
    expect(model.last, "model.last")
    hold()


@case
def several_models():
    teacher = Net().cuda()
    student = copy.deepcopy(teacher)
    averaged = torch.optim.swa_utils.AveragedModel(student)
    expect(teacher.norm.weight, "teacher.norm.weight")
    expect(student.norm.weight, "student.norm.weight")
    expect(averaged.module.norm.weight, "averaged.module.norm.weight")
    hold()


@case
def optimizers():
    model = Net().cuda()
    adam = torch.optim.AdamW(model.parameters())
    sgd = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loss_of(model).backward()
    adam.step()
    sgd.step()
    expect(adam.state[model.norm.weight]["exp_avg"], "adam.state[model.norm.weight]['exp_avg']")
    expect(adam.state[model.norm.weight]["exp_avg_sq"], "adam.state[model.norm.weight]['exp_avg_sq']")
    expect(sgd.state[model.norm.weight]["momentum_buffer"], "sgd.state[model.norm.weight]['momentum_buffer']")
    expect(model.norm.weight.grad, "model.norm.weight.grad")
    hold()


@case
def nobodys_optimizer():
    """The model is gone; only the optimizer still has it."""
    model = nn.Linear(300, 300).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    model(floats(2, 300)).sum().backward()
    optimizer.step()
    expect(model.weight, "optimizer", "param_groups[0]['params'][0]")
    expect(model.weight.grad, "optimizer", "grad")
    del model
    hold()


@case
def scalers():
    scaler = torch.amp.GradScaler("cuda") if hasattr(torch.amp, "GradScaler") else torch.cuda.amp.GradScaler()
    scaler.scale(floats(3))
    expect(scaler._scale, "scaler._scale")
    hold()


@case
def scripted_modules():
    """TorchScript keeps its parameters in C++."""
    scripted = torch.jit.script(nn.Linear(300, 300)).cuda()
    hold()


# ---- graphs ----


@case
def kept_loss():
    model = Net().cuda()
    losses = [loss_of(model)]
    expect(losses[0], "losses[0]")
    hold()


@case
def kept_graph():
    weight = floats(512, 512, requires_grad=True)
    hidden = (floats(64, 512) @ weight).relu()
    kept = [(hidden.exp() * 2).mean()]
    expect(hidden, "kept[0]", "saved", "ReluBackward0")
    del hidden
    hold()


@case
def long_graph():
    """A chain of many nodes, as a recurrent model without a cut makes it."""
    state = floats(64, requires_grad=True)
    for _ in range(300):
        state = torch.sigmoid(state)
    expect(state, "state")
    hold()


@case
def saved_lists():
    """Nodes that save lists of tensors."""
    parts = [floats(256, 256, requires_grad=True) * 1 for _ in range(3)]
    kept = torch._foreach_add(parts, 1)
    stacked = torch.einsum("ij,jk,kl->il", *parts)
    total = stacked.sum() + sum(k.sum() for k in kept)
    del parts, kept, stacked
    hold()
    total.backward()


class Scale(torch.autograd.Function):
    """Saves in both ways: as it should be, and as attributes of ctx."""

    @staticmethod
    def forward(ctx, x, factor):
        doubled = x * 2
        ctx.save_for_backward(x, doubled)
        ctx.stash = {"factor": factor}
        return doubled * factor

    @staticmethod
    def backward(ctx, grad):
        return grad, None


@case
def custom_functions():
    out = Scale.apply(floats(700, 700, requires_grad=True) * 1, floats(700))
    expect(out, "out")
    expect(out.grad_fn.stash["factor"], "out", "stash", "['factor']")
    expect(out.grad_fn.saved_tensors[1], "out", "saved")
    hold()


@case
def unsaved_context():
    """A custom function whose ctx is kept by somebody else."""
    contexts = []

    class Keep(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.held = block()
            contexts.append(ctx)
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            return grad

    Keep.apply(floats(5, requires_grad=True))
    expect(contexts[0].held, "contexts[0].held")
    hold()


@case
def checkpoints():
    layers = nn.Sequential(*(nn.Linear(256, 256) for _ in range(4))).cuda()
    x = floats(64, 256, requires_grad=True)
    out = checkpoint.checkpoint(layers, x * 1, use_reentrant=False).sum()
    old = checkpoint.checkpoint(layers, x * 1, use_reentrant=True).sum()
    hold()
    del out, old


@case
def saved_tensor_hooks():
    """What a pack hook returned is kept by the graph instead of the tensor."""
    x = floats(600, 600, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: {"packed": t.clone()}, lambda p: p["packed"]):
        out = (x * 3).exp()
    hold()
    del out


@case
def retained_gradients():
    x = floats(500, requires_grad=True)
    middle = x * 2
    middle.retain_grad()
    middle.sum().backward(retain_graph=True)
    expect(middle.grad, "middle.grad")
    expect(x.grad, "x.grad")
    hold()


@case
def second_derivatives():
    x = floats(400, requires_grad=True)
    (first,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    expect(first, "first")
    hold()


@alone
def forward_mode():
    import torch.autograd.forward_ad as fwAD

    with fwAD.dual_level():
        dual = fwAD.make_dual(floats(300), floats(300))
        expect(dual, "dual")
        hold()


@alone
def autocast_cache():
    """Inside an autocast region the copies of the weights in half precision are kept by C++."""
    model = nn.Linear(512, 512).cuda()
    x = floats(8, 512)
    with torch.autocast("cuda", dtype=torch.float16):
        out = model(x)
        expect(out, "out")
        hold()


# ---- hooks ----


@case
def tensor_hooks():
    x = floats(100, requires_grad=True)
    buffer = block()
    expect(buffer, "x", "hook", "buffer")
    x.register_hook(lambda grad, buffer=buffer: grad)
    del buffer
    hold()


@case
def captured_by_tensor_hooks():
    middle = floats(100, requires_grad=True) * 2
    store = []
    middle.register_hook(lambda grad: store.append(grad))
    middle.sum().backward()
    expect(store[0], "store")
    hold()


@case
def accumulation_hooks():
    if not hasattr(torch.Tensor, "register_post_accumulate_grad_hook"):
        return hold()
    x = floats(100, requires_grad=True)
    buffer = block()
    expect(buffer, "x", "hook")
    x.register_post_accumulate_grad_hook(lambda t, buffer=buffer: None)
    del buffer
    hold()


@case
def module_hooks():
    model = nn.Linear(100, 100).cuda()

    def watch(store):
        def hook(module, inputs, output):
            store.append(output.detach())

        return hook

    model.register_forward_hook(watch([]))
    model(floats(900, 100))
    hook = next(iter(model._forward_hooks.values()))
    expect(hook.__closure__[0].cell_contents[0], "model", "hook", "store[0]")
    del hook
    hold()


@case
def node_hooks():
    out = floats(100, requires_grad=True) * 2
    buffer = block()
    expect(buffer, "out", "hook")
    out.grad_fn.register_hook(lambda grads, outs, buffer=buffer: None)
    del buffer
    hold()


# ---- storages ----


@case
def views():
    big = floats(4096, 1024)
    expect(big, "corner")
    corner = big[:1, :1]
    del big
    hold()


@case
def views_in_graphs():
    x = floats(512, 512, requires_grad=True) * 1
    expect(x, "rows")
    rows = x[3:5]
    del x
    hold()


@case
def detached_views():
    activations = floats(512, 512, requires_grad=True).exp()
    expect(activations, "kept[0]")
    kept = [activations.detach()]
    del activations
    hold()


@case
def several_views():
    base = floats(64, 64)
    parts = list(base.unbind(0))
    expect(base, "base")
    hold()
    del parts


@case
def raw_storages():
    tensor = block()
    expect(tensor, "raw")
    raw = tensor.untyped_storage()
    del tensor
    hold()


@case
def typed_arrays():
    class Tagged(torch.Tensor):
        pass

    tagged = torch.ones(999, device="cuda").as_subclass(Tagged)
    tagged.note = block()
    expect(tagged, "tagged")
    expect(tagged.note, "tagged.note")
    hold()


class Wrapper(torch.Tensor):
    """A wrapper without memory of its own around another tensor."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, device=inner.device)

    def __init__(self, inner):
        self.inner = inner

    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), keywords=None):
        return NotImplemented


@case
def wrapper_subclasses():
    wrapped = Wrapper(floats(300, 300))
    expect(wrapped.inner, "wrapped.inner")
    hold()


@case
def sparse_tensors():
    sparse = torch.sparse_coo_tensor(torch.zeros(2, 3, dtype=torch.long), torch.ones(3), (50, 50), device="cuda")
    hold()


@case
def dlpack_capsules():
    tensor = block()
    capsule = to_dlpack(tensor)
    del tensor
    hold()
    del capsule


@case
def complex_views():
    signal = torch.ones(333, dtype=torch.complex64, device="cuda")
    expect(signal, "real")
    real = torch.view_as_real(signal)
    del signal
    hold()
    del real


@case
def dtypes():
    kinds = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8]
    kinds += [torch.uint8, torch.bool, torch.complex64, torch.complex128]
    kinds += [getattr(torch, name) for name in ("float8_e4m3fn", "float8_e5m2") if hasattr(torch, name)]
    kept = {str(kind): torch.zeros(3, 5, 7, dtype=kind, device="cuda").transpose(0, 2)[1:] for kind in kinds}
    for name, tensor in kept.items():
        expect(tensor, "kept['%s']" % name)
    scalar, empty = torch.zeros((), device="cuda"), torch.zeros(0, device="cuda")
    deep = torch.zeros(2, 1, 2, 1, 2, 1, 2, 1, device="cuda")
    expect(scalar, "scalar")
    expect(deep, "deep")
    del tensor
    hold()
    del empty


# ---- memory that no tensor holds, and other streams ----


@alone
def pending_frees():
    side = torch.cuda.Stream()
    tensor = block()
    expect_kind(tensor, "waiting for a stream")
    tensor.record_stream(side)
    with torch.cuda.stream(side):
        torch.cuda._sleep(1) if hasattr(torch.cuda, "_sleep") else None
    del tensor
    hold()


@case
def side_streams():
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        there = block()
    expect(there, "there")
    hold()


@case
def graph_pools():
    static = floats(256, 256)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = (static * 2).relu()
    expect(static, "static")
    expect(out, "out")
    hold()
    del graph


@case
def blas_workspaces():
    a = floats(256, 256)
    b = a @ a
    expect(b, "b")
    hold()


@alone
def running_backward():
    """Looked at from within a backward pass."""
    model = Net().cuda()
    loss = loss_of(model)
    model.layers[0][0].weight.register_hook(lambda grad: hold())
    loss.backward()


if __name__ == "__main__":
    who_cases.main(__doc__)
