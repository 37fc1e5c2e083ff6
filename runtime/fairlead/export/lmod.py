"""Lmod: a modulefile that makes an image's programs commands of the shell.

Each is a shell function that lets ``fairlead run`` start it, on the host's MPI and proved, on
$FAIRLEAD_RANKS ranks.
Source: Lmod, docs: "Lua Modulefile Functions" (set_shell_function, setenv, conflict).
"""

from __future__ import annotations

import re
import shlex
from pathlib import PurePosixPath

from fairlead import __version__
from fairlead.export.model import ExportFile, Facts, Target, need_image, unfit


def files(facts: Facts) -> tuple[ExportFile, ...]:
    """The modulefile."""
    image = need_image(facts, "lmod")
    name = facts.name or re.sub(r"[^A-Za-z0-9._+-]+", "-", PurePosixPath(image.name).name)
    name, version = re.sub(r"\.(sif|squashfs|sqsh)$", "", name).strip("-"), "default"
    if facts.name and "/" in facts.name:
        name, _, version = facts.name.partition("/")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]*", name + version):
        raise unfit(f"the name `{facts.name}`", facts.name, "it is NAME or NAME/VERSION", "Lmod")
    if not facts.programs:
        why = "none of it uses MPI; name them: --program"
        raise unfit("which commands it has", image.name, why, "Lmod")
    start = [*facts.fairlead, "run", "--quiet", *facts.options]
    lines = [
        f"-- fairlead {__version__}: programs of {' '.join(image.name.split())}, on {facts.site.name}.",
        f"help({lua(_help(facts, name))})",
        f"whatis({lua(f'Name: {name}')})",
        f"whatis({lua(f'Description: {len(facts.programs)} programs of the image {image.name}')})",
        f"conflict({lua(name)})",
        f"setenv({lua('FAIRLEAD_IMAGE')}, {lua(image.path)})",
    ]
    for program in facts.programs:
        command = PurePosixPath(program).name
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_.+-]*", command):
            why = "it cannot be a shell function"
            raise unfit(f"the program `{command}`", program, why, "Lmod")
        before, after = shlex.join(start), shlex.join([image.path, "--", program])
        bash = f'{before} -n "${{FAIRLEAD_RANKS:-1}}" {after} "$@"'
        # A C shell has no default values: there it is one rank.
        csh = f"{before} -n 1 {after} $*"
        lines.append(f"set_shell_function({lua(command)}, {lua(bash)}, {lua(csh)})")
    return (
        ExportFile(
            f"{name}/{version}.lua", "\n".join(lines) + "\n", "a folder of MODULEPATH, for Lmod"
        ),
    )


def lua(value: str) -> str:
    """A Lua string; every byte that is not plain is written by its number, unless brackets do."""
    plain = value.isascii() and value.isprintable()
    if plain and set(value) & set('"\\') and "]=]" not in value + "]":
        return f"[=[{value}]=]"
    text = "".join(
        chr(b) if 32 <= b < 127 and b not in b'"\\' else f"\\{b:03d}" for b in value.encode()
    )
    return f'"{text}"'


def _help(facts: Facts, name: str) -> str:
    commands = ", ".join(PurePosixPath(p).name for p in facts.programs)
    return (
        f"Programs of a container image as commands: {commands}. Each is started by `fairlead run` on the "
        f"host's MPI. FAIRLEAD_RANKS=4 starts four ranks; one without it. module unload {name} takes them away."
    )


EXPORT = Target("a modulefile with the image's programs as commands", files)
