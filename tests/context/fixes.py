"""Steps whose line of the fix has to hold where it is put: in the frame that it is for, before what it would name."""

from __future__ import annotations

import torch
from torch import nn
from torch.func import functional_call

from .runs import HOME, Run, broken


@broken("tests/context/fixes.py", "total = torch.zeros(1, device='sim:1')", kind="made", cpu="total")
def total_made_before_what_is_added(run: Run):
    total = torch.zeros(1)
    value = run.batch["image"].sum().reshape(1)
    total += value  # fails


@broken("tests/context/fixes.py", "total = torch.zeros(1, device=value.device)", kind="made", cpu="total")
def total_made_behind_what_is_added(run: Run):
    value = run.batch["image"].sum().reshape(1)
    total = torch.zeros(1)
    total += value  # fails


class Called(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


@broken("", "scale = torch.ones(4, device='sim:1')", kind="made", cpu="scale")
def made_around_a_lambda(run: Run):
    scale = torch.ones(4)
    model = Called(lambda x: x * scale)  # fails
    model(run.batch["image"])


@broken("", "unmoor.to_device(row, like=model)", kind="tensor", cpu="row")
def drawn_in_a_comprehension(run: Run):
    model = run.model
    [model(row) for row in run.batch["image"].cpu().split(1)]  # fails


@broken("0 (Linear) got its input on cpu", "torch.ones(5, 4).to('sim:1')", kind="tensor", cpu="its input")
def made_in_the_call_of_the_model(run: Run):
    run.model = nn.Sequential(nn.Linear(4, 8), nn.ReLU()).to(HOME)
    run.model(torch.ones(5, 4))  # fails


@broken("0 (Linear) got its input on cpu", "(image / 255).to('sim:1')", kind="tensor", cpu="its input")
def computed_in_the_call_of_the_model(run: Run):
    run.model, image = nn.Sequential(nn.Linear(4, 8), nn.ReLU()).to(HOME), run.batch["image"].cpu()
    run.model(image / 255)  # fails


@broken("", "unmoor.to_device(weights", kind="batch", cpu="weights['2.bias']")
def stand_in_of_a_functional_call(run: Run):
    model = run.model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).to(HOME)
    weights = {name: one.detach() for name, one in model.named_parameters()}
    weights["2.bias"] = weights["2.bias"].cpu()
    functional_call(model, weights, (run.batch["image"],))  # fails


class Named(nn.Module):
    def __init__(this):
        super().__init__()
        this.mask = torch.eye(4)[0] + 1

    def forward(this, x):
        return x * this.mask  # fails


@broken("", 'this.register_buffer("mask", torch.eye(4)[0] + 1, persistent=False)', cpu="mask")
def attribute_of_an_expression(run: Run):
    run.model = Named().to(HOME)
    run.model(run.batch["image"])


attribute_of_an_expression.source = Named


class Stacked(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = layers
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        for layer in self.layers.values() if isinstance(self.layers, dict) else self.layers:
            x = layer(x)  # fails
        return self.head(x)


@broken("", "self.layers = nn.ModuleList(self.layers)", kind="attribute", cpu="layer.weight")
def layers_in_a_plain_list(run: Run):
    run.model = Stacked([nn.Linear(4, 4), nn.Linear(4, 4)]).to(HOME)
    run.model(run.batch["image"])


@broken("", "self.layers = nn.ModuleDict(self.layers)", kind="attribute", cpu="layer.weight")
def layers_in_a_plain_dict(run: Run):
    run.model = Stacked({"first": nn.Linear(4, 4)}).to(HOME)
    run.model(run.batch["image"])


layers_in_a_plain_list.source = layers_in_a_plain_dict.source = Stacked


@broken("", "torch.ones(2, device='sim:1')", kind="made", cpu="torch.ones(2)")
def made_beside_one_that_names_its_device(run: Run):
    torch.cat([torch.ones(2, device=HOME), torch.ones(2)])  # fails


@broken("", "model.scale = model.scale.to('sim:1')", kind="tensor", cpu="scale")
def attribute_set_from_outside(run: Run):
    model = run.model = nn.Sequential(nn.Linear(4, 4)).to(HOME)
    model.scale = torch.ones(4)
    model(run.batch["image"]) * model.scale  # fails
