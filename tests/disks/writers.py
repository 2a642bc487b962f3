"""Several processes, and several threads, that write one path at once, and one that reads it meanwhile.

Called in a fork of the tests' process. Each writer saves what its number gives, again and again; a reader opens what is
there. What is wrong is returned in words.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

import unmoor
from unmoor.execute import folder_commit

SIZES = (300, 200)


def _tree(number: int) -> dict[str, Any]:
    """A state in which every element tells whose it is; its sizes too, so that a mix would not even fit."""
    return {f"w{i}": torch.full((size + number, 40), float(number)) for i, size in enumerate(SIZES)}


def _file(path: str, number: int) -> None:
    unmoor.save(path, {"model": _tree(number), "number": number})


def _behind(path: str, number: int) -> None:
    unmoor.save(path, {"model": _tree(number), "number": number}, background=True).wait()


def _flat(path: str, number: int) -> None:
    unmoor.save(path, _tree(number))


def _folder(path: str, number: int) -> None:
    unmoor.convert(f"{os.path.dirname(path)}/sources/{number}.pt", path, format="dcp")


FORMS: dict[str, tuple[str, Callable[[str, int], None]]] = {
    "file": ("run.pt", _file),
    "behind": ("run.pt", _behind),
    "safetensors": ("run.safetensors", _flat),
    "folder": ("run", _folder),
    "folder, two renames": ("run", _folder),
}


def held(path: str) -> str:
    """Whose the checkpoint at a path is, "" if it is of several or damaged."""
    tree = unmoor.load(path)
    tree = tree.get("model", tree)
    owners = {float(value) for tensor in tree.values() for value in tensor.unique()}
    owner = int(owners.pop()) if len(owners) == 1 else -1
    shapes = [tuple(tensor.shape) for tensor in tree.values()]
    return str(owner) if shapes == [(size + owner, 40) for size in SIZES] else ""


def race(folder: str, form: str, writers: int, times: int) -> list[str]:
    """Let so many processes save to one path so often each, and read it all the while; what is wrong."""
    name, save = FORMS[form]
    path = os.path.join(folder, name)
    if form.endswith("two renames"):
        folder_commit._exchange = lambda one, other: False
    if form.startswith("folder"):
        for number in range(writers + 1):
            (Path(folder) / "sources").mkdir(exist_ok=True)
            _file(f"{folder}/sources/{number}.pt", number)
    save(path, 0)
    go, started = os.pipe()
    work = partial(_written, path, save, times, (go, started))
    children = [_forked(partial(work, number)) for number in range(1, writers + 1)]
    os.close(go)
    os.close(started)
    wrong: list[str] = []
    while children:
        wrong += _seen(path)
        for child in children[:]:
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                children.remove(child)
                if status:
                    wrong.append(f"a writer failed with {os.waitstatus_to_exitcode(status)}")
    return [*wrong, *_end(path, folder, name, writers)]


def _written(path: str, save: Callable[[str, int], None], times: int, pipe: tuple[int, int], number: int) -> None:
    os.close(pipe[1])
    os.read(pipe[0], 1)  # until the parent has started all
    for _ in range(times):
        save(path, number)


def _forked(work: Callable[[], None]) -> int:
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        work()
        code = 0
    except BaseException as error:  # noqa: BLE001 - it is what is looked at
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(code)


def _seen(path: str) -> Iterator[str]:
    """What is wrong with what a reader sees between two saves: where it cannot read, it says that it was changed."""
    try:
        if not held(path):
            yield "a mix was read, and no error said so"
    except unmoor.FileError as error:
        text = str(error)
        if not any(said in text for said in ("while it was read", "while the checkpoint was read", "is not there")):
            yield f"a reader was told: {text}"
    except unmoor.ReadError as error:
        yield f"a reader was told: {error}"


def _end(path: str, folder: str, name: str, writers: int) -> Iterator[str]:
    last = held(path)
    if last not in map(str, range(1, writers + 1)):
        yield f"in the end it holds {last!r}"
    if not unmoor.verify(path).ok:
        yield "in the end it does not verify"
    left = [other for other in os.listdir(folder) if other not in (name, "sources")]
    if left:
        yield f"left behind: {left}"


def threads(folder: str, count: int) -> list[str]:
    """The same of threads of one process, each with a save in the background."""
    path, wrong = os.path.join(folder, "run.pt"), []

    def work(number: int) -> None:
        try:
            for _ in range(3):
                _behind(path, number)
        except Exception as error:  # noqa: BLE001 - it is what is looked at
            wrong.append(f"{type(error).__name__}: {error}")

    started = [threading.Thread(target=work, args=(number,)) for number in range(1, count + 1)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    return [*wrong, *_end(path, folder, "run.pt", count)]
