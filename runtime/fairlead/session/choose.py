"""Which MPI of the host replaces the image's, and which launcher starts the ranks.

``--launcher`` names a launcher by kind or by path; else it is the site's first that is here; else the ``mpiexec``
of the MPI that will be mapped. Each kind connects the ranks of certain MPIs only; where it offers several ways
(PMI-2, PMIx), that of the MPI is taken.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fairlead.base.errors import fail
from fairlead.base.launcher_names import in_python, in_shell
from fairlead.base.python_imports import Imports, imports_of, modules_in
from fairlead.base.shell_commands import LONGEST, SHELLS, commands, is_login_shells, is_shells
from fairlead.base.suggest import suggest
from fairlead.detect import capture
from fairlead.detect.capture import Capture
from fairlead.elf import reader as elf_file
from fairlead.elf.facts import AbiFamily, Elf, ImageFacts
from fairlead.engines.model import Engine
from fairlead.image.open import Image
from fairlead.launchers.identify import identify
from fairlead.launchers.image import own_launcher
from fairlead.launchers.model import Launcher
from fairlead.launchers.pmi import pmi_named
from fairlead.launchers.registry import LAUNCHERS, MPIEXEC, kind_of, kinds
from fairlead.mpi.cross_abi import is_python
from fairlead.mpi.host import HostMpi, discover, from_prefix
from fairlead.mpi.wheels import install_line
from fairlead.session.model import Choices
from fairlead.site.model import Site
from fairlead.site.resolved_paths import Here
from fairlead.swap.family import choose_host, image_family, own_place, speaking
from fairlead.swap.model import Line, Request
from fairlead.swap.reach import in_image, named_within, programs_of, shell_given

_WORDS = 16  # of a command, among which a script of this machine is looked for


@dataclass(frozen=True)
class Situation:
    """What a plan is made for: an image, what the user wants of it, and a machine.

    Attributes:
        capture: facts of another machine; None on the machine itself.
        by_profile: those facts are its profile's alone.
        paths: those of the profile's paths that exist on it.
    """

    choices: Choices
    image: Image
    request: Request
    site: Site
    capture: Capture | None
    by_profile: bool
    paths: Here
    engine: Engine
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)

    @property
    def family(self) -> AbiFamily:
        """The family of the MPI that the named programs use."""
        return image_family(self.image.facts, self.request)


def outside(request: Request, facts: ImageFacts, *, elsewhere: bool = False) -> dict[str, Elf]:
    """Facts of the named programs that are not in the image but files of the machine, as ``./a.out`` is.

    Of a script, and of what is on another machine, nothing is known.

    Args:
        elsewhere: the plan is for another machine.
    """
    paths = {}
    for name in programs_of(request):
        path = Path(place := request.placed(name))
        known = place.startswith("/") and (not facts.programs or in_image(facts, place))
        if "/" in name and not known and (elsewhere or path.is_file()):
            paths[name] = Elf(str(path.absolute()), "")
            if not elsewhere:
                with contextlib.suppress(elf_file.NotElf, OSError):
                    paths[name] = elf_file.read(path, str(path.absolute()))
    return paths


def texts(request: Request, facts: ImageFacts) -> dict[str, str]:
    """The shell scripts of this machine that a command names: its program, or what it gives to a shell.

    A path below a bound folder is one of that folder.
    """
    by_word, shell = dict[str, str](), False
    for index, word in enumerate(request.command[:_WORDS]):
        if (not index or shell) and not word.startswith("-"):
            text = _script(word, facts, request)
            first = text.partition("\n")[0]
            if text and (shell or is_shells(first) or is_login_shells(first)):
                by_word[word] = text
        shell |= word.rpartition("/")[2] in SHELLS
    return by_word


def python_files(request: Request, facts: ImageFacts) -> dict[str, Imports]:
    """What the Python files of this machine that a command names import, with the modules next to them."""
    if not facts.python_imports:
        return {}
    named = (word for word in request.command[:_WORDS] if word.endswith(".py"))
    places = {word: path for word in named if (path := _place(word, facts, request))}
    return {word: imports_of(path) for word, path in places.items()}


def launchers_named(request: Request, facts: ImageFacts) -> dict[str, str]:
    """The MPI launchers in the texts that a command gives to shells and Pythons, and in its scripts; each by where it is.

    Texts of which all commands are seen are left out.
    """
    named: dict[str, str] = {}
    for program, _ in named_within(facts, request):
        words = program.words
        given = shell_given(words).text if posixpath.basename(words[0]) in SHELLS else ""
        if given and commands(given) is None:
            named[f"{words[0]} -c"] = in_shell(given)
        if is_python(words[0]) and "-c" in words[:-1]:
            named[f"{words[0]} -c"] = in_python(words[words.index("-c") + 1])
        for path in map(request.placed, (*program.chain, *words)):
            if path not in facts.commands:
                named[path] = facts.launchers.get(path, "")
    for word in request.command[:_WORDS]:
        named[word] = named.get(word) or in_python(_script(word, facts, request))
    unseen = {word: text for word, text in request.texts.items() if commands(text) is None}
    named |= {word: in_shell(text) for word, text in unseen.items()}
    return {where: name for where, name in named.items() if name}


def python_modules(
    request: Request, facts: ImageFacts, environ: Mapping[str, str]
) -> dict[str, str]:
    """The modules of this machine that a container's Python finds, each with its folder."""
    if not facts.python_imports:
        return {}
    given = [f for f in request.searched.get("PYTHONPATH", "").split(":") if f]
    home = Path(environ.get("HOME", "/"))
    folders = [_of_machine(folder, request) for folder in given]
    folders += sorted(home.glob(".local/lib/python3*/site-packages"))
    # A text by -c and a module by -m are looked for from here.
    folders += [Path(request.workdir or ".")] if {"-c", "-m"}.intersection(request.command) else []
    return {name: str(folder) for folder in folders for name in modules_in(folder)}


