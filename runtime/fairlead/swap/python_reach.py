"""Which packages with compiled code for an MPI a Python program imports, by what its text and theirs say.

What cannot be known is a reason, in words: then any package of the image may be imported.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fairlead.base.python_imports import STARTUP, Imports, imports, names_of
from fairlead.elf.facts import ImageFacts
from fairlead.mpi.cross_abi import is_python
from fairlead.swap.model import Request

_AT_START = (STARTUP, "sitecustomize", "usercustomize")  # imported by every Python; see site
_TAKES_VALUE = re.compile(r"-\w*[XW]|--check-hash-based-pycs")
_OWN_FOLDERS = re.compile(r"/s?bin/[^/]+$")
# Modules that run the script which their words name, as Python itself would.
_SCRIPTS_BEHIND = frozenset({"mpi4py", "mpi4py.run", "mpi4py.futures"})


@dataclass(frozen=True)
class Imported:
    """
    Attributes:
        packages: that are or may be imported, by name; with why it is not certain, empty where it is.
        unknown: why any other may be too; empty: none is.
    """

    packages: Mapping[str, str]
    unknown: str = ""

    def doubt(self, package: str) -> str | None:
        """Why it is not certain that a package is imported, empty where it is; None: it is not imported."""
        return self.packages.get(package, self.unknown or None)


@dataclass(frozen=True)
class _Given:
    """What the words of a Python give it: a text, a module or a script; nothing where it reads its input."""

    text: str = ""
    module: str = ""
    script: str = ""


def imported(
    facts: ImageFacts, request: Request, words: Sequence[str], chain: Sequence[str]
) -> Imported | None:
    """What a Python program imports; None where that is no question.

    Args:
        words: of the command; none where it is not known.
        chain: the paths that lead to the program: those of scripts, and of the Python.
    """
    if not facts.python_imports:
        return None
    scripts = [path for path in chain if facts.programs.get(path, "").startswith("#!")]
    if scripts:
        name, own = scripts[-1], _of_file(facts, request, scripts[-1])
    elif words and is_python(words[0]):
        name, own = _of_words(facts, request, words)
    else:
        name, own = posixpath.basename(chain[-1]) if chain else "", None
    if own is None:
        return Imported({}, f"what {name} runs is not known")
    return _closed(facts, request, name, own)


def surely_imported(facts: ImageFacts, request: Request, words: Sequence[str]) -> frozenset[str]:
    """The packages that the text or script which a Python's words name imports in any case, by name."""
    own = _of_words(facts, request, words)[1] if words and is_python(words[0]) else None
    return frozenset(own.sure if own else ())


def _of_words(
    facts: ImageFacts, request: Request, words: Sequence[str]
) -> tuple[str, Imports | None]:
    given = _given(words)
    if given.text:
        return f"{words[0]} -c", imports(given.text)
    name = (
        given.script or f"{words[0]} -m {given.module}"
        if given.script or given.module
        else words[0]
    )
    if given.script:
        own = _of_file(facts, request, given.script)
        if own and given.module:
            own = Imports((*own.sure, given.module.partition(".")[0]), own.perhaps, own.unseen)
        return given.script, own
    outside = [path for path in facts.python_imports if _is_module(path, given.module)]
    if not given.module or not outside:
        return name, None  # what a package runs may be named by its words
    files = [facts.python_imports[path] for path in outside]
    unseen = next((file.unseen for file in files if file.unseen), "")
    return name, Imports((), tuple(n for file in files for n in file.names), unseen)


def _is_module(path: str, module: str) -> bool:
    """Whether a file outside of packages is what ``-m`` names."""
    ends = (f"/{module.replace('.', '/')}.py", f"/{module.replace('.', '/')}/__main__.py")
    return bool(module) and path.endswith(ends) and len(names_of(path)) > 1


def _given(words: Sequence[str]) -> _Given:
    """What Python takes from its words.

    >>> _given(("python3", "-u", "-X", "dev", "train.py", "-c", "x")).script, _given(("python3", "-uc", "import h5py")).text
    ('train.py', 'import h5py')
    >>> _given(("python3", "-m", "mpi4py", "solve.py"))
    _Given(text='', module='mpi4py', script='solve.py')
    """
    rest = list(words[1:])
    while rest and rest[0].startswith("-") and rest[0] != "-":
        option = rest.pop(0)
        for letter, field in (("c", "text"), ("m", "module")):
            before, is_there, value = option[1:].partition(letter)
            if not is_there or option.startswith("--") or re.search(r"[XWcm]", before):
                continue
            value = value or (rest.pop(0) if rest else "")
            if field == "text":
                return _Given(text=value)
            script = (
                rest[0] if value in _SCRIPTS_BEHIND and rest and not rest[0].startswith("-") else ""
            )
            return _Given(module=value, script=script)
        if _TAKES_VALUE.fullmatch(option) and rest:
            rest.pop(0)
    return _Given(script=rest[0]) if rest and rest[0] != "-" else _Given()


def _of_file(facts: ImageFacts, request: Request, path: str) -> Imports | None:
    if path in request.python:
        return request.python[path]
    if _OWN_FOLDERS.search(path):
        return None  # what a package's program runs may be named by its words
    return facts.python_imports.get(request.placed(path))


def _closed(facts: ImageFacts, request: Request, name: str, own: Imports) -> Imported:
    """With all that is imported on the way."""
    by_name: dict[str, list[str]] = {}
    for path in facts.python_imports:
        for of in names_of(path):
            by_name.setdefault(of, []).append(path)
    why = f"{name} names it, not where every run comes to"
    known = {**dict.fromkeys(own.perhaps, why), **dict.fromkeys(own.sure, "")}
    known |= dict.fromkeys(_AT_START, "every Python may")
    unknown = f"{name} {own.unseen}" if own.unseen else ""
    pending = list(known)
    while pending:
        if folder := request.python_modules.get(pending[-1]):
            unknown = unknown or f"{name} may import {pending[-1]} from {folder}"
        for path in by_name.get(pending.pop(), ()):
            unit = facts.python_imports[path]
            unknown = unknown or (f"{path} {unit.unseen}" if unit.unseen else "")
            new = {of: f"{path} may import it" for of in unit.names if of not in known}
            known |= new
            pending += new
    return Imported(known, unknown)
