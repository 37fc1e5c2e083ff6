"""``fairlead build --check``: builds a second time, elsewhere and disturbed, and compares.

The second build has a cache of its own with the same downloads, and another temporary folder,
umask, time zone, locale, host name, hash seed and number of cores. Root lets an ordinary user do it
where one can. When a digest differs, :func:`first_difference` says which file does, and how.
"""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import IO, Any

from fairlead.base.progress import Progress
from fairlead_build.base.proc import child, tool_failed
from fairlead_build.cache.store import Cache, copy_blob, missing, scratch_parent, workspace
from fairlead_build.formats.registry import chosen
from fairlead_build.recipe.load import load_recipe
from fairlead_build.recipe.lock import Lock, load_lock
from fairlead_build.squashfs.squash import CHUNK
from fairlead_build.squashfs.tree_stream import entries
from fairlead_build.tools import tool_tree
from fairlead_build.tree.tree import unpacked_bytes
from fairlead_build.tree.wheel import requirements_in

# Everything about a machine and a user that must not show in an image.
DISTURBED = {
    "TZ": "Asia/Kathmandu",
    "LC_ALL": "POSIX",
    "LANG": "tr_TR.UTF-8",
    "PYTHONHASHSEED": "4711",
}

# A Python that runs this can build.
_PROBE = """
import sys
import fairlead_build.build
from fairlead_build.formats.registry import chosen
from fairlead_build.recipe.load import load_recipe
load_recipe(sys.argv[1])
"""


@dataclass(frozen=True)
class Compared:
    """One digest of the two builds."""

    what: str
    first: str
    second: str


@dataclass(frozen=True)
class CheckResult:
    """Both builds.

    Attributes:
        difference: the first file that differs, and how; empty when all digests are equal.
        user: who built the second time.
        left_out: why root and not an ordinary user did; empty otherwise.
    """

    compared: tuple[Compared, ...]
    difference: str
    user: str
    left_out: str

    @property
    def same(self) -> bool:
        return all(c.first == c.second for c in self.compared)


def check(
    given: str, formats: Sequence[str], outputs: Sequence[Path], cache: Cache, progress: Progress
) -> CheckResult:
    """Builds ``given`` again and compares.

    Args:
        outputs: what the first build made, one a format.
    Raises:
        FairleadError: the second build failed.
    """
    loaded = load_recipe(given)
    lock, _ = load_lock(loaded, requirements_in(loaded.recipe))
    user, left_out = _ordinary_user(given, lock)
    need = unpacked_bytes(lock) + 4 * lock.download_bytes
    with (
        progress.stage("build again, disturbed") as stage,
        workspace(cache.root / "work", "check-") as work,
        # Open to the user who builds; the cache may lie in a closed home.
        workspace(scratch_parent(need), "fairlead-check-") as folder,
    ):
        own = Cache((folder if user else work) / "cache" / "fairlead")
        own.make()
        if user:
            for package in (*lock.packages, *tool_tree.debs()):
                if not missing([package], cache):
                    copy_blob(cache, package.sha256, own.blob(package.sha256))
        else:
            for blob in (cache.root / "blobs" / "sha256").iterdir():
                os.link(blob, own.blob(blob.name))
        scratch = folder / "another TMPDIR"
        scratch.mkdir()
        scratch.chmod(0o755)
        if user:
            for path in (scratch, folder / "cache", *(folder / "cache").rglob("*")):
                shutil.chown(path, user.pw_uid, user.pw_gid)
        again = [Path(name) for name in _again(given, formats, own, scratch, user)["outputs"]]
        compared = tuple(
            Compared(form.name, form.digest(first), form.digest(second))
            for form, first, second in zip(chosen(formats, None), outputs, again, strict=True)
            if form.digest is not None
        )
        difference = ""
        if any(c.first != c.second for c in compared):
            # Any file will do; a folder where there is none.
            first, second = (next(filter(Path.is_file, p), p[0]) for p in (outputs, again))
            difference = first_difference(first, second)
        if difference:
            stage.failed("they differ")
        else:
            stage.result("same bits")
    name = user.pw_name if user else os.environ.get("USER") or f"user {os.getuid()}"
    return CheckResult(compared, difference, name, left_out)


