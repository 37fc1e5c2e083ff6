"""Where a rank's output goes: to the launcher, as it is or with the rank before each line, or to a file of the rank's own.

Some launchers can do this, each in its own way. The shell around a rank knows its rank, so it does it for all of them.
These are its parts: ``$r`` is the rank, ``"$@"`` its command, ``$o`` the folder of logs, ``$f`` the file of the rank
in the run's folder. They set ``$c``, the exit code. The launches of a training add to one file.
"""

from __future__ import annotations

from pathlib import Path

from fairlead.base.errors import fail, os_error_as
from fairlead.swap.model import Request

_AS_IS = '"$@"; c=$?; '
_TO_FILE = (
    '[ -d "$o" ] || { echo "fairlead: $(uname -n) does not see $o: give --output-dir a folder that every '
    'node sees" >&2; kill -9 $$; }; "$@" >>"$o/rank.$r.log" 2>&1; c=$?; '
)
# Pipes with names: descriptors by number could be those by which the launcher speaks to the rank.
_LABELLED = (
    'p=${f%/*}/pipe.$r; command -v sed >/dev/null && mkfifo "$p.1" "$p.2" || { echo "fairlead: $(uname -n): --label needs '
    'sed, and pipes in $p.1" >&2; kill -9 $$; }; l="s/^/[$r] /"; '
    'LC_ALL=C sed -u "$l" <"$p.1" & LC_ALL=C sed -u "$l" <"$p.2" >&2 & '
    '"$@" >"$p.1" 2>"$p.2"; c=$?; wait; rm -f "$p.1" "$p.2"; '
)


def script(request: Request) -> str:
    """The part of a rank's shell that runs its command."""
    if request.output_dir:
        return _TO_FILE
    return _LABELLED if request.label else _AS_IS


def log_of(folder: str, rank: str) -> Path:
    """The file of a rank's output."""
    return Path(folder) / f"rank.{rank}.log"


def prepare(folder: Path) -> None:
    """Makes the folder for the ranks' output.

    Raises:
        FairleadError: exit code 2; it cannot be made, or has the output of an earlier launch.
    """
    with os_error_as("output-dir", folder=folder):
        folder.mkdir(parents=True, exist_ok=True)
        earlier = next(folder.glob("rank.*.log"), None)
    if earlier:
        raise fail("output-dir-used", folder=folder, earlier=earlier.name)
