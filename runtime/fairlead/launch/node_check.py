"""What each node of a launch does before its ranks start: it looks at its own image and shared memory, mounts data, and
starts the container that its ranks join.

Only the first rank's shell of a node does; the others wait for its answer. It is a shell script in the run's folder,
since a node need not have a Python that can load fairlead. A rank whose node gives no good answer does not start.

The launching host has read the image. Another node may see other bytes at the same path: another copy on a local disk,
a stale one, something mounted over it. So it hashes what is there, unless it is the very file: same kernel, device,
inode, size, times of modification and change. Hashes are kept under these, in a folder of the user's own.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from fairlead.base.errors import fail, os_error_as
from fairlead.base.paths import atomic_write
from fairlead.engines.model import Takes
from fairlead.image.open import Image
from fairlead.image.sif import blocks, read_sif
from fairlead.image.signature import Verified
from fairlead.launch import node_container
from fairlead.launch.node_container import NodeContainer
from fairlead.launch.nodes import BOOT, host_of, key
from fairlead.swap.model import Plan

SCRIPT = "node.sh"
LEAST_SHM_KIB = 1024  # with less, every MPI ends at its start, by SIGBUS

# $1: the run's folder. Above it stand `image` (empty: none is checked), `kind`, `offset`, `size`, `contents`,
# `same` and `expected`, and `least`, `home`, `python` (empty: no agent), `modules` and `mounts` (a folder; empty: none); mounting is a
# function. The answer's first word is ok, shm, differs, unread, unmounted or uncontained.
_BODY = r"""
LC_ALL=C TZ=UTC0 run=$1 PATH=${PATH:-/bin}:/usr/bin:/bin
export LC_ALL TZ
read -r host </proc/sys/kernel/hostname
read -r boot </proc/sys/kernel/random/boot_id
key=$host.$boot
answer=$run/node.$key
identity() { printf '%s %s' "$boot" "$(stat -Lc '%d %i %s %y %z' "$image")"; }
digest() {
  if [ "$kind" = file ]; then
    tail -c +$((offset + 1)) "$image" | head -c "$size" | sha256sum
    { head -c "$offset" "$image"; tail -c +$((offset + size + 1)) "$image"; } | sha256sum
  else
    # What its user may not list is so on every node.
    cd "$image" && { find . -type d -printf '%p %m\n' -o -printf '%p %y %m %s %l %T@\n' 2>/dev/null | sort
      [ -z "$contents" ] || find . -type f -print0 | sort -z | xargs -0r sha256sum; } | sha256sum
  fi | tr -cd '0-9a-f\n' | tr '\n' ' '
}
if [ "$2" = digest ]; then digest; exit; fi
say() { printf '%s\n' "$*" >"$answer.partial" && mv "$answer.partial" "$answer"; }
kept() {
  folder=${XDG_RUNTIME_DIR:-/tmp}/fairlead-digests-$(id -u)
  mkdir -m 700 "$folder" 2>/dev/null
  # Who can write there can make any image a good one.
  [ -d "$folder" ] && [ ! -L "$folder" ] && [ -O "$folder" ] && [ "$(stat -c %a "$folder")" = 700 ] || return 1
  name=$folder/$(printf '%s %s' "$1" "$image" | sha256sum | cut -c1-32)
}
verify() {
  [ -n "$image" ] || return 0
  [ -r "$image" ] || { why=$([ -e "$image" ] && echo "it cannot be read there" || echo "there is no such file there"); say unread "$why"; return 1; }
  before=$(identity)
  [ "$before" = "$same" ] && return 0
  [ -n "$expected" ] || { say unread "it was to be opened on the launching host alone, so nothing is there to compare with"; return 1; }
  command -v sha256sum >/dev/null || { say unread "sha256sum is not installed there"; return 1; }
  name= found=
  [ "$kind" = file ] && kept "$before" && read -r found 2>/dev/null <"$name"
  if [ "$found" != "$expected" ]; then
    found=$(digest); found=${found% }
    [ "$(identity)" = "$before" ] || { say unread "it changed while it was read"; return 1; }
    [ -z "$name" ] || [ "$found" != "$expected" ] || { printf '%s\n' "$found" >"$name.$$" && mv "$name.$$" "$name"; }
  fi
  [ "$found" = "$expected" ] || { say differs "$found"; return 1; }
}
mount_data() {
  [ -n "$mounts" ] && [ "$key" != "$home" ] || return 0
  # What it leaves running is none of the run's processes, which end together.
  why=$(unset FAIRLEAD_RUN_ID PYTHONHOME PYTHONSTARTUP; export PYTHONPATH="$modules"; cd / && mounting </dev/null 2>&1) ||
    { say unmounted "$(printf '%s' "$why" | tr '\n' ' ')"; return 1; }
}
CONTAIN
if mkdir "$run/at.$key" 2>/dev/null; then
  free=$(df -Pk /dev/shm 2>/dev/null | { read -r _; read -r _ _ _ free _; echo "$free"; })
  if [ -n "$free" ] && [ "$free" -lt "$least" ]; then
    say shm "$free"
  elif verify && mount_data && contain; then
    if [ "$key" != "$home" ] && [ -n "$python" ]; then
      # The agent comes up while ranks already make theirs.
      (cd /dev/shm 2>/dev/null && printf '%s\n' *) >"$run/memory.$key"
      if [ -x "$python" ]; then
        unset PYTHONHOME PYTHONSTARTUP
        # Hydra kills the group of a rank that has failed, which may be before Python is up.
        apart=$(command -v setsid)
        PYTHONPATH=$modules $apart "$python" -s -B -P -m fairlead.launch.node "$run" "$key" "$PPID" \
          </dev/null >/dev/null 2>"$run/agent.$key" &
      else
        echo "there is no $python" >"$run/unwatched.$key"
      fi
    fi
    say ok "${free:-unknown}"
  fi
