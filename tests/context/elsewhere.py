"""Failures whose frames are gone or lie between libraries: replicas, workers, compiled code, backward, wrappers."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.parallel import parallel_apply
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

from .runs import HOME, Net, Run, broken


class Masked(Net):
    def __init__(self):
        super().__init__()
        self.mask = torch.ones(8)

    def forward(self, x):
        return self.decoder(self.encoder(x) * self.mask)  # fails


@broken("Masked brings together mask on cpu", "self.register_buffer(", kind="attribute", cpu="mask")
def replica_in_a_thread(run: Run):
    run.model = Masked().to(HOME)
    x = run.batch["image"]
    parallel_apply([run.model, run.model], [x, x], devices=[1, 1])


replica_in_a_thread.source = Masked


@broken("Masked brings together mask on cpu", "self.register_buffer(", kind="attribute", cpu="mask")
def compiled_model(run: Run):
    run.model = torch.compile(Masked().to(HOME), backend="eager")
    run.model(run.batch["image"])


compiled_model.source = Masked


@broken("", "", cpu="x")
def input_of_a_compiled_model(run: Run):
    model = run.model = torch.compile(run.model, backend="eager")
    x = run.batch["image"].cpu()
    model(x)


class Rows(Dataset):
    """Rows that are scaled as they are read."""

    def __init__(self, rows, scale):
        self.rows, self.scale = rows, scale

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i] * self.scale  # fails


@broken("tests/context/elsewhere.py", "", cpu="self.scale")
def dataset_read_in_this_process(run: Run):
    loader = DataLoader(Rows(run.batch["image"], torch.arange(4.0) + 1))
    next(iter(loader))


dataset_read_in_this_process.source = Rows


@broken("tests/context/elsewhere.py", "", cpu="self.scale")
def dataset_read_in_a_worker(run: Run):
    loader = DataLoader(Rows(run.batch["image"], torch.arange(4.0) + 1), num_workers=1)
    next(iter(loader))


dataset_read_in_a_worker.source = Rows


@broken("tests/context/elsewhere.py", "", cpu="rows[1]")
def batch_put_together(run: Run):
    rows = [run.batch["image"][0], run.batch["image"].cpu()[0]]
    for _ in DataLoader(rows, batch_size=2):  # fails
        pass


class Halved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.factor = torch.full((4,), 0.5)
        return x * 1

    @staticmethod
    def backward(ctx, grad):
        factor = ctx.factor
        return grad * factor  # fails


@broken("tests/context/elsewhere.py", "factor = factor.to(grad.device)", cpu="factor")
def backward_of_a_function(run: Run):
    x = run.batch["image"].clone().requires_grad_()
    Halved.apply(x).sum().backward()


backward_of_a_function.source = Halved


@broken("tests/context/elsewhere.py", "", cpu="scale")
def hook_on_a_gradient(run: Run):
    scale = torch.arange(4.0) + 1

    def hook(grad):
        return grad * scale  # fails

    run.model.encoder[0].weight.register_hook(hook)
    run.step()


@broken("tests/context/elsewhere.py", "torch.ones(5, 3, device='sim:1')", cpu="start")
def backward_from_a_gradient_elsewhere(run: Run):
    out, start = run.model(run.batch["image"]), torch.ones(5, 3) * 2
    out.backward(start)  # fails


@broken("Masked brings together mask on cpu", "self.register_buffer(", kind="attribute", cpu="mask")
def recomputed_in_a_checkpoint(run: Run):
    run.model = Masked().to(HOME)
    checkpoint(run.model, run.batch["image"], use_reentrant=False)


recomputed_in_a_checkpoint.source = Masked


class Parallel(nn.DataParallel):
    """DataParallel without the copies that a simulated device cannot make."""

    def __init__(self, module):
        nn.Module.__init__(self)
        self.module, self.src_device_obj, self.device_ids = module, torch.device(HOME), [1]


@broken(
    "Parallel wants its module on sim:1, and decoder.0.running_mean is on cpu",
    'run.model.to("sim:1")',
    kind="model",
    cpu="decoder.0.running_mean",
)
def data_parallel_with_a_buffer_left(run: Run):
    run.model = Parallel(run.model)
    run.model.module.decoder[0].running_mean = torch.zeros(8)
    run.model(run.batch["image"])  # fails


@broken(
    "encoder.0 (Linear) got its input on cpu",
    "self.batch = unmoor.to_device(self.batch, like=self.model)",
    kind="batch",
    cpu="self.batch['image']",
)
def batch_of_a_trainer(run: Run):
    class Trainer:
        def __init__(self, model, batch):
            self.model, self.batch = model, batch

        def fit(self):
            self.model(self.batch["image"])  # fails

    Trainer(run.model, {**run.batch, "image": run.batch["image"].cpu()}).fit()


@broken("encoder.0 (Linear) got its input on cpu", "x = unmoor.to_device(x, like=model)", cpu="x")
def raised_again_by_the_user(run: Run):
    model, x = run.model, run.batch["image"].cpu()
    try:
        model(x)  # fails
    except RuntimeError:
        run.batch.clear()
        raise


@broken("encoder.0 (Linear) got its input on cpu", "", cpu="x")
def within_autocast_and_no_grad(run: Run):
    model, x = run.model, run.batch["image"].cpu()
    with torch.no_grad(), torch.autocast("sim", dtype=torch.bfloat16):
        model(x)  # fails
