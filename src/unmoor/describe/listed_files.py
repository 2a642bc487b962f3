"""The checkpoints among the files of a folder: those of one step together where a program writes several, else each.

Which files belong together is told by their names (`folder_tables`, indices, numbers); how far each is by a glance.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Final

from unmoor.errors import FileError
from unmoor.places import Entry, join, name_of
from unmoor.values.listing import Saved
from unmoor.values.progress import progress, step_in
from unmoor.values.text import count

from .flat_ranks import flat_stems
from .folder import describe_path
from .folder_members import find_table, steps_of
from .folder_plain import CHECKPOINTS, numbered_of
from .folder_tables import INDEX, Table
from .glance import Glance, glance_file, refuse_partial
from .listed_inside import Faults, Inside
from .listed_names import ASIDE, SURE, temporary
from .listed_row import broken, looked_at, row_of

__all__ = ["listed_files"]

_TOGETHER: Final = 16
"""A folder of so many files, none with a number, may be one checkpoint."""


def listed_files(inside: Inside) -> list[Saved]:
    """A row for each checkpoint."""
    names = [name for name in inside.files if name.endswith((*CHECKPOINTS, INDEX)) and not ASIDE.fullmatch(name)]
    names = [name for name in names if not temporary(name)]
    table = find_table(inside.files)
    rows: list[Saved] = []
    taken: set[str] = set()
    if table is not None and table.step_key:
        rows += _steps(inside, table, taken)
    rows += _indexed(inside, names, taken)
    left = [name for name in names if name not in taken]
    whole = _whole(inside, left)
    if whole is not None:
        return [*rows, whole]
    dialect = table.dialect if table is not None and not table.step_key else ""
    for name in left:
        entry = inside.files[name]
        row = looked_at(entry, partial(glance_file, entry.path), nbytes=entry.nbytes, sure=name.endswith(SURE))
        if row is not None:
            rows.append(replace(row, dialect=dialect) if dialect and row.dialect == "plain" else row)
    return rows


def _steps(inside: Inside, table: Table, taken: set[str]) -> Iterator[Saved]:
    """The steps of a program that writes a file for each part, as guided-diffusion does: a row for each step."""
    for digits, (files, missing) in steps_of(table, inside.files).items():
        taken.update(files)
        needed = [form.format(digits) for form in table.needed]
        yield _step(inside, table, digits, files, sorted({*missing, *needed} - {*files}))


def _step(inside: Inside, table: Table, digits: str, files: Sequence[str], missing: Sequence[str]) -> Saved:
    faults = Faults(inside)
    faults.lines += [f"{name} is missing" for name in missing]
    found = {name: faults.tried(name, partial(glance_file, inside.files[name].path)) for name in files}
    counted = next((one.counter for one in found.values() if one is not None and one.counter is not None), None)
    step, entries = int(digits), [inside.files[name] for name in files]
    entry = Entry(f"*{digits}.pt", join(inside.path, f"*{digits}.pt"), False, 0, max(e.changed for e in entries))
    nbytes = sum(each.nbytes for each in entries)
    if faults.lines:
        return broken(entry, faults.lines, nbytes=nbytes, dialect=table.dialect)
    notes = () if counted is None or counted == step else (_off(step, counted),)
    return replace(row_of(entry, Glance(dialect=table.dialect, notes=notes), nbytes=nbytes), step=step)


def _indexed(inside: Inside, names: Sequence[str], taken: set[str]) -> Iterator[Saved]:
    """State dicts in several files: those that an index names, that count to a number, or that each rank wrote."""
    for name in names:
        if name.endswith(INDEX):
            faults, entry = Faults(inside), inside.files[name]
            shards = faults.indexed(name)
            taken.update((name, *shards))
            yield _of_several(entry, shards, faults)
    groups = {group: (files, number) for group, (files, number) in numbered_of(names).items() if not taken & {*files}}
    ranks = {stem: [*files.values()] for stem, files in flat_stems(names).items() if "rank" in stem}
    for group, files in {**{group: files for group, (files, _) in groups.items()}, **ranks}.items():
        taken.update(files)
        faults = Faults(inside)
        if group in groups and len(files) < groups[group][1]:
            faults.lines.append(f"{groups[group][1] - len(files)} of {groups[group][1]} files are missing")
        changed = max(inside.files[file].changed for file in files)
        yield _of_several(Entry(group, inside.path, is_folder=True, nbytes=0, changed=changed), files, faults)


def _of_several(entry: Entry, files: Sequence[str], faults: Faults) -> Saved:
    there = [name for name in files if name in faults.inside.files]
    for name in there:
        faults.tried(name, partial(refuse_partial, faults.inside.files[name].path))
    nbytes = sum(faults.inside.files[name].nbytes for name in there)
    return broken(entry, faults.lines, nbytes=nbytes) if faults.lines else row_of(entry, Glance(), nbytes=nbytes)


def _whole(inside: Inside, names: Sequence[str]) -> Saved | None:
    """The one checkpoint that files without numbers make up, each with a role of its own; None where they do not."""
    if not 1 < len(names) <= _TOGETHER or any(map(step_in, names)) or inside.links:
        return None
    try:
        looks = [glance_file(inside.files[name].path) for name in names]
        if sum(progress(look.values) is not None for look in looks) > 1 or any(
            look.dialect == "unmoor" for look in looks
        ):
            return None
        found = describe_path(inside.path)
    except (FileError, OSError):
        return None
    owners: dict[str, set[str]] = {}
    for part in found.parts:
        if part.role != "extra" and part.keys:
            owners.setdefault(part.role, set()).add(str(part.keys[0]))
    if found.format != "folder" or len(owners) < 2 or any(len(own) > 1 for own in owners.values()):
        return None
    entries = [inside.files[name] for name in names]
    telling = next((look for look in looks if progress(look.values)), Glance())
    entry = Entry(name_of(inside.path), inside.path, True, 0, max(each.changed for each in entries))
    return row_of(entry, replace(telling, dialect=found.dialect), nbytes=sum(each.nbytes for each in entries))


def _off(step: int, counted: int) -> str:
    """What to say where the optimizer has done another number of steps than the names say."""
    more = f": the loop saves before it counts, and going on at {step:,} repeats one" if counted == step + 1 else ""
    return f"its optimizer counts {count(counted, 'step')} done{more}"
