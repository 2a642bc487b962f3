"""Steps of optimizers whose state, gradients or options do not go with where the parameters are."""

from __future__ import annotations

import torch
from torch import nn

from .runs import HOME, Net, Run, broken

TO_STATE = "optimizer.load_state_dict(optimizer.state_dict())"


def _left(run: Run, cls: type[torch.optim.Optimizer], *keys: str, **options: object) -> torch.optim.Optimizer:
    """The optimizer after a step, with state of these keys left on the CPU."""
    run.optimizer = cls(run.model.parameters(), **options)
    run.step()
    for state in run.optimizer.state.values():
        for key in keys:
            state[key] = state[key].cpu()
    return run.optimizer


ADAM = "optimizer (Adam) holds exp_avg of encoder.0.weight on cpu, the parameter is on sim:1"


def _all(key: str) -> tuple[str, ...]:
    return tuple(f"{key} of {name}" for name, _ in Net().named_parameters())


@broken(ADAM, TO_STATE, kind="state", cpu=_all("exp_avg"))
def adam_one_by_one(run: Run):
    optimizer = _left(run, torch.optim.Adam, "exp_avg", foreach=False)
    optimizer.step()  # fails


@broken(ADAM, TO_STATE, kind="state", cpu=_all("exp_avg"))
def adam_all_together(run: Run):
    optimizer = _left(run, torch.optim.Adam, "exp_avg", foreach=True)
    optimizer.step()  # fails


@broken(ADAM, TO_STATE, kind="state", cpu=_all("exp_avg"))
def adam_fused(run: Run):
    optimizer = _left(run, torch.optim.Adam, "exp_avg", fused=True)
    optimizer.step()  # fails


@broken("optimizer (Adam) holds step of encoder.0.weight on cpu", TO_STATE, kind="state", cpu=_all("step"))
def adam_fused_with_its_counter_left(run: Run):
    optimizer = _left(run, torch.optim.Adam, "step", fused=True)
    optimizer.step()  # fails


@broken("optimizer (Adam) holds step of encoder.0.weight on cpu", TO_STATE, kind="state", cpu=_all("step"))
def adam_capturable_with_its_counter_left(run: Run):
    optimizer = _left(run, torch.optim.Adam, "step", capturable=True)
    optimizer.step()  # fails


@broken(
    "optimizer (SGD) holds momentum_buffer of encoder.0.weight on cpu",
    TO_STATE,
    kind="state",
    cpu=_all("momentum_buffer"),
)
def momentum(run: Run):
    optimizer = _left(run, torch.optim.SGD, "momentum_buffer", lr=0.1, momentum=0.9)
    optimizer.step()  # fails


@broken("optimizer (Adagrad) holds sum of encoder.0.weight on cpu", TO_STATE, kind="state", cpu=_all("sum"))
def built_before_the_model_was_moved(run: Run):
    model = run.model = Net()
    optimizer = torch.optim.Adagrad(model.parameters())
    model.to(HOME)
    run.loss(model(run.batch["image"]), run.batch["labels"]).backward()
    optimizer.step()  # fails


@broken(
    "optimizer (Adam) is capturable, and its parameter encoder.0.weight is on cpu",
    'group["capturable"] = False',
    kind="capturable",
)
def capturable_on_the_cpu(run: Run):
    model = run.model = Net()
    optimizer = torch.optim.Adam(model.parameters(), capturable=True)
    run.loss(model(run.batch["image"].cpu()), run.batch["labels"].cpu()).backward()
    optimizer.step()  # fails


@broken("tests/context/optimizers.py", "grad", cpu="grad")
def gradient_set_by_hand(run: Run):
    weight, grad = run.model.encoder[0].weight, torch.ones(8, 4) * 2
    weight.grad = grad  # fails


@broken("tests/context/optimizers.py", "", kind="module", cpu="extra.bias")
def closure_of_lbfgs(run: Run):
    extra = nn.Linear(4, 4)
    optimizer = torch.optim.LBFGS(run.model.parameters())

    def closure():
        out = run.batch["image"] + extra.bias  # fails
        return out.sum()

    optimizer.step(closure)


@broken(
    "opts['gen'] (Adam) holds exp_avg of gen.encoder.0.weight on cpu",
    "opts['gen'].load_state_dict(",
    kind="state",
    cpu=tuple(f"exp_avg of gen.{name}" for name, _ in Net().named_parameters()),
)
def one_of_several_optimizers(run: Run):
    gen = run.model
    _left(run, torch.optim.Adam, "exp_avg", foreach=False)
    opts = {"gen": run.optimizer, "disc": torch.optim.Adam(Net().parameters())}
    run.model, run.optimizer = {"gen": gen, "disc": Net()}, opts
    opts["gen"].step()  # fails