fi
# Each pause is a process: short ones of all ranks of a node would hold up the one that they wait for.
pause=0.01
until [ -e "$answer" ]; do
  [ -d "$run" ] || exit 1
  sleep $pause
  case $pause in 0.01) pause=0.02;; 0.02) pause=0.05;; 0.05) pause=0.1;; *) pause=0.2;; esac
done
read -r state _ <"$answer"
[ "$state" = ok ] || exit 1
# What holds the mounts follows the ranks' shells.
[ -z "$mounts" ] || [ "$key" = "$home" ] || : >"$mounts/ranks/$PPID"
""".replace("CONTAIN", node_container.SCRIPT.strip())


@dataclass(frozen=True)
class NodeMounts:
    """What the nodes other than this host mount.

    Attributes:
        words: mount, leave a process that holds the mounts, and print the reason of a failure. They are arguments of Python.
        folder: on each node; what is named after the process number of a rank's shell below its ``ranks`` is followed.
    """

    words: tuple[str, ...]
    folder: str


@dataclass(frozen=True)
class Opened:
    """What a launch's engine opens on every node.

    Attributes:
        path: of a file or folder.
        same: identity of the one on this host; empty where nothing may pass without a digest.
        expected: its digests, as the script prints them; empty where only the one on this host may pass.
        offset, size: of the file system in the file.
        contents: whether a folder's files count by content, not only by name, kind, mode, size and time.
    """

    path: str
    kind: str
    same: str
    expected: str
    offset: int = 0
    size: int = 0
    contents: bool = False

    def _settings(self) -> dict[str, object]:
        return {
            "image": self.path, "kind": self.kind, "same": self.same, "expected": self.expected,
            "offset": self.offset, "size": self.size, "contents": "yes" if self.contents else "",
        }  # fmt: skip


def opened(
    plan: Plan, image: Image, verified: Verified | None = None, *, alone: bool = False
) -> Opened | None:
    """What nodes have to look at; None where the engine opens images by their name in its store.

    Args:
        verified: the image's signature, if one was required.
        alone: all ranks run on this host: a folder's files need not be listed for others to compare.
    Raises:
        FairleadError: exit code 123; it cannot be read.
    """
    if plan.engine.takes is Takes.NAME:
        return None
    path = plan.opened or plan.image
    with os_error_as("node-image-unreadable", path=path):
        same = identity(path)
        if os.path.isdir(path):  # noqa: PTH112
            made = Opened(path, "folder", same, "", contents=verified is not None)
            listed = "" if alone else _listed(made)
            return Opened(path, "folder", same, listed, contents=made.contents)
        offset, size = 0, os.stat(path).st_size  # noqa: PTH116
        end = size
        if image.format == "sif" and path == image.path:
            inner = read_sif(Path(path)).squashfs
            offset, size = inner.offset, inner.size
        rest = hashlib.sha256()
        for begin, count in ((0, offset), (offset + size, end - offset - size)):
            for block in blocks(Path(path), begin, count) if count else ():
                rest.update(block)
    digest = image.digest
    if verified and verified.statement.format != "oci":
        digest = verified.statement.squashfs_sha256
    return Opened(path, "file", same, f"{digest} {rest.hexdigest()}", offset, size)


def identity(path: str) -> str:
    """Which file or folder it is, as the script says it: kernel, device, inode, size, modification, change."""
    status = os.stat(path)  # noqa: PTH116
    times = " ".join(_utc(ns) for ns in (status.st_mtime_ns, status.st_ctime_ns))
    boot = BOOT.read_text("utf-8").strip()
    return f"{boot} {status.st_dev} {status.st_ino} {status.st_size} {times}"


def _utc(ns: int) -> str:
    seconds, rest = divmod(ns, 10**9)
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(seconds))}.{rest:09} +0000"


def _listed(folder: Opened) -> str:
    words = ["/bin/sh", "-c", text(folder), SCRIPT, "", "digest"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode or done.stderr:
        raise OSError(None, done.stderr.strip() or "its files cannot be listed")
    return done.stdout.strip()


def text(
    image: Opened | None,
    *,
    agents: bool = False,
    mounts: NodeMounts | None = None,
    container: NodeContainer | None = None,
) -> str:
    """The script.

    Args:
        agents: nodes other than this host start theirs.
        container: that ranks of a node join; None where each starts its own.
    """
    values = image._settings() if image else {"image": ""}
    values |= {
        "least": LEAST_SHM_KIB, "home": key(), "python": sys.executable if agents else "",
        "modules": str(Path(__file__).parents[2]), "mounts": mounts.folder if mounts else "",
    }  # fmt: skip
    lines = [f"{name}={shlex.quote(str(value))}" for name, value in values.items()]
    mounting = shlex.join((sys.executable, "-s", "-B", "-P", *mounts.words)) if mounts else ":"
    containing = node_container.functions(container)
    return "\n".join([*lines, f"mounting() {{ {mounting}; }}", containing]) + _BODY


def write(
    folder: Path,
    image: Opened | None,
    *,
    agents: bool = False,
    mounts: NodeMounts | None = None,
    container: NodeContainer | None = None,
) -> None:
    """Lays the script into a run's folder, as :func:`text` has it.

    Raises:
        FairleadError: exit code 123; it cannot be written.
    """
    with (
        os_error_as("run-folder-records", folder=folder),
        atomic_write(folder / SCRIPT, "w") as out,
    ):
        out.write(text(image, agents=agents, mounts=mounts, container=container))


class NodeCheck:
    """The answers of a launch's nodes."""

    def __init__(self, folder: Path, image: Opened | None):
        self._folder, self._image = folder, image
        self._reported: set[str] = set()

    def look(self) -> None:
        """Reads what nodes have answered since the last look.

        Raises:
            FairleadError: a node has another image or cannot read it (exit code 122), or has next to no shared
                memory, or cannot mount or start its container (123); its ranks do not start.
        """
        for path in self._folder.glob("node.*.*"):
            if path.name in self._reported or path.suffix == ".partial":
                continue
            state, _, rest = path.read_text("utf-8", "replace").strip().partition(" ")
            host, image = host_of(path), self._image
            if state == "shm":
                raise fail("node-shm", host=host, free=rest, least=LEAST_SHM_KIB)
            if state == "unmounted":
                raise fail("mount-on-node", host=host, why=rest)
            if state == "uncontained":
                raise fail("container-on-node", host=host, why=rest)
            if state == "unread" and image:
                raise fail("image-on-node-unread", host=host, image=image, why=rest)
            if state != "ok" and image:
                here, there = _shown(image.expected), _shown(rest)
                raise fail("image-on-node-differs", host=host, image=image, here=here, there=there)
            self._reported.add(path.name)


def verified_hosts(folder: Path) -> set[str] | None:
    """The hosts that have answered; None where nodes were not asked."""
    if not (folder / SCRIPT).exists():
        return None
    return {host_of(path) for path in folder.glob("node.*.*") if path.suffix != ".partial"}


def _shown(digests: str) -> str:
    """Of two digests the file system's, unless it is the other that differs: enough to tell images apart."""
    return " and ".join(f"{digest[:16]}…" for digest in digests.split()) or "none"
