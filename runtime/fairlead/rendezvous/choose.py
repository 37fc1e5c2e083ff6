"""Which frameworks' variables the ranks of a command get."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence

from fairlead.rendezvous.model import MODES, Framework
from fairlead.rendezvous.registry import FRAMEWORKS


def frameworks(mode: str, command: Sequence[str], *, python: bool) -> tuple[Framework, ...]:
    """The frameworks to set up for.

    Args:
        mode: of ``--rendezvous``. ``auto`` is a framework's launcher if the command starts one, else every framework.
        command: what each rank runs.
        python: the image has a Python; no framework works without.
    """
    if mode == MODES[-1] or (mode == MODES[0] and not python):
        return ()
    called = launcher_called(command)
    own = tuple(f for f in FRAMEWORKS if called in f.launchers)
    if mode == MODES[0] and own:
        return own
    return tuple(f for f in FRAMEWORKS if not f.launchers and mode in (MODES[0], f.name))


def launcher_called(command: Sequence[str]) -> str:
    """The program that a command starts, or the module where Python does; its name without a folder.

    >>> launcher_called(("/opt/venv/bin/torchrun", "train.py"))
    'torchrun'
    >>> launcher_called(("python3", "-u", "-m", "torch.distributed.run", "train.py"))
    'torch.distributed.run'
    """
    if not command:
        return ""
    name = posixpath.basename(command[0])
    if not name.startswith("python"):
        return name
    for position, word in enumerate(command[1:], 1):
        if word == "-m":
            return command[position + 1] if position + 1 < len(command) else ""
        if not word.startswith("-"):
            return ""
    return ""
