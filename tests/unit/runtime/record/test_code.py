"""Which commit a folder is at, by a Git that heeds nothing the repository says."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

import pytest

from fairlead.record.code import code_of


def _git(folder: Path, *words: str) -> str:
    environ = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
    who = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main")
    line = ["git", *who, *words]
    done = subprocess.run(line, cwd=folder, env=environ, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "science"
    (folder / "src").mkdir(parents=True)
    (folder / "src/train.py").write_text("print(1)\n")
    (folder / ".gitignore").write_text("*.log\n")
    _git(folder, "init", "-q")
    _git(folder, "remote", "add", "origin", "https://me:token@example.org/science.git")
    _git(folder, "add", ".")
    _git(folder, "commit", "-qm", "first")
    return folder


def test_clean_repository_is_its_commit(repository: Path) -> None:
    (repository / "run.log").write_text("ignored")
    code = code_of(repository / "src")
    assert code and code.commit == _git(repository, "rev-parse", "HEAD")
    assert (code.diff_sha256, code.untracked, code.unknown) == ("", 0, "")
    assert code.remote == "https://(withheld)@example.org/science.git"


def test_changes_are_told_by_their_digest_and_others_by_their_number(repository: Path) -> None:
    (repository / "src/train.py").write_text("print(2)\n")
    (repository / "new.py").write_text("")
    code = code_of(repository)
    diff = subprocess.run(
        ["git", "diff", "--binary", "HEAD"], cwd=repository, capture_output=True, check=True
    )
    assert code and code.diff_sha256 == hashlib.sha256(diff.stdout).hexdigest()
    assert code.untracked == 1


def test_packed_reference_and_linked_work_tree_are_followed(repository: Path) -> None:
    commit = _git(repository, "rev-parse", "HEAD")
    _git(repository, "pack-refs", "--all")
    _git(repository, "worktree", "add", "-q", "../other")
    for folder in (repository, repository.parent / "other"):
        code = code_of(folder)
        assert code and (code.commit, code.unknown, code.diff_sha256) == (commit, "", "")


def test_repository_runs_nothing_of_its_own(repository: Path) -> None:
    ran = repository.parent / "ran"
    script = repository.parent / "evil.sh"
    script.write_text(f"#!/bin/sh\ntouch {ran}\ncat\n")
    script.chmod(0o755)
    (repository / ".gitattributes").write_text("*.py filter=evil diff=evil\n")
    _git(repository, "add", ".gitattributes")
    for name in (
        "core.fsmonitor",
        "filter.evil.clean",
        "diff.evil.command",
        "diff.evil.textconv",
        "diff.external",
    ):
        _git(repository, "config", name, str(script))
    _git(repository, "config", "core.pager", str(script))
    hook = repository / ".git/hooks/post-index-change"
    hook.parent.mkdir(exist_ok=True)
    hook.symlink_to(script)
    (repository / "src/train.py").write_text("print(3)\n")
    code = code_of(repository)
    assert code and code.diff_sha256 and not code.unknown
    assert not ran.exists()
    _git(repository, "status")  # what Git itself does there
    assert ran.exists()


def test_repository_of_another_user_is_read_all_the_same(repository: Path) -> None:
    for path in (repository, *repository.rglob("*")):
        if os.geteuid() == 0:
            os.chown(path, 12345, 12345, follow_symlinks=False)
    code = code_of(repository)
    assert code and code.commit and not code.unknown


def test_damaged_repository_and_one_without_commit_say_why(tmp_path: Path) -> None:
    assert code_of(tmp_path) is None
    (tmp_path / ".git").mkdir()
    code = code_of(tmp_path)
    assert code and not code.commit and "No such file" in code.unknown
    (tmp_path / ".git").rmdir()
    _git(tmp_path, "init", "-q")
    code = code_of(tmp_path)
    assert code and code.unknown == "no commit yet"
    (tmp_path / ".git/HEAD").write_text("1" * 40)
    code = code_of(tmp_path)
    assert code and code.commit == "1" * 40 and code.unknown.startswith("whether it was changed: ")
