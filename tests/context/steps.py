"""Steps that meet tensors on two devices: batches, losses, modules, code of a user's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from .runs import HOME, Net, Run, broken

TO_BATCH = "batch = unmoor.to_device(batch, like=model)"


@broken("encoder.0 (Linear) got its input on cpu, its weight is on sim:1", TO_BATCH, kind="batch", cpu="batch['image']")
def input_in_a_dict(run: Run):
    model, batch = run.model, {**run.batch, "image": run.batch["image"].cpu()}
    model(batch["image"])  # fails


@broken(
    "encoder.0 (Linear) got its input on cpu, its weight is on sim:1", "x = unmoor.to_device(x, like=model)", cpu="x"
)
def input_alone(run: Run):
    model, x = run.model, torch.ones(2, 4)[:1].cpu()
    model(x)  # fails


@broken("encoder.0 (Linear)", TO_BATCH, kind="batch", cpu="batch[0]['views'][1]")
def input_deep_in_a_tuple(run: Run):
    model, batch = run.model, ({"views": [run.batch["image"], run.batch["image"].cpu()]}, run.batch["labels"])
    model(batch[0]["views"][1])  # fails


@dataclass
class Sample:
    image: torch.Tensor
    labels: torch.Tensor


@broken("encoder.0 (Linear)", TO_BATCH, kind="batch", cpu="batch.image")
def input_of_a_dataclass(run: Run):
    model, batch = run.model, Sample(run.batch["image"].cpu(), run.batch["labels"])
    model(batch.image)  # fails


class Pair(NamedTuple):
    image: torch.Tensor
    labels: torch.Tensor


@broken("loss (CrossEntropyLoss) got its input on sim:1, its target on cpu", TO_BATCH, kind="batch", cpu="batch.labels")
def labels_of_a_named_tuple(run: Run):
    model, loss, batch = run.model, run.loss, Pair(run.batch["image"], run.batch["labels"].cpu())
    loss(model(batch.image), batch.labels)  # fails


@broken(
    "loss (CrossEntropyLoss) got its input on sim:1, its target on cpu", TO_BATCH, kind="batch", cpu="batch['labels']"
)
def labels_left_behind(run: Run):
    model, loss, batch = run.model, run.loss, {**run.batch, "labels": run.batch["labels"].cpu()}
    out = model(batch["image"])
    loss(out, batch["labels"])  # fails


@broken(
    "loss (CrossEntropyLoss) got its input on sim:1, its weight is on cpu",
    'loss.to("sim:1")',
    kind="loss",
    cpu="loss.weight",
)
def weight_of_the_loss(run: Run):
    loss = nn.CrossEntropyLoss(weight=torch.ones(3))
    loss(run.model(run.batch["image"]), run.batch["labels"])  # fails


@broken("tests/context/steps.py", "labels = unmoor.to_device(labels, like=model)", cpu="labels")
def labels_of_a_functional_loss(run: Run):
    model, labels = run.model, run.batch["labels"].cpu()
    F.cross_entropy(model(run.batch["image"]), labels)  # fails


@broken("tests/context/steps.py", "weight = torch.ones(3, device=out.device)", kind="made", cpu="weight")
def weight_made_for_a_functional_loss(run: Run):
    out, labels = run.model(run.batch["image"]), run.batch["labels"]
    weight = torch.ones(3)
    F.cross_entropy(out, labels, weight=weight)  # fails


@broken(
    "decoder.0 (BatchNorm1d) got its input on sim:1, its running_mean is on cpu",
    'model.to("sim:1")',
    kind="model",
    cpu="decoder.0.running_mean",
)
def buffer_left_behind(run: Run):
    model = run.model
    model.decoder[0].running_mean = torch.zeros(8)
    model(run.batch["image"])


@broken(
    "head (Linear) got its input on sim:1, its weight is on cpu",
    'model.to("sim:1")',
    kind="model",
    cpu=("head.weight", "head.bias"),
)
def module_added_after_the_move(run: Run):
    class Grown(Net):
        def forward(self, x):
            return self.head(self.encoder(x))  # fails

    model = Grown().to(HOME)
    model.head = nn.Linear(8, 2)
    run.model = model
    model(run.batch["image"])


@broken(
    "encoder.0 (Linear) got its input on sim:1, its weight is on cpu",
    'model.to("sim:1")',
    kind="model",
    cpu="encoder.0.weight",
)
def model_never_moved(run: Run):
    model = run.model.cpu()
    model(run.batch["image"])


class Masked(Net):
    def __init__(self):
        super().__init__()
        self.mask = torch.ones(8)
        self.tables = {"bias": [torch.zeros(8)]}

    def forward(self, x):
        return self.encoder(x) * self.mask  # fails


@broken(
    "gate (Masked) brings together gate.mask on cpu and x on sim:1",
    'self.register_buffer("mask", torch.ones(8), persistent=False)',
    kind="attribute",
    cpu="gate.mask",
)
def attribute_that_is_no_buffer(run: Run):
    class Gated(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate = Product()

        def forward(self, x):
            return self.gate(x)

    class Product(Masked):
        def forward(self, x):
            return x * self.mask[:4]  # fails

    Product.__name__ = "Masked"
    run.model = Gated().to(HOME)
    run.model(run.batch["image"])


@broken(
    "Tabled brings together tables['bias'][0] on cpu", "self.tables['bias'][0].to(h.device)", cpu="tables['bias'][0]"
)
def attribute_in_a_dict_of_lists(run: Run):
    class Tabled(Masked):
        def forward(self, x):
            h = self.encoder(x)
            return h + self.tables["bias"][0]  # fails

    run.model = Tabled().to(HOME)
    run.model(run.batch["image"])


@broken(
    "Noisy brings together noise on cpu and h on sim:1",
    "noise = torch.zeros(8, device=h.device)",
    kind="made",
    cpu="noise",
)
def tensor_made_in_forward(run: Run):
    class Noisy(Net):
        def forward(self, x):
            h = self.encoder(x)
            noise = torch.zeros(8)
            return h + noise  # fails

    run.model = Noisy().to(HOME)
    run.model(run.batch["image"])


@broken(
    "Placed brings together place on cpu and h on sim:1",
    "place = torch.arange(h.shape[1], device=h.device).unsqueeze(0) / 8",
    kind="made",
    cpu="place",
)
def tensor_made_by_a_chain(run: Run):
    class Placed(Net):
        def forward(self, x):
            h = self.encoder(x)
            place = torch.arange(h.shape[1]).unsqueeze(0) / 8
            return h + place  # fails

    run.model = Placed().to(HOME)
    run.model(run.batch["image"])


@broken(
    "Padded brings together torch.zeros(len(x), 2) on cpu and x on sim:1",
    "torch.zeros(len(x), 2, device=x.device)",
    kind="made",
    cpu="torch.zeros(len(x), 2)",
)
def tensor_made_within_a_call(run: Run):
    class Padded(Net):
        def forward(self, x):
            return torch.cat([x, torch.zeros(len(x), 2)], dim=1)  # fails

    run.model = Padded().to(HOME)
    run.model(run.batch["image"])


@broken("tests/context/steps.py", "scale.to(x.device)", kind="tensor", cpu="scale")
def tensor_of_a_closure(run: Run):
    def scaled(x):
        return x * scale  # fails

    scale = run.batch["image"].cpu()[0] + 1
    scaled(run.batch["image"])


TABLE = torch.eye(4)


@broken("tests/context/steps.py", "TABLE.to(x.device)", cpu="TABLE")
def tensor_of_the_module(run: Run):
    x = run.batch["image"]
    x @ TABLE  # fails


@broken("tests/context/steps.py", "table", cpu="table")
def index_on_the_device_into_a_table_on_the_cpu(run: Run):
    table = run.batch["image"].cpu()
    index = run.batch["labels"]
    table[index]  # fails


@broken("tests/context/steps.py", "mask", cpu="mask")
def mask_on_the_cpu(run: Run):
    x = run.batch["image"]
    mask = (x > 3).cpu()
    x.masked_fill(mask, 0.0)  # fails


@broken("tests/context/steps.py", "", kind="batch", cpu="parts[1]")
def parts_of_a_list(run: Run):
    parts = [run.batch["image"], run.batch["image"].cpu()]
    torch.cat(parts)  # fails


@broken("tests/context/steps.py", "", cpu="rows['b']")
def parts_of_a_dict(run: Run):
    rows = {"a": run.batch["image"], "b": run.batch["image"].cpu()}
    torch.stack([rows["a"], rows["b"]])  # fails


@broken("tests/context/steps.py", "", cpu="rows[1]")
def parts_by_a_comprehension(run: Run):
    rows = [run.batch["image"], run.batch["image"].cpu()]
    torch.stack([row for row in rows])  # fails # noqa: C416


@broken("tests/context/steps.py", "", cpu="delta")
def added_in_place(run: Run):
    x, delta = run.batch["image"], run.batch["image"].cpu()
    x.add_(delta)  # fails


@broken("tests/context/steps.py", "", cpu="delta")
def augmented_assignment(run: Run):
    x, delta = run.batch["image"].clone(), run.batch["image"].cpu()
    x *= delta  # fails


@broken("tests/context/steps.py", "", cpu="row")
def item_assigned_where_a_mask_selects(run: Run):
    x, row, chosen = run.batch["image"].clone(), torch.ones(5, 4).cpu(), run.batch["image"] > 3
    row = row + 1
    x[chosen] = row[chosen.cpu()]  # fails


@broken("tests/context/steps.py", "other = unmoor.to_device(other, like=model)", cpu="other")
def matrix_product(run: Run):
    model, x, other = run.model, run.batch["image"], run.batch["image"].cpu()
    x @ other.T  # fails
    del model


@broken("tests/context/steps.py", "", cpu="other")
def comparison(run: Run):
    x, other = run.batch["image"], run.batch["image"].cpu()
    (x > other).sum()  # fails


@broken("tests/context/steps.py", "", cpu="other")
def chosen_by_where(run: Run):
    x, other = run.batch["image"], run.batch["image"].cpu()
    torch.where(x > 2, x, other)  # fails


@broken("tests/context/steps.py", "", cpu="other")
def einsum(run: Run):
    x, other = run.batch["image"], run.batch["image"].cpu()
    torch.einsum("ij,kj->ik", x, other)  # fails


@broken("tests/context/steps.py", "", cpu="target")
def binary_loss(run: Run):
    out, target = run.batch["image"], run.batch["image"].cpu()
    F.binary_cross_entropy_with_logits(out, target)  # fails


@broken("tests/context/steps.py", "", cpu="shadow.encoder.0.weight")
def average_of_weights(run: Run):
    model, shadow = run.model, Net()
    with torch.no_grad():
        for kept, live in zip(shadow.parameters(), model.parameters(), strict=True):
            kept.lerp_(live, 0.1)  # fails
