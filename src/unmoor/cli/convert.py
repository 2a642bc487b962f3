"""`unmoor convert SOURCE TARGET`."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import click

from .exits import verdict
from .output import page, say_document, say_lines
from .progress import bar
from .shape import examples, json_option, path_argument

__all__ = ["command"]


@click.command(
    "convert",
    epilog=examples(
        "unmoor convert last.ckpt plain.pt --plain",
        "unmoor convert run/step_1000 model.safetensors --only model --strip auto",
        "unmoor convert theirs.pt safe.pt --opaque drop",
        "unmoor convert model.pt hub --dtype bfloat16 --max-shard-size 5GB",
        "unmoor convert ddp.pt one.pt --strip module. --rename '*.attn.*=*.mha.*'",
        "unmoor convert --salvage cut_short.pt rescued.pt",
    ),
)
@path_argument("source")
@path_argument("target")
@click.option(
    "--format",
    "form",
    type=click.Choice(["torch", "legacy", "safetensors", "dcp"]),
    help="What to write, where the target's name does not say it: .safetensors, .pt and its like, else dcp.",
)
@click.option("--plain", is_flag=True, help="Lay it out by role, for plain torch.load and load_state_dict.")
@click.option("--only", multiple=True, metavar="ROLE|PATH", help="Take this alone; one part becomes the root.")
@click.option("--drop", multiple=True, metavar="ROLE|PATH", help="Leave this out.")
@click.option("--strip", multiple=True, metavar="PREFIX|auto", help="Take a prefix of names out; auto: wrappers'.")
@click.option("--rename", multiple=True, metavar="OLD=NEW", help="Change a prefix of names, or a pattern with *.")
@click.option("--add", metavar="PREFIX", help="Put a prefix before every name.")
@click.option("--dtype", multiple=True, metavar="[ROLE=]DTYPE", help="Cast models and averages, or what ROLE names.")
@click.option("--compact", is_flag=True, help="Write views on storages of their own size.")
@click.option(
    "--opaque",
    type=click.Choice(["refuse", "drop"]),
    default="refuse",
    show_default=True,
    help="What to do with objects that no plain value stands for.",
)
@click.option("--max-shard-size", metavar="SIZE", help="Write safetensors files of at most SIZE (5GB) and an index.")
@click.option("--salvage", is_flag=True, help="Rescue what is whole of a damaged SOURCE; list what is lost.")
@click.option("--keep-damaged", is_flag=True, help="With --salvage: write damaged data too, as it is.")
@click.option(
    "--verify",
    type=click.Choice(["stream", "first", "none"]),
    default="stream",
    show_default=True,
    help="Check the source's checksums on the way, before anything is written, or not.",
)
@json_option("every change is in it")
def command(source: str, target: str, *, form: str | None, plain: bool, as_json: bool, **asked: Any) -> int:
    """Write a checkpoint in another format, layout, dtype, or under other names.

    Streams: no tensor is ever whole in memory. The target appears whole or not at all, and runs no code when torch
    loads it. Whatever differs from the source is told.
    """
    from unmoor import api_files

    wish = {
        "only": _one_or_all(asked["only"]),
        "drop": list(asked["drop"]) or None,
        "strip": list(asked["strip"]) or None,
        "rename": _pairs("--rename", asked["rename"]) or None,
        "add": asked["add"],
        "dtype": _dtypes(asked["dtype"]),
        "opaque": asked["opaque"],
        "max_shard_size": asked["max_shard_size"],
        "salvage": asked["salvage"],
        "keep_damaged": asked["keep_damaged"],
        "verify": asked["verify"],
    }
    with bar(f"writing {target}") as advance:

        def total(nbytes: int) -> None:
            advance.total = nbytes

        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore", UserWarning
            )  # torch's own, of sparse and quantized tensors being deprecated
            made = api_files.convert(
                source,
                target,
                format=form,
                layout="plain" if plain else "same",
                storage="compact" if asked["compact"] else "shared",
                progress=advance,
                total=total,
                **wish,
            )
    if as_json:
        from unmoor.report.converting import conversion_document

        say_document(conversion_document(made))
    else:
        from unmoor.report.converting import conversion_lines

        width, ellipsis = page(sys.stdout)
        say_lines(conversion_lines(made, width=width, ellipsis=ellipsis))
    return verdict(made.findings)


def _one_or_all(words: tuple[str, ...]) -> str | list[str] | None:
    return words[0] if len(words) == 1 else list(words) or None


def _pairs(option: str, given: tuple[str, ...]) -> dict[str, str]:
    """OLD=NEW as a dict. An old name cannot hold an equals sign, a new one can."""
    made = {}
    for text in given:
        old, sign, new = text.partition("=")
        if not sign or not old:
            raise click.UsageError(f"{option} {text!r} is no OLD=NEW")
        made[old] = new
    return made


def _dtypes(given: tuple[str, ...]) -> str | dict[str, str] | None:
    """One dtype for models and averages, or one a role; a bare one among several is for models and averages too."""
    if len(given) == 1 and "=" not in given[0]:
        return given[0]
    made: dict[str, str] = {}
    for text in given:
        made |= _pairs("--dtype", (text,)) if "=" in text else {"model": text}
    return made or None
