"""The shell's variables for Python: which of them a container's Python gets.

Those that name a place of this machine would lead the image's Python astray. The others mean the same there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

# And why.
REMOVED = {
    "PYTHONCASEOK": "is about this machine's file names",
    "PYTHONEXECUTABLE": "names a program of this machine",
    "PYTHONHISTORY": "names a file of this machine",
    "PYTHONHOME": "names an installation of this machine",
    "PYTHONINSPECT": "asks for a prompt, which ranks have not",
    "PYTHONNOUSERSITE": "decides about this machine's own packages",
    "PYTHONPATH": "names folders of this machine",
    "PYTHONPLATLIBDIR": "names a folder of this machine's Python",
    "PYTHONPYCACHEPREFIX": "names a folder of this machine",
    "PYTHONSAFEPATH": "hides the modules next to a script",
    "PYTHONSTARTUP": "names a file of this machine",
    "PYTHONUSERBASE": "names a folder of this machine",
    "VIRTUAL_ENV": "names an environment of this machine",
}
PASSED = frozenset(
    {
        "PYTHONASYNCIODEBUG",
        "PYTHONBREAKPOINT",
        "PYTHONCOERCECLOCALE",
        "PYTHONCPUCOUNT",
        "PYTHONDEBUG",
        "PYTHONDEVMODE",
        "PYTHONDONTWRITEBYTECODE",
        "PYTHONDUMPREFS",
        "PYTHONFAULTHANDLER",
        "PYTHONFROZENMODULES",
        "PYTHONGIL",
        "PYTHONHASHSEED",
        "PYTHONINTMAXSTRDIGITS",
        "PYTHONIOENCODING",
        "PYTHONLEGACYWINDOWSFSENCODING",
        "PYTHONLEGACYWINDOWSSTDIO",
        "PYTHONMALLOC",
        "PYTHONMALLOCSTATS",
        "PYTHONNODEBUGRANGES",
        "PYTHONOPTIMIZE",
        "PYTHONPERFSUPPORT",
        "PYTHONPROFILEIMPORTTIME",
        "PYTHONTHREADDEBUG",
        "PYTHONTRACEMALLOC",
        "PYTHONUNBUFFERED",
        "PYTHONUTF8",
        "PYTHONVERBOSE",
        "PYTHONWARNDEFAULTENCODING",
        "PYTHONWARNINGS",
    }
)
OTHER = "its value names a place of this machine"


@dataclass(frozen=True)
class ShellPython:
    """
    Attributes:
        removed: names of variables that the launch does without.
        passed: variables that the container gets.
    """

    removed: tuple[str, ...]
    passed: tuple[tuple[str, str], ...]


def sort(environ: Mapping[str, str]) -> ShellPython:
    """What becomes of a shell's variables for Python.

    What is in neither table is removed where its value has a ``/``, and so may name a place of this machine.

    >>> sort({"PYTHONPATH": "lib", "PYTHONHASHSEED": "0", "PYTHON_OF_MINE": "/opt", "PATH": "/bin"})
    ShellPython(removed=('PYTHONPATH', 'PYTHON_OF_MINE'), passed=(('PYTHONHASHSEED', '0'),))
    """
    names = sorted(n for n in environ if n.startswith("PYTHON") or n in REMOVED)
    removed = [n for n in names if n in REMOVED or (n not in PASSED and "/" in environ[n])]
    passed = {n: environ[n] for n in names if n not in removed}
    return ShellPython(tuple(removed), tuple(passed.items()))
