"""One container a node, which all ranks of the node join, where an engine would give each rank a user namespace.

The kernel refuses one rank the memory of another across user namespaces, so large messages take two copies in place of
one; and each container mounts the image by a program of its own, and caches what it reads by itself.

The first rank of a node starts it (:mod:`fairlead.launch.node_check`), in a process that holds it until no rank of the
run is left on the node, or the launch is over. It is none of the run's processes, which end together.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fairlead.engines.rank_shell import BASH, KEPT

# What holds it: a shell that the image has as well, which says that it runs, and ends with its input. Schedulers send
# their warnings to all processes of a job.
_HELD = "trap '' HUP INT TERM USR1 USR2; echo $$; read -r _"
# Apptainer's init hands signals to the group that its command leads, and ends without one.
COMMAND = (
    "/bin/sh", "-c", f'command -v setsid >/dev/null && exec setsid /bin/sh -c "$0"; {_HELD}', _HELD
)  # fmt: skip
PROBE = ("/bin/sh", "-c", ":")
_END_S = 3.0  # a node that says nothing for longer passes for lost
_POLL_S = 0.02

# $1: what the engine needs until the container runs, without this number at the end; empty for nothing. $2: the run's folder,
# which a rank's shell has as a word after `fairlead-rank`. $3: file for process numbers, as of KEPT. $4: the launcher's
# daemon, which starts the ranks. Then the words that start the container. On SIGTERM it waits for the ranks that are left.
_KEEPER = r"""
# It is to read the image for all ranks of the node, where the first of them may be bound to a core.
taskset -pc "0-$(($(getconf _NPROCESSORS_CONF) - 1))" $$ >/dev/null 2>&1
# The launcher's connections among them, whose end it waits for.
for file in /proc/self/fd/*; do
  number=${file##*/}
  [ "$number" -le 2 ] || eval "exec $number>&-"
done
needed=${1:+$1$$} run=$2 kept=$3 above=$4
shift 4
printf fairlead-guard >/proc/$$/comm # fairlead.launch.processes lets it end by itself
over= gone=0 looks=0
trap 'over=yes' TERM
trap '' HUP INT USR1 USR2
clear_needed() { [ ! "$needed" ] || rm -f "$needed"; }
clear_needed # of a killed one that had this number
is_over() { [ "$over" ] || [ ! -d "$run" ] || [ -e "$run/over" ]; }
echo "$$" >"$kept.begun"
coproc exec "$@"
engine=$COPROC_PID input=${COPROC[1]} output=${COPROC[0]}
until read -r -t 0.5 inside <&$output && echo "$$ $engine $inside" >"$kept"; do
  kill -0 $engine || break
  # It hangs, and nobody waits for it any more.
  ! is_over && [ -d "/proc/$above" ] || { kill -9 $engine; break; }
done
clear_needed
while [ $gone -lt 6 ] && kill -0 $engine; do
  if is_over; then
    over=yes looks=$((looks + 1))
    if [ $looks -lt 20 ]; then sleep 0.05; else sleep 0.5; fi
  else
    sleep 5 &
    wait $!
    kill $!
  fi
  of_run=$(grep -lzxF -e "$run" /proc/[0-9]*/cmdline)
  if [ "$of_run" ] && grep -qzxF fairlead-rank $of_run; then gone=0
  elif [ "$over" ] || [ ! -d "/proc/$above" ]; then gone=6 # no rank can come any more
  else gone=$((gone + 1)); fi
done
rm -rf "$kept.asked" # of ranks: their variables
exec {input}>&-
wait $engine
"""
# In node.sh: says "uncontained" where ranks cannot join.
SCRIPT = r"""
contain() {
  [ -n "$contains" ] || return 0
  kept=$run/KEPT.$key
  command -v setsid >/dev/null || { say uncontained "setsid is not installed there"; return 1; }
  read -r _ _ _ above _ <"/proc/$PPID/stat"
  [ "$above" -gt 0 ] || above=1 # it is in another PID namespace
  (unset FAIRLEAD_RUN_ID; keeping) </dev/null >"$kept.log" 2>&1 &
  begun=$(date +%s) why="it has not started within $contains s"
  until [ -e "$kept" ] && why=$(joining </dev/null 2>&1); do
    kill -0 $! 2>/dev/null || { say uncontained "$(tail -n 5 "$kept.log" | tr '\n' ' ')"; return 1; }
    [ $(($(date +%s) - begun)) -lt "$contains" ] || { kill $!; sleep 1; kill -9 $! 2>/dev/null; say uncontained "$(printf %s "$why" | tr '\n' ' ')"; return 1; }
    sleep 0.02
  done
}
""".replace("KEPT", KEPT)


@dataclass(frozen=True)
class NodeContainer:
    """Words that start a node's container, and that run :data:`PROBE` in it.

    Attributes:
        needed: as of :class:`~fairlead.engines.model.Driver`.
        unset: variables that ``start`` does not get: they are for ranks.
        limit_s: how long it may take until ranks can join it.
    """

    start: tuple[str, ...]
    probe: tuple[str, ...]
    needed: str = ""
    unset: tuple[str, ...] = ()
    limit_s: float = 25.0


def functions(container: NodeContainer | None) -> str:
    """What :data:`SCRIPT` calls."""
    if container is None:
        return "contains="
    without = shlex.join(["env", *(word for name in container.unset for word in ("-u", name))])
    keeper = shlex.join(["setsid", *BASH, _KEEPER.strip(), "fairlead-container"])
    keeping = f'exec {without} {keeper} {shlex.quote(container.needed)} "$run" "$kept" "$above" {shlex.join(container.start)}'
    # One that hangs is named as well.
    timed = 'limited=; ! command -v timeout >/dev/null || limited="timeout -k 1 10"'
    joining = f"{timed}; $limited {shlex.join(container.probe)}"
    return (
        f"contains={container.limit_s:.0f}\nkeeping() {{ {keeping}; }}\njoining() {{ {joining}; }}"
    )


def release(folder: Path, node: str) -> int:
    """Lets the container of this node end after its last rank, if the run has one here.

    Returns:
        The process that holds it; 0 if there is none.
    """
    kept = folder / f"{KEPT}.{node}"
    with contextlib.suppress(OSError, ValueError, IndexError):
        keeper = int(kept.with_name(f"{kept.name}.begun").read_text("ascii").split()[0])
        if _keeps(keeper, kept):
            os.kill(keeper, signal.SIGTERM)
            return keeper
    return 0


def end(folder: Path, node: str) -> None:
    """Ends the container of this node, all of whose ranks have ended."""
    kept = folder / f"{KEPT}.{node}"
    if keeper := release(folder, node):
        until = time.monotonic() + _END_S
        while _keeps(keeper, kept) and time.monotonic() < until:
            time.sleep(_POLL_S)
        if _keeps(keeper, kept):
            with contextlib.suppress(OSError):
                os.killpg(keeper, signal.SIGKILL)


def _keeps(pid: int, kept: Path) -> bool:
    words: Iterable[bytes] = ()
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return os.fsencode(kept) in words
