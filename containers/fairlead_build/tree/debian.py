"""The Debian part of a tree: its locked packages, installed, as one squashfs of its own.

mmdebstrap unpacks in a jail (``base/jail.py``), from a folder that holds the locked packages and nothing
else, so nothing unlocked can come in and no network is needed. The result is kept by itself:
``tree.py`` lays wheels and files over it, and ``sources.py`` builds in one that has compilers too.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath

from fairlead.base.errors import fail
from fairlead.base.progress import Progress, Stage
from fairlead_build.base.digest import json_digest, sha256_of
from fairlead_build.base.jail import HOST_NAME, supervised
from fairlead_build.base.proc import clean_environment, run
from fairlead_build.base.progress_protocol import Phases, stdout_of
from fairlead_build.cache.store import copy_blob, publish, scratch_parent, workspace
from fairlead_build.recipe.lock import Deb, Lock
from fairlead_build.squashfs.squash import Compression, Sink, squashing
from fairlead_build.tools import tool_tree
from fairlead_build.tree.job import TreeJob

INSIDE = Path(__file__).with_name("inside")
_SCRIPTS = ("bytecode.py", "clean.sh", "compile.sh", "keystore.pl", "secrets.sh")
_HOW = ("debian.py", "debian_in_sandbox.py", "../base/jail.py")
# Documentation and translations: nothing at run time reads them; copyright files stay.
_DPKG = (
    "force-unsafe-io",  # the tree is thrown away, whole or not
    "path-exclude=/usr/share/doc/*",
    "path-include=/usr/share/doc/*/copyright",
    "path-exclude=/usr/share/man/*",
    "path-exclude=/usr/share/info/*",
    "path-exclude=/usr/share/locale/*",
    "path-exclude=/usr/share/lintian/*",
)


def debian_key(debs: Sequence[Deb], lock: Lock) -> str:
    """The cache key of this part: a digest of everything its bytes depend on."""
    inputs = {
        "packages": sorted(d.sha256 for d in debs),
        "epoch": lock.source_date_epoch,
        "tools": tool_tree.identity(lock.architecture),
        "how": [
            sha256_of(p)
            for p in (*(INSIDE / n for n in _SCRIPTS), *(Path(__file__).parent / n for n in _HOW))
        ],
    }
    return json_digest(inputs)


def debian_tree(debs: Sequence[Deb], job: TreeJob) -> Path:
    """The squashfs of ``debs``, from the cache or made now, from the store alone.

    Raises:
        FairleadError: a tool failed, or there is no room.
    """
    lock, cache, progress = job.lock, job.cache, job.progress
    final = cache.debian(debian_key(debs, lock))
    if final.is_file():
        return final
    size = sum(deb.size for deb in debs)
    with (
        workspace(scratch_parent(7 * size + (100 << 20)), "fairlead-", wait=False) as scratch,
        workspace(cache.root / "work", "debian-") as work,
    ):
        tools = tool_tree.unpacked(cache, progress)
        with progress.stage("check and stage packages", size, "B") as stage:
            _stage(debs, job, scratch, stage)
            # A jail's ids may not read the cache.
            shutil.copytree(tools, scratch / "tools", symlinks=True)
        made = work / "debian.squashfs"
        # Read again soon and thrown away with its recipe: speed counts, and no image's bytes do.
        how = Compression("zstd", 1, lock.source_date_epoch)
        with squashing(made, how, job.again, cache) as sink:
            _unpack(debs, job, scratch, sink)
        publish(made, final)
    return final


def _stage(debs: Sequence[Deb], job: TreeJob, scratch: Path, stage: Stage) -> None:
    """Lays out what mmdebstrap reads: ``repo/`` for apt, ``stage/`` for the hooks."""
    repo, inside = scratch / "repo", scratch / "stage"
    for folder in (repo, inside):
        folder.mkdir()

    def stanza(deb: Deb) -> str:
        copy_blob(job.cache, deb.sha256, repo / deb.file)
        control = run(
            ["dpkg-deb", "--field", repo / deb.file], doing=f"read package {deb.name}",
            remedy=job.relock, env={**clean_environment(), "TMPDIR": str(scratch)},
        ).decode("utf-8", "replace")  # fmt: skip
        place = f"Filename: ./{deb.file}\nSize: {deb.size}\nSHA256: {deb.sha256}\n"
        return control.rstrip("\n") + "\n" + place

    with ThreadPoolExecutor(os.cpu_count()) as several:
        stanzas = []
        for deb, text in zip(debs, several.map(stanza, debs), strict=True):
            stage.advance(deb.size)
            stanzas.append(text)
    write(repo / "Packages", "\n".join(stanzas))
    for name in _SCRIPTS:
        write(inside / name, (INSIDE / name).read_text("utf-8"))
    for folder in (scratch, repo, inside):
        folder.chmod(0o755)  # whatever the umask: a jail has other ids


def write(path: Path, text: str) -> None:
    """Writes a small file that is readable by all."""
    path.write_text(text, "utf-8")
    path.chmod(0o644)


def _unpack(debs: Sequence[Deb], job: TreeJob, scratch: Path, sink: Sink) -> None:
    """Runs mmdebstrap, and passes the tar stream it makes on to ``sink``."""
    # /usr merged from the start, as Debian's installer does; then nothing has to be moved later.
    merged = 'for d in bin sbin lib lib64; do mkdir -p "$1/usr/$d"; ln -s "usr/$d" "$1/$d"; done'
    # Java's packages link man pages into this folder, and fail without it. `clean.sh` empties it.
    merged += '; mkdir -p "$1/usr/share/man/man1"'
    # Some packages ask for the full name of the machine, which here is the jail's. `clean.sh` writes the image's.
    merged += f'; mkdir -p "$1/etc"; printf "127.0.0.1 localhost\\n127.0.1.1 {HOST_NAME}\\n" > "$1/etc/hosts"'
    hooks = ['sh /build/stage/compile.sh "$1" /build/stage', 'sh /build/stage/clean.sh "$1"']
    argv = [
        "/build/tools/bin/mmdebstrap", "--mode=unshare", "--variant=essential",
        "--format=tar", "--verbose", f"--architectures={job.lock.architecture}",
        "--skip=output/dev,check/signed-by,cleanup/apt",
        f"--include={','.join(d.name for d in debs)}", "--setup-hook=" + merged,
        '--aptopt=APT::Sandbox::User "root"',
        *(f"--dpkgopt={option}" for option in _DPKG), *(f"--customize-hook={hook}" for hook in hooks),
        "", "-", "deb [trusted=yes] copy:///build/repo ./",
    ]  # fmt: skip
    # The tool tree's apt comes before this machine's.
    env = clean_environment()
    env["PATH"] = f"/build/tools/bin:{env['PATH']}"
    env |= {"SOURCE_DATE_EPOCH": str(job.lock.source_date_epoch), "TMPDIR": "/build/tree"}
    asked = scratch / "request.json"
    asked.write_text(json.dumps({"argv": argv, "env": env}), "utf-8")
    phases = Dpkg(job.progress, scratch.parent)
    module = "fairlead_build.tree.debian_in_sandbox"
    with supervised(module, asked) as process, phases.open():
        # Each package is unpacked once and configured once.
        phases.enter("unpack Debian packages", 2 * len(debs), "steps")
        for chunk in stdout_of(process, phases.feed):
            phases.advance(len(chunk))
            sink.write(chunk)
        if code := process.wait():
            if phases.refused and not phases.no_space:
                package, reason = phases.refused
                raise fail("package-script", package=package, why=reason, loaded=job.loaded)
            doing = "unpack the Debian packages"
            raise phases.failed(argv, code, doing, job.again)


class Dpkg(Phases):
    """Also understands dpkg's output.

    Attributes:
        refused: the first package that dpkg could not install, and its last words.
    """

    _AT_WORK = re.compile(r"(?:Unpacking|Setting up|Processing triggers for) (\S+)")
    _FAILED = re.compile(r"dpkg: error processing (?:package|archive) (\S+) \(--.*\):$")
    # Such a package waits for another, which has failed and is reported by itself.
    _WAITS = "dependency problems"

    def __init__(self, progress: Progress, folder: Path):
        super().__init__(progress, folder)
        self.refused: tuple[str, str] | None = None
        self._words: deque[str] = deque(maxlen=12)
        self._failing = ""

    def feed(self, line: str) -> None:
        if at_work := self._AT_WORK.match(line):
            self._words.clear()
            if not line.startswith("Processing"):
                self.advance(1)
                self.note(at_work[1])
        elif failed := self._FAILED.match(line):
            archive = PurePosixPath(failed[1]).name
            self._failing = archive.partition("_")[0].partition(":")[0]
        elif self._failing:
            if self.refused is None and not line.strip().startswith(self._WAITS):
                colon = ":" if self._words else ""
                why = "\n".join([line.strip() + colon, *self._words])
                self.refused = (self._failing, why)
            self._failing = ""
        elif line.strip():
            self._words.append(line)
        super().feed(line)
