"""How fast saving and restoring is beside every peer and beside the machine's floor: tables, plots and the page.

    python -m benchmarks.speed                           every table, in 20 minutes at most; goes on where it stopped
    python -m benchmarks.speed --what restore save       some of them: restore save hold-up many size memory
    python -m benchmarks.speed --what largest            12 GB on the disk, which the first does not do
    python -m benchmarks.speed --size 0.2 --rounds 1     smaller, or shorter
    python -m benchmarks.speed --where memory            /dev/shm only; a disk is tried at --disk FOLDER
    python -m benchmarks.speed --again                   measure anew what the file of figures has already
    python -m benchmarks.speed --render                  measure nothing: pages and plots from the stored figures
    python -m benchmarks.speed --quick                   tiny runs of the ways that need no other environment

Every figure is a median of fresh processes that took turns (A B C ... A B C ...), the state of the page cache stands
over the table, and the floor stands in it. A restore's clock stops when every restored tensor was written in place
once, as the first step of training does. Figures go to --json FILE, docs/performance/speed.json if not said, after each
table; what is there with the same settings is kept. docs/performance.md says how to read them.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from . import common, speed_ways
from .speed_child import BEHIND, RESTORES, SAVES
from .speed_page import filled_in, rendered
from .speed_tables import Point, Table, measure

__all__ = ["JSON", "PAGES", "main", "tables"]

ROOT: Final = Path(__file__).parents[1]
JSON: Final = ROOT / "docs" / "performance" / "speed.json"
PLOTS: Final = ROOT / "docs" / "performance"
PAGES: Final = (ROOT / "docs" / "performance.md", ROOT / "README.md")

WHATS: Final = ("restore", "save", "hold-up", "many", "size", "largest", "memory")
QUICK: Final = ("restore", "save", "hold-up")
FLOOR: Final = "floor: bare read, huge pages"
FEW_RESTORES: Final = ("unmoor.restore", "torch.load", "safetensors.load_file", "DCP load", FLOOR)
FEW_SAVES: Final = ("unmoor.save", "torch.save", "safetensors.save_file", "DCP save", "floor: bare write")
COLD_RESTORES: Final = (
    "unmoor.restore",
    "torch.load",
    "torch.load, mmap",
    "safetensors.load_file",
    "safetensors.safe_open",
    "DCP load",
    "torch_checkpointing load",
    FLOOR,
)
SYNCED_SAVES: Final = (*FEW_SAVES[:-1], "torch_checkpointing save", FEW_SAVES[-1])
TRACED: Final = (
    "unmoor.restore",
    "torch.load",
    "torch.load, mmap",
    "safetensors.load_file",
    "DCP load",
    "torch_checkpointing load",
)
COUNTS: Final = (100, 1_000, 10_000, 100_000)
SIZES: Final = (10_000_000, 100_000_000, 1_000_000_000, 6_000_000_000)
LARGEST: Final = 12_000_000_000
BLOCK: Final = 3 * 8 * common.WIDTH**2 * 4
"""What a block of the model of `common.build` comes to with its state, biases left aside."""
MANY_BYTES: Final = 200_000_000


def tables(size: float, rounds: int, *, ours: bool = False) -> dict[str, tuple[str, Table]]:
    """Key -> to which `--what` it belongs, and the table. `ours`: without the ways of the other environment."""
    nbytes = int(size * 1e9)
    scale = min(1.0, size / 1.5)
    restores, saves, behind = (
        (tuple(speed_ways.RESTORES), tuple(speed_ways.SAVES), tuple(speed_ways.BEHIND))
        if ours
        else (tuple(RESTORES), tuple(SAVES), tuple(BEHIND))
    )
    one, fewer = (Point(nbytes, 40) if ours else Point(max(1, round(nbytes / BLOCK)) * BLOCK),), max(1, rounds - 1)
    counts = [count for count in COUNTS if count <= COUNTS[-1] * scale] or COUNTS[:1]
    many = tuple(Point(int(MANY_BYTES * scale), count) for count in counts)
    grown = tuple(Point(int(most * scale), -1) for most in SIZES if most * scale >= SIZES[0])
    return {
        "restore-memory": ("restore", Table("restore", "memory", one, restores, rounds)),
        "restore-disk": ("restore", Table("restore", "disk", one, _of(COLD_RESTORES, restores), fewer, cold=True)),
        "save-memory": ("save", Table("save", "memory", one, saves, rounds)),
        "save-disk": ("save", Table("save", "disk", one, _of(SYNCED_SAVES, saves), fewer, fsync=True)),
        "hold-up": ("hold-up", Table("behind", "memory", one, behind, fewer)),
        "many-restore": ("many", Table("restore", "memory", many, FEW_RESTORES, fewer)),
        "many-save": ("many", Table("save", "memory", many, FEW_SAVES, fewer)),
        "size-restore": ("size", Table("restore", "memory", grown, FEW_RESTORES, fewer)),
        "size-save": ("size", Table("save", "memory", grown, FEW_SAVES, fewer)),
        "largest": ("largest", _largest(int(LARGEST * scale))),
        "memory": ("memory", Table("restore", "memory", one, _of(TRACED, restores), 1, traced=True)),
    }


def _of(chosen: tuple[str, ...], ways: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(way for way in chosen if way in ways)


def _largest(nbytes: int) -> Table:
    """What fits in memory only without a second copy, and beside no file in memory."""
    ways = ("unmoor.restore", "torch.load", FLOOR)
    return Table("restore", "disk", (Point(nbytes, -1),), ways, 1, cold=True)


def machine() -> dict[str, Any]:
    """What the figures were measured with."""
    others = ("safetensors", "numpy")
    return {
        "cores": len(os.sched_getaffinity(0)),
        "memory": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "python": sys.version.split()[0],
        "versions": {name: version(name).split("+")[0] for name in ("torch", *others)} | _versions_of_others(),
    }


def _versions_of_others() -> dict[str, str]:
    from tests.dialects.environment import CONSTRAINTS

    from .peers_packages import PINNED

    lines = [*CONSTRAINTS.read_text().splitlines(), *PINNED.values()]
    named = dict(line.split("==") for line in lines if "==" in line)
    return {name: named[name] for name in ("lightning", "accelerate", "torch_checkpointing", "moonclip")}


def kept(table: Table, stored: dict[str, Any] | None) -> bool:
    """Whether stored figures are of this very table, with every way of ours in it."""
    if stored is None or stored["settings"] != json.loads(json.dumps(table.settings())):
        return False
    return not any(
        way.startswith(("unmoor", "floor")) and not why.startswith("does not fit")
        for point in stored["points"]
        for way, why in point["left_out"].items()
    )


def run(chosen: argparse.Namespace) -> None:
    """Measure the tables that were asked for, print each, and store it."""
    file = Path(chosen.json)
    figures: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {"tables": {}}
    figures = {"machine": machine(), "tables": figures["tables"]}
    folders = {"memory": Path(chosen.memory), "disk": Path(chosen.disk)}
    for key, (what, table) in tables(chosen.size, chosen.rounds, ours=chosen.quick).items():
        if what not in chosen.what or table.where not in chosen.where:
            continue
        if chosen.again or not kept(table, figures["tables"].get(key)):
            found = measure(table, folders[table.where], chosen.limit, _progress)
            figures["tables"][key] = _rounded(found)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(stored_text(figures))
        print(f"{key}: {rendered(figures)[key]}\n", flush=True)


def stored_text(figures: dict[str, Any]) -> str:
    """Figures as JSON, one line a way."""
    lines: list[str] = []

    def shortened(value: Any, name: str = "") -> Any:
        if name in ("ways", "settings") and isinstance(value, dict):
            lines.extend(json.dumps(item) for item in value.values())
            first = len(lines) - len(value)
            return {key: f"@{first + number}" for number, key in enumerate(value)}
        if isinstance(value, dict):
            return {key: shortened(item, key) for key, item in value.items()}
        return [shortened(item) for item in value] if isinstance(value, list) else value

    text = json.dumps(shortened(figures), indent=1)
    return re.sub(r'"@(\d+)"', lambda found: lines[int(found[1])], text) + "\n"


def _rounded(value: Any) -> Any:
    """Four digits of every figure."""
    if isinstance(value, dict):
        return {name: _rounded(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def _progress(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


def render(file: Path, plots: Path) -> None:
    """Pages and plots from the stored figures."""
    from .speed_plots import draw

    figures = json.loads(file.read_text())
    for page in PAGES:
        page.write_text(filled_in(page.read_text(), figures))
    draw(figures, plots)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--what", nargs="+", choices=WHATS, default=[what for what in WHATS if what != "largest"])
    parser.add_argument("--where", nargs="+", choices=("memory", "disk"), default=["memory", "disk"])
    parser.add_argument("--size", type=float, default=1.5, help="GB of model and optimizer state; curves shrink alike")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", default=str(JSON), help="where figures are stored after each table, and kept from")
    parser.add_argument("--plots", default=str(PLOTS), help="the folder for the plots")
    parser.add_argument("--memory", default="/dev/shm", help="a folder in memory")
    parser.add_argument("--disk", default=tempfile.gettempdir(), help="a folder on a disk")
    parser.add_argument("--limit", type=float, default=60, help="seconds after which a way is stopped and left out")
    for flag in ("--quick", "--again", "--render"):
        parser.add_argument(flag, action="store_true")
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.size, chosen.rounds, chosen.where = 0.001, 1, ["memory"]
        chosen.what = [what for what in chosen.what if what in QUICK]
        if chosen.json == str(JSON):
            chosen.json = os.devnull
    if not chosen.render:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that what lies in memory goes away with it
        run(chosen)
    if not chosen.quick:
        render(Path(chosen.json), Path(chosen.plots))


if __name__ == "__main__":
    main()
