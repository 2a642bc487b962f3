"""The environment of the other programs: one torch, and absence that a user may have and CI may not."""

import subprocess

import pytest

from . import environment


def refuse() -> None:
    raise environment.Unavailable("pip cannot reach an index")


@pytest.mark.parametrize(("ci", "outcome"), [("true", environment.Unavailable), ("", pytest.skip.Exception)])
def test_absence_skips_and_fails_where_nothing_may_be_skipped(
    ci: str, outcome: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a network the tests are skipped with pip's words; under CI=true they fail."""
    monkeypatch.setattr(environment, "built", refuse)
    monkeypatch.setenv("CI", ci)
    with pytest.raises(outcome, match="cannot reach an index"):
        environment.python()


def test_every_version_is_pinned_and_torch_comes_once() -> None:
    """Each line of the lists names one exact version, and no side brings a torch of its own."""
    lists = [environment.CONSTRAINTS, *environment.SIDES.values()]
    lines = {path.stem: path.read_text().split() for path in lists}
    assert all(line.count("==") == 1 for found in lines.values() for line in found)
    assert [stem for stem, found in lines.items() if any(line.startswith("torch==") for line in found)] == [
        "constraints"
    ]


@pytest.mark.real
@pytest.mark.slow
def test_both_environments_compute_with_the_same_torch() -> None:
    """What is compared bit for bit was computed by one version of PyTorch."""
    import torch

    command = [str(environment.python()), "-c", "import torch; print(torch.__version__)"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment.settings())
    assert done.stdout.strip() == torch.__version__
