"""The house holds its own rules: who imports whom, who may see torch, what starts without it."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "unmoor"
STAGES = ("describe", "diagnose", "plan", "execute", "live", "report")
BOTTOM = ("errors", "filing", "places", "refusals", "remote", "steady", "urls")
LAYERS = {
    "errors": set(),
    "version": set(),
    "refusals": {"errors"},
    "steady": {"errors", "refusals"},
    "urls": set(),
    "remote": {"errors", "steady", "urls", "remote"},
    "filing": {"errors", "refusals", "steady", "urls", "remote"},
    "places": {"errors", "filing", "urls", "remote"},
    "values": {"errors", "values"},
    **{stage: {*BOTTOM, "values", stage} for stage in STAGES},
    "distributed": {
        *BOTTOM,
        "values",
        "version",
        "describe",
        "plan",
        "execute",
        "live",
        "distributed",
    },
    "wiring": {*BOTTOM, "values", "version", *STAGES, "distributed", "wiring"},
    "api_files": {"errors", "values", "wiring"},
    "api_looks": {"errors", "filing", "values", "api_files", "wiring"},
    "api_runs": {"errors", "filing", "values", "api_files", "wiring", "live"},
    "api": {"errors", "filing", "values", "api_files", *STAGES, "wiring"},
    "api_folders": {"errors", "values", "api_files", "wiring"},
    "training": {"errors", "filing", "values", "api", "api_files", "api_folders", "live", "wiring"},
    "integrations": {
        "errors",
        "filing",
        "places",
        "values",
        "api",
        "api_files",
        "api_folders",
        "api_looks",
        "integrations",
    },
    "carried": {"live"},
    "demo": {"errors", "values", "api", "live", "report"},
    "cli": {
        "errors",
        "places",
        "urls",
        "values",
        "report",
        "api",
        "api_files",
        "api_folders",
        "api_looks",
        "api_runs",
        "demo",
        "version",
        "cli",
    },
    "__main__": {"cli"},
    "__init__": {
        "errors",
        "values",
        "api",
        "api_files",
        "api_folders",
        "api_looks",
        "api_runs",
        "training",
        "carried",
        "distributed",
        "version",
    },
}
TORCH_HOMES = {"live", "distributed"}
TORCH_WIRING = {"saving.py"}


def _files() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def _home(path: Path) -> str:
    first = path.relative_to(SOURCE).parts[0]
    return first.removesuffix(".py")


def _imports(path: Path) -> Iterator[str]:
    """Every imported module of a file, absolute, also inside functions."""
    package = ["unmoor", *path.relative_to(SOURCE).parts[:-1]]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names if module == "unmoor")


@pytest.mark.parametrize("path", _files(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_imports_follow_the_star(path):
    """Imports form a star: errors <- values <- stages <- wiring <- api <- cli, and no stage imports another."""
    allowed = LAYERS[_home(path)]
    for module in _imports(path):
        parts = module.split(".")
        if parts[0] == "unmoor" and len(parts) > 1:
            assert parts[1] in allowed, f"{path.name} may not import {module}"


@pytest.mark.parametrize("path", _files(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_torch_is_imported_in_live_and_distributed_only(path):
    """Torch is imported in live/ and distributed/ only, function bodies included; type checking excepted."""
    if _home(path) in TORCH_HOMES:
        return
    tree = ast.parse(path.read_text())
    typing_only = {
        id(child)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for child in ast.walk(node)
    }
    for node in ast.walk(tree):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
        if id(node) not in typing_only:
            assert not [n for n in names if n.split(".")[0] == "torch"], f"{path.name} imports torch"


@pytest.mark.parametrize("path", _files(), ids=lambda p: str(p.relative_to(SOURCE)))
def test_source_files_are_short_and_hold_no_asserts(path):
    """Short files: over 400 lines needs a reason in its head; input is never checked by assert."""
    text = path.read_text()
    tree = ast.parse(text)
    assert not [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Assert)]
    head = ast.get_docstring(tree) or ""
    assert len(text.splitlines()) <= 400 or "one file because" in head.lower()


def test_every_function_that_prints_lives_in_the_command_line():
    """The library returns and raises; only cli/ prints."""
    for path in _files():
        calls = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call)]
        prints = [c for c in calls if isinstance(c.func, ast.Name) and c.func.id == "print"]
        assert not prints or _home(path) == "cli", path


CHILD = """
import sys
class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("torch", "numpy", "rich"):
            raise ImportError(name + " may not be imported here")
sys.meta_path.insert(0, NoTorch())
import unmoor
catalog = unmoor.describe(sys.argv[1])
print(len(catalog.tensors), unmoor.__version__)
"""


def test_describes_a_file_where_torch_cannot_be_imported(tmp_path):
    """`import unmoor` imports neither torch nor rich, and a file is described in a process without them."""
    import torch

    torch.save({"w": torch.ones(3)}, tmp_path / "a.pt")
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", CHILD, str(tmp_path / "a.pt")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("1 ")


def test_public_names_resolve_and_are_documented():
    """Every public name resolves lazily to an object with a docstring."""
    import unmoor

    for name in unmoor.__all__:
        value = getattr(unmoor, name)
        assert name == "__version__" or value.__doc__, name
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        unmoor.nonsense  # noqa: B018


def test_verbs_stay_functions_when_the_stage_of_that_name_is_imported():
    """`unmoor.describe` and `unmoor.plan` are the functions even after the folders of that name were imported."""
    import unmoor
    import unmoor.describe
    import unmoor.diagnose
    import unmoor.plan

    assert callable(unmoor.describe)
    assert callable(unmoor.diagnose)
    assert callable(unmoor.plan)
