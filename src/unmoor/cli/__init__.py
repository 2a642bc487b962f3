"""The command line: arguments, printing, exit codes. The only folder that prints.

Nothing here decides what is said: text comes from `report`, facts from the public verbs. One file a command; a command
is imported when it is run, so that `unmoor inspect` starts without what the others need.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from io import StringIO
from typing import Final

import click

from unmoor.version import __version__

from .exits import EXIT_CODES, FINE, exit_code
from .output import tell
from .shape import LazyGroup, as_written

__all__ = ["COMMANDS", "EXIT_CODES", "commands", "exit_code", "main"]

COMMANDS: Final[dict[str, tuple[str, str]]] = {
    name: (f"{__name__}.{module}", text)
    for name, module, text in (
        ("inspect", "inspect", "Say what a checkpoint holds, where it was, and if it is safe."),
        ("verify", "verify", "Check every checksum of a checkpoint, name the tensor that is bad."),
        ("runs", "runs", "List the checkpoints of a folder, and which one to resume from."),
        ("diff", "diff", "Compare two checkpoints: names, hyper-parameters, every value."),
        ("explain", "explain", "Say if a checkpoint fits your run, and the call that resumes it."),
        ("relocate", "relocate", "Change the devices that a file names, in milliseconds at any size."),
        ("convert", "convert", "Write a checkpoint in another format, layout, dtype or names."),
        ("repartition", "repartition", "Cut a DeepSpeed checkpoint for another number of ranks."),
        ("prove", "prove", "Train, cut, resume, compare: is it the same run?"),
        ("preflight", "preflight", "Take one step as if on a device that is not here: what would fail?"),
        ("doctor", "doctor", "Say which devices are here, what auto chooses and why."),
        ("demo", "demo", "Resume a published run here, and prove it exact."),
        ("completion", "completion", "Print the script that completes commands in your shell."),
    )
}
"""Name of a command -> its module and its line in `unmoor --help`."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code. `arguments` are those of the process where none are given."""
    sys.stdout, sys.stderr = sys.stdout or StringIO(), sys.stderr or StringIO()  # a process may have been given neither
    try:
        code = commands.main(arguments, prog_name="unmoor", standalone_mode=False)
    except (click.ClickException, click.Abort, KeyboardInterrupt, Exception) as error:  # noqa: BLE001 (every error ends in a documented code)
        tell(error)
        return exit_code(error)
    return code if isinstance(code, int) else FINE


_EPILOG: Final = "\n\n".join(
    (
        as_written("Example:", ["unmoor inspect run/step_1000.pt"]),
        as_written("Exit codes:", [f"{code:<3}  {text}" for code, text in EXIT_CODES.items()]),
    )
)


@click.group(cls=LazyGroup, table=COMMANDS, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="unmoor %(version)s")
def commands() -> None:
    """Carry a PyTorch training run from one device to another, exactly."""
