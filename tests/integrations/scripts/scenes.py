"""What the scripts have in common: a process that is killed within a save, a damaged byte, and the comparison."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.real.compare import differences


def killed(run: Callable[[], object]) -> None:
    """Run in a process of its own, which `dies_at` kills. Before any training: autograd's threads do not fork."""
    child = os.fork()
    if not child:
        try:
            run()
        except BaseException:  # noqa: BLE001 - what ends this process must not run the rest of the script
            import traceback

            traceback.print_exc()
        os._exit(0)
    _, status = os.waitpid(child, 0)
    require(os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, "the process was to be killed")


def dies_at_the_next(module: Any, name: str) -> None:
    """The next call of a function kills this process, as nothing can prevent."""
    setattr(module, name, lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))


def damage(path: Path) -> None:
    """Turn bytes in the middle of a file over: more than lie between two tensors."""
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 200] = bytes(byte ^ 1 for byte in data[middle : middle + 200])
    path.write_bytes(data)


@contextmanager
def warned(*words: str) -> Iterator[None]:
    """What must warn, with each of these words."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        yield
    text = "\n".join(str(one.message) for one in heard)
    require(all(word in text for word in words), f"no warning of {words}: {text}")


@contextmanager
def refused(kind: type[BaseException], word: str) -> Iterator[None]:
    """What must raise, with this word."""
    try:
        yield
    except kind as error:
        require(word in str(error), f"no {word} in: {error}")
        return
    raise SystemExit(f"{kind.__name__} was to be raised")


def same(wanted: Any, got: Any) -> None:
    """Both runs came to the same, bit for bit."""
    require(not (found := list(differences(wanted, got))), f"the runs differ: {found}")


def require(holds: object, text: str) -> None:
    """End the script unless it holds."""
    if not holds:
        raise SystemExit(text)