def _of_machine(path: str, request: Request) -> Path:
    """Where a path of the container is on this machine, as far as binds say."""
    below = [b for b in request.binds if Path(path).is_relative_to(b.target)]
    bind = max(below, key=lambda b: len(b.target), default=None)
    return Path(bind.source, Path(path).relative_to(bind.target)) if bind else Path(path)


def _script(word: str, facts: ImageFacts, request: Request) -> str:
    """The text of a script that a container has at ``word`` from this machine; empty where it is none, or a long one."""
    path = _place(word, facts, request)
    with contextlib.suppress(OSError, ValueError):  # it cannot be read, or is not text
        if path and path.stat().st_size < LONGEST:
            return path.read_text(encoding="utf-8")
    return ""


def _place(word: str, facts: ImageFacts, request: Request) -> Path | None:
    """The file of this machine that a container has at ``word``; None where it has none, or the image's."""
    path = _of_machine(word := request.placed(word), request)
    of_image = not facts.programs or in_image(facts, word) or word in facts.python_imports
    if str(path) == word and word.startswith("/") and of_image:
        return None
    with contextlib.suppress(OSError, ValueError):
        if path.is_file():
            return path
    return None


def host_mpi(situation: Situation) -> tuple[HostMpi | None, tuple[Line, ...]]:
    """The host's MPI, and lines on why it is not another.

    Raises:
        FairleadError: exit code 2; a prefix was named that has none.
    """
    choices, there, site = situation.choices, situation.capture, situation.site
    facts, request, environ = situation.image.facts, situation.request, situation.environ
    starts = choices.launcher is not None and choices.launcher in LAUNCHERS
    if not there and not choices.launcher:
        starts = bool(here(site, environ))
    if choices.mpi not in ("host", "container"):
        prefix = Path(choices.mpi)
        below = (
            capture.mpi_below(there, prefix) if there else from_prefix(prefix, environ, site=site)
        )
        own = next((mpi for mpi in below if mpi.library.family is situation.family), None)
        # What would never be chosen is refused by the checks, which say why.
        return own or choose_host(facts, below, request, starts)[0] or below[0], ()
    mpis = there.mpis if there else discover(environ, site=site)
    return choose_host(facts, mpis, request, starts or bool(choices.launcher))


