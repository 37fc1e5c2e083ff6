"""Debian packages whose scripts do what a build must bear: they generate secrets, ask for the machine's name, and fail."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from tests.system import hosts
from tests.system.test_jail import package_with

from fairlead.base.errors import FairleadError
from fairlead.base.progress import Silent
from fairlead_build.base.digest import sha256_of
from fairlead_build.cache.store import Cache
from fairlead_build.recipe.load import load_recipe
from fairlead_build.recipe.lock import Deb, load_lock
from fairlead_build.squashfs.squash import unsquash_argv
from fairlead_build.tools import tool_tree
from fairlead_build.tree.debian import debian_tree
from fairlead_build.tree.job import TreeJob
from fairlead_build.tree.wheel import runtime_requirements

_GENERATES = """#!/bin/sh
set -e
hostname --fqdn > /etc/app.name
mkdir -p /etc/ssh /var/lib/app
umask 077
head -c 32 /dev/urandom > /etc/app.key
head -c 32 /dev/urandom > /var/lib/app/.cookie
echo "-----BEGIN PRIVATE KEY----- $(od -An -N8 -tx1 /dev/urandom)" > /etc/ssh/ssh_host_key
umask 022
cp /etc/ssh/ssh_host_key /etc/ssh/ssh_host_key.pub
echo plain > /etc/app.conf
"""
_FAILS = """#!/bin/sh
echo looking for the parameters
echo "fatal: no such parameter" >&2
exit 75
"""


def made(postinst: str, folder: Path) -> Path:
    """The Debian part of `mpi-base` and of a package with a script, made in a cache of its own."""
    loaded = load_recipe("mpi-base")
    lock = load_lock(loaded, runtime_requirements())[0]
    cache = Cache(folder / "cache")
    cache.make()
    for sha256 in {package.sha256 for package in (*lock.deb, *tool_tree.debs())}:
        hosts.same_file(Cache.default().blob(sha256), cache.blob(sha256))
    digest = package_with(postinst, folder, cache)
    deb = Deb(
        name="evil", version="1", size=cache.blob(digest).stat().st_size, sha256=digest,
        index=lock.deb[0].index, architecture="all", path="pool/evil_1_all.deb",
    )  # fmt: skip
    return debian_tree((*lock.deb, deb), TreeJob(loaded, lock, cache, Silent()))


@pytest.mark.full
def test_secrets_that_a_package_generates_are_in_no_image(tmp_path: Path) -> None:
    first, second = (made(_GENERATES, tmp_path / name) for name in ("one", "two"))
    assert sha256_of(first) == sha256_of(second)
    tar = subprocess.run(unsquash_argv(first), capture_output=True, check=True).stdout
    listing = subprocess.run(["tar", "-t"], input=tar, capture_output=True, check=True).stdout
    names = set(listing.decode().split())
    assert {"./etc/app.name", "./etc/app.conf", "./etc/passwd"} <= names
    secret = {
        "etc/app.key",
        "var/lib/app/.cookie",
        "etc/ssh/ssh_host_key",
        "etc/ssh/ssh_host_key.pub",
    }
    assert not {f"./{name}" for name in secret} & names


@pytest.mark.full
def test_package_whose_script_fails_is_named_with_what_it_wrote(tmp_path: Path) -> None:
    with pytest.raises(FairleadError) as caught:
        made(_FAILS, tmp_path)
    (finding,) = caught.value.findings
    assert finding.check == "package-script" and "`evil`" in finding.what
    assert finding.why.splitlines()[1:] == [
        "looking for the parameters",
        "fatal: no such parameter",
    ]
    assert "post-installation script" in finding.why and "75" in finding.why
    assert finding.remedy.endswith("`fairlead recipe lock mpi-base`")
