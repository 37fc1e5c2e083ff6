"""The directives by which a Slurm job gets space in Cray's DataWarp, and has it filled and emptied.

Pure functions; what writes job scripts calls them. Slurm copies before the job's nodes are its own and
after they have been given back, so that no node-hour is spent on it.

Sources: Slurm's Burst Buffer Guide (doc/html/burst_buffer.shtml of its source: the ``#BB`` grammar, the
suffixes of a capacity, names that may not begin with a digit, the order of a sample script) and the
DataWarp User Guide S-2558, "DataWarp Job Script Commands" (``jobdw``, ``persistentdw``, ``stage_in``,
``stage_out``). No directive may hold blanks in a value: both parse at them, and neither knows quotes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from fairlead.base.errors import FairleadError, fail

JOB = "$DW_JOB_STRIPED"
ACCESS = ("striped", "private")
_SUFFIXES = r"(?:[KMGTP](?:i?B)?|N)?"  # [KMGTP]iB and bare: powers of 1024; [KMGTP]B: of 1000


@dataclass(frozen=True)
class Copy:
    """A directory or file to be copied by the scheduler.

    Attributes:
        outside: its absolute path on the shared file system, no variables in it.
        inside: its path below the space.
        directory: it is one, not a file.
    """

    outside: str
    inside: str
    directory: bool = True


def job_space(
    capacity: str, *, access: str = "striped", pool: str = "", options: tuple[str, ...] = ()
) -> str:
    """``#DW jobdw``: space for this job alone, gone when it ends.

    Args:
        capacity: as ``200GiB``.
        access: ``striped``, which all nodes see, or ``private``, one for each node.
        options: words of the site, as ``optimization_strategy=interference``; they win.
    Raises:
        FairleadError: exit code 2; a value that the grammar does not have.

    >>> job_space("200GiB")
    '#DW jobdw type=scratch access_mode=striped capacity=200GiB'
    """
    words = {
        "type": "scratch",
        "access_mode": _access(access),
        "capacity": _capacity(capacity),
        **({"pool": _word(pool, "pool")} if pool else {}),
    }
    for option in options:
        name, equals, value = _word(option, "option").partition("=")
        if not (name and equals and value):
            raise _wrong("option", option, "NAME=VALUE")
        words[name] = _access(value) if name == "access_mode" else value
    return " ".join(["#DW jobdw", *(f"{name}={value}" for name, value in words.items())])


def stage_in(copy: Copy, persistent: str = "") -> str:
    """``#DW stage_in``: before the job begins.

    Args:
        persistent: the name of persistent space, instead of the job's own.

    >>> stage_in(Copy("/scratch/cosmo/train", "train"))
    '#DW stage_in type=directory source=/scratch/cosmo/train destination=$DW_JOB_STRIPED/train'
    """
    kind = "directory" if copy.directory else "file"
    return (
        f"#DW stage_in type={kind} source={_path(copy.outside)} "
        f"destination={space(persistent)}/{_inside(copy.inside)}"
    )


def stage_out(copy: Copy, persistent: str = "") -> str:
    """``#DW stage_out``: after the job has ended, however it did.

    >>> stage_out(Copy("/scratch/cosmo/out.h5", "out.h5", directory=False))
    '#DW stage_out type=file source=$DW_JOB_STRIPED/out.h5 destination=/scratch/cosmo/out.h5'
    """
    kind = "directory" if copy.directory else "file"
    return (
        f"#DW stage_out type={kind} source={space(persistent)}/{_inside(copy.inside)} "
        f"destination={_path(copy.outside)}"
    )


def use_persistent(name: str) -> str:
    """``#DW persistentdw``: the job sees space that another has made.

    >>> use_persistent("imagenet")
    '#DW persistentdw name=imagenet'
    """
    return f"#DW persistentdw name={_name(name)}"


def create_persistent(name: str, capacity: str, *, access: str = "striped", pool: str = "") -> str:
    """``#BB create_persistent``: space that stays until it is destroyed; a job of no nodes can do it.

    >>> create_persistent("imagenet", "2TiB")
    '#BB create_persistent name=imagenet capacity=2TiB access=striped type=scratch'
    """
    words = f"name={_name(name)} capacity={_capacity(capacity)} access={_access(access)}"
    return f"#BB create_persistent {words}" + (
        f" pool={_word(pool, 'pool')} type=scratch" if pool else " type=scratch"
    )


def destroy_persistent(name: str, *, hurry: bool = False) -> str:
    """``#BB destroy_persistent``.

    Args:
        hurry: without staging out what is still to be.

    >>> destroy_persistent("imagenet")
    '#BB destroy_persistent name=imagenet'
    """
    return f"#BB destroy_persistent name={_name(name)}" + (" hurry" if hurry else "")


def space(persistent: str = "") -> str:
    """The variable that DataWarp sets to a space's path.

    >>> space(), space("imagenet")
    ('$DW_JOB_STRIPED', '$DW_PERSISTENT_STRIPED_imagenet')
    """
    return f"$DW_PERSISTENT_STRIPED_{_name(persistent)}" if persistent else JOB


def directives(
    capacity: str,
    copies_in: tuple[Copy, ...] = (),
    copies_out: tuple[Copy, ...] = (),
    *,
    persistent: str = "",
    pool: str = "",
    options: tuple[str, ...] = (),
) -> tuple[str, ...]:
    """All lines of a job, in the order that Slurm's guide shows: space, in, out.

    Args:
        persistent: use this existing space; ``capacity`` is then ignored.
    """
    first = (
        use_persistent(persistent)
        if persistent
        else job_space(capacity, pool=pool, options=options)
    )
    return (
        first,
        *(stage_in(copy, persistent) for copy in copies_in),
        *(stage_out(copy, persistent) for copy in copies_out),
    )


def inserted(script: str, lines: tuple[str, ...]) -> str:
    """A job script with ``lines`` behind its ``#SBATCH`` lines, before anything that is executed.

    >>> inserted("#!/bin/sh\\n#SBATCH -N 1\\n\\nrun\\n", ("#DW x",))
    '#!/bin/sh\\n#SBATCH -N 1\\n#DW x\\n\\nrun\\n'
    """
    text = script.splitlines()
    place = max((n for n, line in enumerate(text) if line.startswith("#SBATCH")), default=0) + 1
    return "\n".join([*text[:place], *lines, *text[place:], ""])


def _capacity(text: str) -> str:
    if not re.fullmatch(rf"[1-9]\d*{_SUFFIXES}", text):
        raise _wrong("capacity", text, "a whole number and a unit, as 200GiB or 2TB")
    return text


def _access(text: str) -> str:
    if text not in ACCESS:
        raise _wrong("access mode", text, f"one of {', '.join(ACCESS)}")
    return text


def _name(text: str) -> str:
    # It becomes part of a variable's name; names of digits are those of jobs.
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", text):
        raise _wrong("name", text, "letters, digits and _, no digit first")
    return text


def _path(text: str) -> str:
    if not re.fullmatch(r"/[^\s\"'$\\]*", text):
        raise _wrong("path", text, "absolute, without blanks, quotes or variables")
    return text


def _inside(text: str) -> str:
    parts = text.split("/")
    if not re.fullmatch(r"[^\s\"'$\\]+", text) or {"", ".", ".."} & set(parts):
        raise _wrong(
            "name in the space", text, "relative, without blanks, quotes, variables and .."
        )
    return text


def _word(text: str, what: str) -> str:
    if not re.fullmatch(r"[^\s\"']+", text):
        raise _wrong(what, text, "one word")
    return text


def _wrong(what: str, text: str, rule: str) -> FairleadError:
    return fail("stage-directive", text=text, what=what, rule=rule)
