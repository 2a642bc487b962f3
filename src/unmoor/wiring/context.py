"""A context around a training step that tells a mismatch of devices by names. It keeps nothing and watches nothing.

All work is done on the way out of a step that failed: the traceback still holds the modules and tensors.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from types import TracebackType
from typing import Any, ParamSpec, TypeVar, cast

from unmoor.errors import DeviceMismatch
from unmoor.live.context import MODELS, OPTIMIZERS, read_mismatch, refuse_strangers
from unmoor.report.mismatch import details, headline, remedy, with_text

__all__ = ["DeviceContext"]

P = ParamSpec("P")
R = TypeVar("R")


class DeviceContext:
    """What `unmoor.device_context` returns: a context and a decorator, which may be entered again and by any thread."""

    __slots__ = ("_model", "_optimizer")

    def __init__(self, model: Any, optimizer: Any) -> None:
        if not (isinstance(model, MODELS) and isinstance(optimizer, OPTIMIZERS)):
            refuse_strangers(model, optimizer)
        self._model, self._optimizer = model, optimizer

    def __enter__(self) -> Any:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            told = self._told(error, traceback)
            if told is not None:
                raise told from error

    async def __aenter__(self) -> Any:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.__exit__(kind, error, traceback)

    def __call__(self, step: Callable[P, R]) -> Callable[P, R]:
        """Decorate a function that takes a step, `async def` too."""
        if inspect.iscoroutinefunction(step):

            @wraps(step)
            async def awaiting(*args: P.args, **kwargs: P.kwargs) -> Any:
                with self:
                    return await step(*args, **kwargs)

            return cast("Callable[P, R]", awaiting)

        @wraps(step)
        def stepping(*args: P.args, **kwargs: P.kwargs) -> R:
            with self:
                return step(*args, **kwargs)

        return stepping

    def _told(self, error: BaseException, traceback: TracebackType | None) -> DeviceMismatch | None:
        try:
            mismatch = read_mismatch(error, traceback, self._model, self._optimizer)
        except Exception:  # noqa: BLE001 (a fault in the reading must never stand in the place of the user's error)
            return None
        if mismatch is None:
            return None
        mismatch = with_text(mismatch)
        told = DeviceMismatch(headline(mismatch), details=details(mismatch, width=78), remedy=remedy(mismatch))
        told.mismatch = mismatch
        return told
