"""What names and values tell of a step: the table of odd names, in dialects and out of them."""

from __future__ import annotations

import pytest

from unmoor.values.progress import Progress, measured, progress, step_in, told

NAMES: dict[str, int | None] = {
    "model000000.pt": 0,
    "model200000.pt": 200000,
    "opt000004.pt": 4,
    "ema_0.9999_200000.pt": 200000,
    "ema_0.9999.pt": None,
    "model_200000.pt": 200000,
    "model-5.pt": 5,
    "model1_0.pt": 0,
    "model-best.pt": None,
    "ckpt.pt": None,
    "step_000001000.pt": 1000,
    "step_000001000": 1000,
    "epoch=3-step=400.ckpt": 400,
    "epoch=3-step=400-v1.ckpt": 400,
    "last-v2.ckpt": None,
    "checkpoint-500": 500,
    "checkpoint_12": 12,
    "global_step300": 300,
    "step-20": 20,
    "iter_0000010": 10,
    "iter_160000.pth": 160000,
    "checkpoint.pth.tar": None,
    "checkpoint_0012.pth.tar": 12,
    "00001000.pt": 1000,
    "resnet50.pt": None,
    "resnet50_17.pt": 17,
    "gpt2.pt": None,
    "llama-7b.safetensors": None,
    "unet-sd15.safetensors": None,
    "yolov8n.pt": None,
    "2024-01-31_153000.pt": None,
    "run_20240131_153000_step_77.pt": 77,
    "model_rank0.pt": None,
    "seed42_step7.pt": 7,
    "model_loss0.25.pt": None,
    "ckpt-3e-4.pt": None,
    "model.pt": None,
    "9" * 30 + ".pt": None,
    "": None,
}

EPOCHS: dict[str, int] = {
    "epoch=3-val_loss=0.25.ckpt": 3,
    "checkpoint_epoch_7.pt": 7,
    "epoch10.pth": 10,
    "net_ep005.pt": 5,
}


@pytest.mark.parametrize("name", NAMES)
def test_the_number_in_a_name_is_the_step(name: str) -> None:
    """Rates, versions, sizes, dates, ranks and losses are no steps; zeros before a number and words behind it are."""
    step = NAMES[name]
    assert step_in(name) == (None if step is None else Progress(step, "step"))


@pytest.mark.parametrize("name", EPOCHS)
def test_an_epoch_in_a_name_is_called_so(name: str) -> None:
    """Where a name counts epochs alone, that is the unit."""
    assert step_in(name) == Progress(EPOCHS[name], "epoch")


VALUES: list[tuple[dict, Progress | None]] = [
    ({"step": 5}, Progress(5, "step")),
    ({"global_step": 7, "epoch": 2}, Progress(7, "step")),
    ({"epoch": 2}, Progress(2, "epoch")),
    ({"iteration": 9.0}, Progress(9, "step")),
    ({"run": {"step": 3}, "step": 8}, Progress(3, "step")),
    ({"run": "exp1", "step": 8}, Progress(8, "step")),
    ({"train_state": {"step": 4}}, Progress(4, "step")),
    ({"meta": {"iter": 6, "epoch": 1}}, Progress(6, "step")),
    ({"step": True}, None),
    ({"step": -1, "epoch": 4}, Progress(4, "epoch")),
    ({"step": "12"}, None),
    ({"step": 0.5}, None),
    ({"step": float("nan")}, None),
    ({"step": 1 << 60}, None),
    ({"model": {}}, None),
]


@pytest.mark.parametrize(("values", "step"), VALUES, ids=map(str, range(len(VALUES))))
def test_values_tell_a_step_before_an_epoch(values: dict, step: Progress | None) -> None:
    """The first key of the table that holds a count decides; what is no count counts for nothing."""
    assert progress(values) == step


def test_what_a_manifest_repeats_tells_the_same() -> None:
    """The head of a manifest and the tree tell the same step and metrics, NaN and infinity among them."""
    metrics = {"val_loss": float("inf"), "acc": 0.5, "n": 3}
    tree = {
        "run": {"step": 5, "number": 2, "metrics": metrics, "total": None},
        "step": 4,
        "model": object(),
        "epoch": 1,
    }
    made = told(tree)
    assert made is not None
    assert progress(made) == progress(tree) == Progress(5, "step")
    assert measured(made) == measured(tree) == metrics


@pytest.mark.parametrize(
    "tree", [{"step": object()}, {"run": {"step": 1, "note": object()}}, {"run": {"x": "y" * 99999}}]
)
def test_what_json_cannot_hold_is_left_to_the_tree(tree: dict) -> None:
    """A value that is not plain, or is long, is not repeated: the tree is read then."""
    assert told(tree) is None


@pytest.mark.parametrize("tree", [None, [1], {}, {"metrics": {"a": object()}, "loss": {"w": object()}, "epoch": "two"}])
def test_what_tells_nothing_is_no_matter(tree: object) -> None:
    """Other things under the same keys (a metric tracker, a loss with weights) are passed over."""
    assert told(tree) == {}
