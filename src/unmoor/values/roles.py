"""The role table: what each restored quantity is and where it lives. One row a role; documentation is made from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["ROLES", "Role"]


@dataclass(frozen=True, slots=True)
class Role:
    """One role word.

    `placement` is the rule for its tensors: device (as stored, or the device asked for), parameter (beside its own
    parameter), live (where the live object wants it), cpu (always), user (never moved).
    """

    name: str
    placement: str
    lives_on: str
    after_model_device: str


ROLES: Final[dict[str, Role]] = {
    role.name: role
    for role in (
        Role("model", "device", "as stored", "D"),
        Role("loss", "device", "as stored", "D"),
        Role("ema", "device", "as stored", "D"),
        Role("optimizer", "parameter", "beside its own parameter, always", "beside its parameter on D"),
        Role("scheduler", "cpu", "CPU", "CPU"),
        Role("scaler", "live", "where the live scaler wants it", "same rule"),
        Role("metrics", "cpu", "CPU", "CPU"),
        Role("loader", "user", "the user's; never moved", "never moved"),
        Role("rng", "cpu", "CPU ByteTensor, always", "CPU"),
    )
}
