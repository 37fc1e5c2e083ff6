"""Which commit a script is of, and what was changed on top of it.

The repository may be anybody's: its configuration can name programs (hooks, filters, a file system monitor), so Git
gets none of it. Objects and index are read through a Git folder of our own.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from fairlead.record.model import Code
from fairlead.record.secrets import text

_LIMIT_S = 20.0  # of one command; a repository on a slow file system must not hold up a job
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_MOST_BYTES = 1 << 20


class _Unknown(Exception):
    """Git did not answer."""


def code_of(folder: Path) -> Code | None:
    """The repository that ``folder`` is in; None if it is in none."""
    top = next((p for p in (folder, *folder.parents) if (p / ".git").exists()), None)
    if top is None:
        return None
    try:
        own, common = _git_folders(top)
        commit, remote = _commit(own, common), _remote(common)
    except (OSError, ValueError) as exc:
        return Code(str(top), unknown=str(exc))
    if not commit:
        return Code(str(top), remote=remote, unknown="no commit yet")
    try:
        diff, untracked = _changes(top, own, common, commit)
    except _Unknown as exc:
        return Code(str(top), commit, remote, unknown=f"whether it was changed: {exc}")
    return Code(str(top), commit, remote, diff, untracked)


def _git_folders(top: Path) -> tuple[Path, Path]:
    """The Git folder of a work tree, and the one that it shares with others."""
    own = top / ".git"
    if own.is_file():  # a linked work tree, or a submodule
        own = (top / _line(own).removeprefix("gitdir:").strip()).resolve()
    shared = own / "commondir"
    return own, (own / _line(shared)).resolve() if shared.is_file() else own


def _line(path: Path) -> str:
    with path.open("rb") as stream:
        return stream.read(_MOST_BYTES).decode(errors="replace").strip()


def _commit(own: Path, common: Path) -> str:
    head = _line(own / "HEAD")
    for _ in range(5):  # symbolic references
        if _COMMIT.fullmatch(head):
            return head
        name = head.removeprefix("ref:").strip()
        if not name.startswith("refs/") or ".." in name:
            break
        place = next((p for p in (own / name, common / name) if p.is_file()), None)
        head = _line(place) if place else _packed(common, name)
    return ""


def _packed(common: Path, name: str) -> str:
    with suppress(OSError), (common / "packed-refs").open("rb") as lines:
        for line in lines:
            commit, _, ref = line.strip().partition(b" ")
            if ref == os.fsencode(name):
                return commit.decode("ascii", "replace")
    return ""


def _remote(common: Path) -> str:
    """The address of ``origin``, as the configuration has it."""
    with suppress(OSError):
        section = re.search(
            r'^\[remote "origin"\]\s*\n((?:[ \t;#].*\n?|\n)*)', _line(common / "config"), re.M
        )
        if section and (url := re.search(r"^\s*url\s*=\s*(.+?)\s*$", section[1], re.M)):
            return text(url[1].strip('"'))
    return ""


def _changes(top: Path, own: Path, common: Path, commit: str) -> tuple[str, int]:
    """The digest of what was changed, and the number of untracked files."""
    if shutil.which("git") is None:
        raise _Unknown("git is not installed")
    with tempfile.TemporaryDirectory(prefix="fairlead-git-") as name:
        folder = Path(name)
        for part in ("refs", "objects/info", "info"):
            (folder / part).mkdir(parents=True)
        (folder / "HEAD").write_text(f"{commit}\n", "utf-8")
        alternates = os.fsencode(common / "objects") + b"\n"
        (folder / "objects/info/alternates").write_bytes(alternates)
        kind = "[extensions]\nobjectFormat = sha256\n" if len(commit) > 40 else ""
        version = 1 if kind else 0
        config = f"[core]\nrepositoryformatversion = {version}\n{kind}"
        (folder / "config").write_text(config, "utf-8")
        with suppress(
            OSError
        ):  # with its time: of files changed since then, Git compares the content
            shutil.copy2(own / "index", folder / "index")
        with suppress(OSError):
            shutil.copy(common / "info/exclude", folder / "info/exclude")
        return _asked(folder, top)


def _asked(folder: Path, top: Path) -> tuple[str, int]:
    git = ["git", f"--git-dir={folder}", f"--work-tree={top}", "--no-pager"]
    environ = {
        **{n: v for n, v in os.environ.items() if not n.startswith("GIT_")},
        "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull, "GIT_TERMINAL_PROMPT": "0",
        "GIT_NO_LAZY_FETCH": "1", "LC_ALL": "C",
    }  # fmt: skip
    diff = _run([*git, "diff", "--binary", "--no-ext-diff", "--no-textconv", "--ignore-submodules=all", "HEAD"], environ, top)  # fmt: skip
    others = _run([*git, "ls-files", "--others", "--exclude-standard", "-z"], environ, top)
    return (hashlib.sha256(diff).hexdigest() if diff else ""), others.count(b"\0")


def _run(argv: list[str], environ: Mapping[str, str], folder: Path) -> bytes:
    try:
        done = subprocess.run(
            argv, env=environ, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, timeout=_LIMIT_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise _Unknown(f"no answer within {_LIMIT_S:.0f} s") from None
    except OSError as exc:
        raise _Unknown(str(exc)) from None
    if done.returncode:
        raise _Unknown(done.stderr.decode(errors="replace").strip().split("\n")[-1][:200])
    return done.stdout