def launcher_for(situation: Situation, host: HostMpi | None) -> Launcher:
    """The launcher: the user's, the site's first that is on PATH, that of the MPI, or another of its family.

    Raises:
        FairleadError: exit code 2, the user's is not there; 121, there is none at all.
    """
    choices, site, environ = situation.choices, situation.site, situation.environ
    if choices.launcher and situation.capture:
        captured = {m.launcher.path: m.launcher for m in situation.capture.mpis if m.launcher}
        if choices.launcher not in captured:
            paths, there = ", ".join(captured), situation.capture
            raise fail("launcher-not-captured", choices=choices, there=there, captured=paths)
        return captured[choices.launcher]
    mapped = host.library if host and situation.request.mpi == "host" else None
    speaks = speaking(situation.image.facts, situation.request, mapped)
    pmi = pmi_named(situation.request.shape.extra)
    options = tuple(site.launcher.options.get(MPIEXEC, ()))
    own = host.launcher if host else None
    if own and choices.launcher == kind_of(own):
        return replace(own, options=tuple(site.launcher.options.get(choices.launcher, options)))
    brought = _of_image(situation)
    asked = choices.launcher or ""
    if asked in LAUNCHERS and LAUNCHERS.get(asked).in_image:
        if brought is None:
            raise fail("launcher-none-in-image", image=situation.image.path)
        return brought
    if choices.launcher and choices.launcher != MPIEXEC:
        return named(choices.launcher, speaks, site, environ, pmi)
    on_path = None if choices.launcher or situation.capture else here(site, environ)
    if on_path:
        kind, program = on_path
        return of_kind(kind, speaks, site, environ, program, pmi)
    if own:
        return replace(own, options=options)
    if brought and speaks is AbiFamily.UNKNOWN and not choices.launcher:
        return brought
    return replace(_of_family(situation, host, speaks), options=options)


def _of_image(situation: Situation) -> Launcher | None:
    """The launcher of the image's own MPI, where that runs."""
    facts, request = situation.image.facts, situation.request
    path, _ = own_place(facts, request) if request.mpi == "container" else ("", "")
    return own_launcher(path, facts.programs) if path else None


def _of_family(situation: Situation, host: HostMpi | None, family: AbiFamily) -> Launcher:
    """That of an MPI of the host; of an unknown family, any: the proof shows what comes of it."""
    there = situation.capture
    for mpi in there.mpis if there else discover(situation.environ):
        if mpi.launcher and family in (mpi.launcher.family, AbiFamily.UNKNOWN):
            return mpi.launcher
    given: dict[str, Any] = {"family": family, "install": install_line(family)}
    given["prefix"] = host.prefix if host else ""
    if there:
        raise fail("launcher-none-of-family-there", there=there, **given)
    raise fail("launcher-none-of-family-here", **given)


def here(site: Site, environ: Mapping[str, str] = os.environ) -> tuple[str, str] | None:
    """The site's first launcher that is on PATH, as kind and program; None for the MPI's own."""
    for kind in site.launcher.kinds:
        if kind == MPIEXEC:
            return None
        if program := _program(kind, environ):
            return kind, program
    return None


def _program(kind: str, environ: Mapping[str, str]) -> str | None:
    programs = (shutil.which(p, path=environ.get("PATH", "")) for p in LAUNCHERS.get(kind).programs)
    return next(filter(None, programs), None)


def of_kind(
    kind: str,
    speaks: AbiFamily,
    site: Site,
    environ: Mapping[str, str] = os.environ,
    program: str | None = None,
    pmi: str = "",
) -> Launcher:
    """A launcher of a kind, set to the wire-up protocol of an MPI's ranks.

    Args:
        speaks: family of the MPI that will be mapped.
        program: its path; None to look on PATH.
        pmi: the user's own word for it.
    Raises:
        FairleadError: exit code 2; there is none on PATH.
    """
    program = program or _program(kind, environ)
    if program is None:
        names = " or ".join(LAUNCHERS.get(kind).programs)
        raise fail("launcher-not-on-path", names=names, kind=kind)
    launcher = LAUNCHERS.get(kind).describe(program, speaks, pmi, site.launcher.pmi)
    return replace(launcher, options=tuple(site.launcher.options.get(kind, ())))


def named(
    name: str,
    speaks: AbiFamily,
    site: Site,
    environ: Mapping[str, str] = os.environ,
    pmi: str = "",
) -> Launcher:
    """The launcher that ``--launcher`` names by its kind or its path.

    Raises:
        FairleadError: exit code 2; there is no such program.
    """
    if name in LAUNCHERS:
        return of_kind(name, speaks, site, environ, pmi=pmi)
    path = Path(name)
    if not os.access(path, os.X_OK) or path.is_dir():
        if "/" in name:
            raise fail("launcher-not-executable", name=name)
        raise fail(
            "launcher-neither-program-nor-kind", name=name, suggestion=suggest(name, kinds())
        )
    if path.name in LAUNCHERS and LAUNCHERS.get(path.name).in_profiles:
        return of_kind(path.name, speaks, site, environ, str(path.absolute()))
    return identify(path.absolute())
