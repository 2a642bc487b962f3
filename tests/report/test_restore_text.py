"""What a restore did, as text: restored, moved, renamed, cast, matched, kept, NOT restored."""

from __future__ import annotations

import pytest

from unmoor.report.layout import cells
from unmoor.report.restore import plan_text, receipt_text, report_lines, report_text
from unmoor.values.finding import Finding
from unmoor.values.plan import Change, Plan
from unmoor.values.report import Receipt, Report

from .golden import check_golden


def moved(label: str, number: int, before: str = "cuda:7", after: str = "cpu") -> tuple[Change, ...]:
    """So many tensors of 1 KiB that changed their device."""
    return tuple(Change(label, f"w{i}", before, after, 1024) for i in range(number))


def report(plan: Plan, *, verified: int = 517, unverified: int = 0, seconds: float = 0.031) -> Report:
    """A plan as carried out."""
    counts = {"model": (136, 1_650_100), "optimizer": (381, 3_300_200)}
    return Report(plan, plan.extra, counts, 4_950_300, seconds, verified, unverified)


def full() -> Report:
    """A restore in which everything happened."""
    return report(
        Plan(
            path="chgnet_0.3.0_e29f68s314m37.pth.tar",
            restored=("model", "optimizer", "scheduler"),
            renamed=tuple(Change("model", f"l{i}.w", f"module.l{i}.w", f"l{i}.w") for i in range(61)),
            moved=moved("model", 136) + moved("optimizer", 254),
            cast=tuple(Change("model", f"l{i}.w", "float32", "bfloat16") for i in range(3)),
            options=(Change("optimizer", "lr", "0.001", "7.94e-05"), Change("optimizer", "eps", "1e-06", "1e-08")),
            kept=(Change("optimizer", "fused", "True", "False"), Change("optimizer", "foreach", "None", "True")),
            fresh=(Change("optimizer", "head.weight", "not in the saved optimizer", "starts without state"),),
            missing=tuple(Change("model", f"new.{i}", "not in the file", "left as it is") for i in range(6)),
            unexpected=(Change("model", "old.bias", "in the file", "nothing takes it"),),
            not_restored=(Change("rng", "", "the file holds none", "this process's generators were left alone"),),
            notes=(("optimizer", "Adam: state for 127 of 136 parameters, matched by position, shapes agree"),),
            findings=(Finding("numpy-scalar", "info", "epoch", "is a numpy scalar"),),
            extra={"training_history": {}, "trainer_args": {}, "model.model_args": {}},
        )
    )


def quiet() -> Report:
    """A restore in which nothing had to change."""
    return report(Plan(path="run.pt", restored=("model",)), unverified=517, verified=0, seconds=0.0042)


def text_of(plan: Plan) -> str:
    """The whole page on a wide page."""
    return report_text(report(plan), width=200)


@pytest.mark.parametrize("made", [full, quiet])
def test_text_at_80_columns(made):
    """The whole page, as a person sees it."""
    check_golden(f"restore_{made.__name__}_80", report_text(made()))


@pytest.mark.parametrize("width", [40, 80, 200])
@pytest.mark.parametrize("made", [full, quiet])
def test_every_line_fits(made, width):
    """No line is wider than the page."""
    assert all(cells(line) <= width for line in report_text(made(), width=width).split("\n"))


def test_nothing_is_said_to_be_nothing():
    """That nothing was moved, renamed or cast is told, not left to be inferred."""
    text = report_text(quiet())
    assert "moved    nothing" in text
    assert "renamed  nothing" in text
    assert "cast     nothing" in text


def test_what_was_not_restored_stands_under_its_own_line():
    """Missing, fresh, unexpected and refused things are under NOT restored, each with its reason."""
    _, _, below = report_text(full(), width=200).partition("  NOT restored\n")
    assert "the file holds none: this process's generators were left alone" in below
    assert "new.0, new.1, new.2, new.3 and 2 more: not in the file, left as it is" in below
    assert "head.weight: not in the saved optimizer, starts without state" in below
    assert "old.bias: in the file, nothing takes it" in below


def test_the_line_of_what_was_not_restored_is_painted_as_a_warning():
    """The tone repeats the words."""
    assert [line.text for line in report_lines(full()) if line.tone == "warning"] == ["  NOT restored"]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ([("module.a.w", "a.w"), ("module.b.w", "b.w")], "'module.' taken out of 2 names of model"),
        ([("a.weight", "a.w"), ("b.weight", "b.w")], "'weight' -> 'w' in 2 names of model"),
        ([("a.old.w", "a.new.w"), ("b.old.w", "b.new.w")], "'old.' -> 'new.' in 2 names of model"),
        ([("enc._orig_mod.a", "enc.a"), ("dec._orig_mod.a", "dec.a")], "'_orig_mod.' taken out of 2 names of model"),
        ([("a.w", "net.a.w"), ("b.w", "net.b.w")], "'net.' put into 2 names of model"),
        ([("old.a", "new.a"), ("old.b", "new.b")], "'old.' -> 'new.' in 2 names of model"),
        ([("gamma", "weight")], "gamma -> weight in model"),
    ],
)
def test_renames_are_told_by_what_changed(changes, sentence):
    """A prefix taken off sixty names is one sentence."""
    plan = Plan(path="run.pt", renamed=tuple(Change("model", live, saved, live) for saved, live in changes))
    assert f"renamed  {sentence}\n" in text_of(plan)


