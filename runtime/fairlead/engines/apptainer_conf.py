"""apptainer.conf: where an installation has it, and what stands in it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath


def places(program: str, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Where the configuration of an Apptainer or SingularityCE may be: below its prefix, or /etc.

    Args:
        program: its path, links resolved.
        environ: may name another file.
    """
    for variable in ("APPTAINER_CONFIG_FILE", "SINGULARITY_CONFIG_FILE"):
        if named := environ.get(variable):
            return (named,)
    prefix = str(PurePosixPath(program).parent.parent)
    etc = "/etc" if prefix == "/usr" else f"{prefix}/etc"
    return tuple(f"{etc}/{name}/{name}.conf" for name in ("apptainer", "singularity"))


def parse(text: str) -> dict[str, tuple[str, ...]]:
    """``key = value`` lines of an apptainer.conf; a key may come again."""
    found: dict[str, tuple[str, ...]] = {}
    for line in text.splitlines():
        key, equals, value = line.partition("#")[0].partition("=")
        if equals:
            name = " ".join(key.split()).lower()
            found[name] = (*found.get(name, ()), value.strip())
    return found


def last(values: Mapping[str, tuple[str, ...]], key: str) -> str:
    """What counts of a key, in lower case; empty when it is not there."""
    return values.get(key, ("",))[-1].lower()
