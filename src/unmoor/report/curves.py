"""The loss curves of a proof as a picture: both runs above, their difference below, the cut between. Pure.

Drawn by matplotlib's objects on the Agg canvas: no window, no state of pyplot's, the same bytes for the same proof.
"""

from __future__ import annotations

import io
import math
import textwrap
from typing import TYPE_CHECKING, Any, Final

from unmoor.values.proof import Proof

from .layout import plain
from .proof import headline

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["COLOURS", "differences", "proof_picture"]

COLOURS: Final = {"whole": "#1f5fa8", "resumed": "#d9580d", "cut": "#6b7280", "ink": "#1f2933", "grid": "#e2e6ea"}
"""The two runs in colours that colour-blind readers tell apart; the resumed one is dashed too."""


def proof_picture(proof: Proof) -> bytes:
    """A PNG of both loss curves and their difference, step by step."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.6), dpi=150, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    colour = COLOURS["ink"] if proof.ok else COLOURS["resumed"]
    title = _wrapped(plain(headline(proof)), 88)
    figure.suptitle(title, fontsize=11.5, color=colour, x=0.01, ha="left", fontweight="bold")
    above, below = figure.subplots(2, 1, sharex=True, gridspec_kw={"height_ratios": [3, 1.25]})
    if proof.cause:
        cause = _wrapped(plain(proof.cause.partition("\n")[0]), 110)
        above.set_title(cause, loc="left", fontsize=9.5, color=COLOURS["ink"], pad=18)
    _curves(above, proof)
    _gaps(below, proof)
    target = io.BytesIO()
    figure.savefig(target, format="png", metadata={"Software": None})
    return target.getvalue()


def differences(proof: Proof) -> list[float | None]:
    """Resumed minus uninterrupted loss, for each step after the cut."""
    pairs = zip(proof.losses[proof.cut :], proof.resumed, strict=True)
    return [None if one is None or other is None else other - one for one, other in pairs]


def _wrapped(text: str, width: int) -> str:
    return "\n".join(textwrap.wrap(text, width))


def _curves(axes: Axes, proof: Proof) -> None:
    steps = range(1, proof.steps + 1)
    axes.plot(steps, _numbers(proof.losses), color=COLOURS["whole"], linewidth=2.4, label="uninterrupted")
    axes.plot(
        steps[proof.cut :],
        _numbers(proof.resumed),
        color=COLOURS["resumed"],
        linewidth=1.6,
        linestyle=(0, (4, 2)),
        marker="o",
        markersize=3.2,
        label="cut and resumed",
    )
    _mark(axes, proof)
    axes.set_ylabel("loss", color=COLOURS["ink"])
    axes.legend(frameon=False, fontsize=9, labelcolor=COLOURS["ink"])


def _gaps(axes: Axes, proof: Proof) -> None:
    gaps = _numbers(differences(proof))
    axes.axhline(0, color=COLOURS["cut"], linewidth=0.8)
    axes.bar(range(proof.cut + 1, proof.steps + 1), gaps, width=0.7, color=COLOURS["resumed"])
    if all(gap == 0 for gap in gaps):
        axes.set_ylim(-1, 1)
        axes.set_yticks([0])
        axes.text(0.99, 0.78, "0 at every step", transform=axes.transAxes, ha="right", fontsize=9, color=COLOURS["ink"])
    _mark(axes, proof)
    axes.set_ylabel("difference", color=COLOURS["ink"])
    axes.set_xlabel("step", color=COLOURS["ink"])
    axes.set_xlim(0.5, proof.steps + 0.5)
    axes.locator_params(axis="x", integer=True)
    axes.ticklabel_format(axis="y", style="sci", scilimits=(-3, 4))


def _mark(axes: Any, proof: Proof) -> None:
    """The cut, the step from which on the runs differ, and a quiet frame."""
    axes.axvline(proof.cut + 0.5, color=COLOURS["cut"], linewidth=1, linestyle=":")
    if axes.get_ylabel() == "" and axes.get_subplotspec().is_first_row():
        place = {"transform": axes.get_xaxis_transform(), "ha": "center", "va": "bottom"}
        axes.text(proof.cut + 0.5, 1.01, "cut", fontsize=8.5, color=COLOURS["cut"], **place)
    axes.grid(visible=True, color=COLOURS["grid"], linewidth=0.7)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(COLOURS["cut"])
    axes.tick_params(colors=COLOURS["ink"], labelsize=9)


def _numbers(values: Any) -> list[float]:
    """Values to draw; what is missing or not finite leaves a gap."""
    return [value if value is not None and math.isfinite(value) else math.nan for value in values]
