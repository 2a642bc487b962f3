"""Shell completion: the script that is printed is one that its shell takes, and it completes what there is."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest
from click.shell_completion import BashComplete

from unmoor import cli

WORDS = [
    (["unmoor", ""], "inspect"),
    (["unmoor", "ins"], "inspect"),
    (["unmoor", "inspect", "--"], "--json"),
    (["unmoor", "completion", "z"], "zsh"),
]


def completed(words: list[str]) -> list[str]:
    """What completes the last of `words`, as the printed script asks for it."""
    complete = BashComplete(cli.commands, {}, "unmoor", "_UNMOOR_COMPLETE")
    return [item.value for item in complete.get_completions(words[1:-1], words[-1])]


@pytest.mark.parametrize(("words", "expected"), WORDS)
def test_completes_commands_options_and_choices(words, expected):
    """Commands, their options and the choices of an argument are offered."""
    assert expected in completed(words)


def test_a_path_is_left_to_the_shell(tmp_path):
    """A path completes as the shell's own files do."""
    complete = BashComplete(cli.commands, {}, "unmoor", "_UNMOOR_COMPLETE")
    assert [item.type for item in complete.get_completions(["inspect"], "ru")] == ["file"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_is_printed_for_each_shell(shell, capsys):
    """Each shell's script asks the program itself."""
    assert cli.main(["completion", shell]) == 0
    assert f"_UNMOOR_COMPLETE={shell}_complete" in capsys.readouterr().out


def test_bash_completes_with_the_printed_script(tmp_path):
    """A real bash that has read the script completes `unmoor insp` to inspect."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("there is no bash here")
    unmoor = tmp_path / "unmoor"
    unmoor.write_text(f'#!/bin/sh\nexec {sys.executable} -m unmoor "$@"\n')
    unmoor.chmod(0o755)
    asked = (
        'eval "$(unmoor completion bash)"; COMP_WORDS=(unmoor insp); COMP_CWORD=1; COMP_LINE="unmoor insp"; '
        '_unmoor_completion unmoor insp unmoor; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    environment = {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        [bash, "--norc", "-c", asked], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.split() == ["inspect"], done.stderr