def test_moves_are_told_by_device_pair():
    """Each pair of devices has a line with its number, size and whose tensors they are."""
    text = text_of(Plan(path="run.pt", moved=moved("model", 3) + moved("optimizer", 1) + moved("ema", 2, "cuda:3")))
    assert "cuda:7 -> cpu: 4 tensors, 4.0 KiB of model, optimizer\n" in text
    assert "cuda:3 -> cpu: 2 tensors, 2.0 KiB of ema\n" in text


def test_many_device_pairs_do_not_fill_the_page():
    """A file of many ranks is told by its first pairs and the number of the others."""
    every = tuple(Change("model", "w", f"cuda:{i}", "cpu", 1) for i in range(64))
    text = text_of(Plan(path="run.pt", moved=every))
    assert "and 60 pairs more" in text


@pytest.mark.parametrize(
    ("verified", "unverified", "sentence"),
    [
        (5, 0, "every checksum holds"),
        (5, 2, "checksums hold for 5 storages, 2 have none"),
        (0, 2, "the file has no checksums"),
        (0, 0, "no data was checked"),
    ],
)
def test_what_was_verified_is_told(verified, unverified, sentence):
    """A file without checksums is never said to be verified."""
    assert sentence in report_text(report(Plan(path="run.pt"), verified=verified, unverified=unverified))


def test_a_group_that_kept_its_options_is_told_as_a_whole():
    """A live group without a saved one is a sentence, not a setting."""
    kept = (Change("optimizer", "group 1", "no saved group matches it", "live options kept"),)
    assert "group 1: no saved group matches it, live options kept of optimizer" in text_of(Plan("run.pt", kept=kept))


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0.0042, "4.2 ms"), (0.031, "0.03 s"), (9.5, "9.50 s"), (1234.5, "1,234 s")]
)
def test_times_are_in_seconds_or_milliseconds(seconds, shown):
    """Times are given as a person reads them."""
    assert report_text(report(Plan(path="run.pt"), seconds=seconds)).split("\n")[0].endswith(f" in {shown}")


def test_a_long_path_is_elided_in_the_middle():
    """The first line keeps both ends of the path and the time."""
    plan = Plan(path="/data/" + "x" * 200 + "/step_1000.pt", restored=("model",))
    first = report_text(report(plan)).split("\n")[0]
    assert first.startswith("restored model from /data/xxx")
    assert first.endswith("/step_1000.pt in 0.03 s")
    assert cells(first) == 80


def test_a_part_named_like_its_role_is_named_once():
    """`scheduler  in the file`, not `scheduler  scheduler: in the file`."""
    left = (Change("scheduler", "scheduler", "in the file (plain values)", "not asked for"),)
    assert "    scheduler  in the file (plain values): not asked for" in text_of(Plan("run.pt", not_restored=left))


def test_names_cannot_move_the_cursor():
    """Names and labels from a file are escaped."""
    plan = Plan(path="\x1b[2J.pt", unexpected=(Change("model", "\x1bc", "in the file", "nothing takes it"),))
    assert "\x1b" not in text_of(plan)


def test_a_plan_is_told_in_the_words_of_the_report():
    """A dry run differs from the report in its first line, and in what only a run can know."""
    told = plan_text(full().plan, width=200).split("\n")
    carried = report_text(full(), width=200).split("\n")
    assert told[0] == "would restore model, optimizer, scheduler from chgnet_0.3.0_e29f68s314m37.pth.tar"
    assert [line for line in carried[1:] if not line.startswith("  read")] == told[1:]


def test_a_receipt_tells_where_and_how_much():
    """A save is told by its path, size, roles and what was kept in another form."""
    converted = (Change("extra", "history", "a numpy array", "kept as a tensor"),)
    receipt = Receipt("run.pt", 4_950_300, 0.1, {"model": (136, 1_650_100)}, converted)
    assert receipt_text(receipt).split("\n") == [
        "saved run.pt: 4.7 MiB in 0.10 s",
        "  model      136 tensors, 1.6 MiB",
        "  converted  history: a numpy array, kept as a tensor",
    ]