def _ordinary_user(given: str, lock: Lock) -> tuple[pwd.struct_passwd | None, str]:
    """The account that root builds as, with subordinate ids; or why there is none."""
    if os.getuid() != 0:
        return None, ""
    if lock.base is not None:
        return None, "a container engine of root's builds this recipe"
    names = _delegated("/etc/subuid") & _delegated("/etc/subgid")
    users = [u for u in pwd.getpwall() if u.pw_uid and names & {u.pw_name, str(u.pw_uid)}]
    if not users:
        return None, "no ordinary user has a range in /etc/subuid and /etc/subgid"
    for user in users:
        probe = [*_becoming(user), sys.executable, "-P", "-c", _PROBE, given]
        env = {**os.environ, "PYTHONPATH": _path(), "PYTHONDONTWRITEBYTECODE": "1"}
        if subprocess.run(probe, env=env, capture_output=True, check=False).returncode == 0:
            return user, ""
    tried = ", ".join(u.pw_name for u in users)
    return None, f"{tried} may not read this Python, fairlead's own files or the recipe"


def _delegated(file: str) -> set[str]:
    try:
        return {line.split(":")[0] for line in Path(file).read_text("utf-8").splitlines()}
    except OSError:
        return set()


def _becoming(user: pwd.struct_passwd) -> list[str]:
    """The arguments that run a command as ``user``."""
    # A change of user clears the parent-death signal, so it is set again.
    who = [f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--init-groups"]
    return ["setpriv", *who, "--pdeathsig", "TERM"]


def _path() -> str:
    return os.pathsep.join(filter(None, sys.path))


def _again(
    given: str, formats: Sequence[str], own: Cache, scratch: Path, user: pwd.struct_passwd | None
) -> dict[str, Any]:
    verb = ["build", given, "--json", "--format", ",".join(formats)]
    inner = [sys.executable, "-P", "-m", "fairlead", *verb]
    env = {**os.environ, **DISTURBED, "TMPDIR": str(scratch), "PYTHONPATH": _path()}
    env["XDG_CACHE_HOME"] = str(own.root.parent)
    if user:
        inner = [*_becoming(user), *inner]
        env |= {"HOME": str(scratch), "USER": user.pw_name, "LOGNAME": user.pw_name}
    core = min(os.sched_getaffinity(0))
    script = 'umask 077; hostname disturbed; exec taskset --cpu-list "$1" "${@:2}"'
    argv = ["unshare", "--uts"]
    if os.getuid() != 0:
        # A namespace of an ordinary user's would take away the ids that jails need.
        argv, script = [], script.replace("hostname disturbed; ", "")
    argv += ["bash", "-c", script, "bash", str(core), *inner]
    doing, remedy = "build a second time", f"fairlead build {given}"
    with child(argv, env=env, stderr=subprocess.PIPE) as process:
        out, err = process.communicate()
    try:
        answer: dict[str, Any] = json.loads(out)
    except ValueError:
        answer = {}
    if process.returncode or not answer:
        reasons = [f"{f['what']}: {f['why']}" for f in answer.get("findings", ())]
        text = "\n".join(reasons) or err.decode("utf-8", "replace")
        raise tool_failed(argv, process.returncode, text, doing, remedy)
    return answer


def first_difference(first_image: Path, second_image: Path) -> str:
    """The first member in which two images differ, and how; empty when no file does.

    Raises:
        FairleadError: one of them cannot be read.
    """
    for mine, other in zip_longest(entries(first_image), entries(second_image)):
        if mine is None or other is None:
            extra = (mine or other)[0].name
            return f"/{extra}: only in the {'first' if mine else 'second'} build"
        (a, left), (b, right) = mine, other
        if a.name != b.name:
            return f"/{a.name}: the second build has /{b.name} in its place"
        if difference := _attributes(a, b) or _content(left, right):
            return f"/{a.name}: {difference}"
    return ""


def _attributes(a: tarfile.TarInfo, b: tarfile.TarInfo) -> str:
    if a.type != b.type:
        return "it is of another kind"
    if a.mode != b.mode:
        return f"mode {a.mode:o} and {b.mode:o}"
    if (a.uid, a.gid) != (b.uid, b.gid):
        return f"owner {a.uid}:{a.gid} and {b.uid}:{b.gid}"
    if a.mtime != b.mtime:
        times = [time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(t.mtime)) for t in (a, b)]
        return f"time {times[0]} and {times[1]}"
    if a.linkname != b.linkname:
        return f"a link to {a.linkname} and to {b.linkname}"
    return "" if (a.devmajor, a.devminor) == (b.devmajor, b.devminor) else "another device"


def _content(left: IO[bytes] | None, right: IO[bytes] | None) -> str:
    at = 0
    while left is not None and right is not None:
        mine, other = left.read(CHUNK), right.read(CHUNK)
        if mine != other:
            pairs = enumerate(zip(mine, other, strict=False))
            where = next((i for i, (x, y) in pairs if x != y), min(len(mine), len(other)))
            shown = [part[where : where + 16].hex(" ") or "its end" for part in (mine, other)]
            return f"content from byte {at + where} on: {shown[0]} and {shown[1]}"
        if not mine:
            break
        at += len(mine)
    return ""
