"""What dpkg says while the Debian part is made: which package failed, and why."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from fairlead.base.progress import Silent
from fairlead_build.tree.debian import INSIDE, Dpkg

# As dpkg of bookworm wrote it; `E:` is apt's.
_SCRIPT = """\
Setting up ssl-cert (1.1.2) ...
made a certificate
Setting up postfix (3.7.11-0+deb12u1) ...
Running newaliases
newaliases: fatal: parameter myhostname: bad parameter value: .UNKNOWN
dpkg: error processing package postfix (--configure):
 installed postfix package post-installation script subprocess returned error exit status 75
Setting up ca-certificates (20230311) ...
Updating certificates in /etc/ssl/certs...
Processing triggers for libc-bin (2.36-9) ...
Errors were encountered while processing:
 postfix
E: Sub-process env returned an error code (1)
"""
_ARCHIVE = """\
Unpacking libfoo1:amd64 (1:2.0~rc1-1+b1) ...
dpkg: error processing archive /build/repo/libfoo1_1%3a2.0~rc1-1+b1_amd64.deb (--unpack):
 trying to overwrite '/usr/lib/libfoo.so.1', which is also in package libbar1 1.0-1
Selecting previously unselected package zlib1g:amd64.
"""
_WAITING = """\
Setting up libfoo-dev:amd64 (1.0) ...
dpkg: error processing package libfoo-dev:amd64 (--configure):
 dependency problems - leaving unconfigured
"""


def heard(text: str) -> Dpkg:
    dpkg = Dpkg(Silent(), Path("/"))
    for line in text.splitlines():
        dpkg.feed(line)
    return dpkg


@pytest.mark.parametrize("before", ["", _WAITING])
def test_package_whose_script_fails_is_named_with_its_own_words(before: str) -> None:
    assert heard(before + _SCRIPT).refused == (
        "postfix",
        "installed postfix package post-installation script subprocess returned error exit status 75:\n"
        "Running newaliases\n"
        "newaliases: fatal: parameter myhostname: bad parameter value: .UNKNOWN",
    )


def test_package_that_cannot_be_unpacked_is_named_without_its_version() -> None:
    package, why = heard(_ARCHIVE).refused or ("", "")
    assert package == "libfoo1"
    assert (
        why == "trying to overwrite '/usr/lib/libfoo.so.1', which is also in package libbar1 1.0-1"
    )


def test_packages_that_are_installed_refuse_nothing() -> None:
    assert heard("Setting up postfix (3.7) ...\nno error\n").refused is None
    assert heard(_WAITING).refused is None


def test_secrets_that_packages_generated_are_left_out_and_nothing_else(tmp_path: Path) -> None:
    shipped = {"etc/sudoers": 0o440, "var/lib/app/shipped.key": 0o600, "etc/app.conf": 0o644}
    state = {
        "etc/shadow": 0o640, "etc/gshadow": 0o640, "etc/security/opasswd": 0o600,
        "var/cache/debconf/passwords.dat": 0o600, "var/lib/dpkg/triggers/Lock": 0o600,
        "var/lib/dpkg/info/app.list": 0o644, "var/lib/ucf/cache/:etc:app": 0o640,
    }  # fmt: skip
    public = {"etc/passwd": 0o644, "etc/ssl/certs/ca.pem": 0o644, "usr/bin/private": 0o750}
    secret = {
        "etc/ssh/ssh_host_ed25519_key": 0o600, "etc/ssh/ssh_host_ed25519_key.pub": 0o644,
        "etc/munge/munge.key": 0o400, "var/lib/app/.cookie": 0o400, "root/a key": 0o600,
        "etc/ssl/private/ssl-cert-snakeoil.key": 0o640, "etc/ssl/certs/ssl-cert-snakeoil.pem": 0o644,
    }  # fmt: skip
    for name, mode in {**shipped, **state, **public, **secret}.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        path.chmod(mode)
    (tmp_path / "etc/ssl/certs/0a1b2c3d.0").symlink_to("ssl-cert-snakeoil.pem")
    listed = "".join(f"/{name}\n" for name in ("etc", *shipped))
    (tmp_path / "var/lib/dpkg/info/app.list").write_text(listed)
    subprocess.run(["sh", INSIDE / "secrets.sh", tmp_path], check=True)
    files = (p for p in tmp_path.rglob("*") if p.is_symlink() or p.is_file())
    left = {str(p.relative_to(tmp_path)) for p in files}
    assert left == {*shipped, *state, *public}


def test_tree_without_secrets_stays_as_it_is(tmp_path: Path) -> None:
    lists = tmp_path / "var/lib/dpkg/info"
    lists.mkdir(parents=True)
    (lists / "app.list").write_text("/.\n")
    subprocess.run(["sh", INSIDE / "secrets.sh", tmp_path], check=True)
    assert (lists / "app.list").is_file()
