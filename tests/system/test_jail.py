"""What a build runs is attacked from: by sources, packages, and programs of a tree; as root and as users.

Each attack tries what ``programs/jail_attack.sh`` knows and reports what works; the machine has something that it
must not get at: a file of 0600, a process, a key, sockets.
"""

from __future__ import annotations

import ctypes
import io
import json
import os
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.system import hosts
from tests.system.test_build import readable_python, running, wait_for

from fairlead.base.progress import Silent
from fairlead_build.base.digest import sha256_of
from fairlead_build.build import build
from fairlead_build.cache.store import Cache
from fairlead_build.recipe.load import load_recipe
from fairlead_build.recipe.lock import load_lock
from fairlead_build.squashfs.squash import unsquash_argv
from fairlead_build.tools import tool_tree
from fairlead_build.tree.debian import debian_key, debian_tree
from fairlead_build.tree.job import TreeJob
from fairlead_build.tree.wheel import runtime_requirements

PROGRAMS = Path(__file__).parent / "programs"
WORD = f"fairlead-canary-{os.getpid()}"
# Who attacks; a user without a range of ids has one id in a jail, too, its own.
ACCOUNTS = ("root", "user", "user without a range")
# Sources are attacked from by everybody in CI; the rest differs only in what the jail shows.
BY_ROOT = ("root", *(pytest.param(account, marks=pytest.mark.full) for account in ACCOUNTS[1:]))
SETTINGS = ("kernel/core_pattern", "kernel/panic", "vm/overcommit_memory", "fs/file-max")


@dataclass(frozen=True)
class Machine:
    """What an attack is run over and what it must not get at.

    Attributes:
        account: the name of who runs it; root's is empty.
        folder: closed to others; with a file ``secret`` of 0600.
        owner: which id of the supervisor root of a jail has to be.
    """

    account: str
    folder: Path
    owner: int
    tar: Path
    port: int

    @property
    def env(self) -> dict[str, str]:
        return {
            "WORD": WORD, "SECRET": str(self.folder / "secret"), "FOLDER": str(self.folder),
            "DEVICE": str(self.folder.stat().st_dev), "PORT": str(self.port), "OWNER": str(self.owner),
        }  # fmt: skip

    def attack(self, where: str, enter: tuple[str, ...] = (), **more: str) -> dict[str, Any]:
        """What the driver answers; by then everything that the attack started has gone."""
        script = (PROGRAMS / "jail_attack.sh").read_text()
        work = self.folder / "work"
        asked = {"work": str(work), "tar": str(self.tar), "env": self.env, "attack": script, **more}
        env = {
            **os.environ, "HOME": str(self.folder), "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "WORD": WORD,
        }  # fmt: skip
        python = readable_python() if self.account else sys.executable
        identity: dict[str, Any] = (
            {"user": self.account, "group": self.account, "extra_groups": []}
            if self.account
            else {}
        )
        done = subprocess.run(
            [*enter, python, PROGRAMS / "jail_driver.py", where, json.dumps(asked)],
            env=env, cwd="/", capture_output=True, text=True, timeout=90, **identity,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        wait_for(lambda: not running(f"{WORD}-late"))
        assert not list(work.iterdir()), "the scratch is still there"
        return dict(json.loads(done.stdout))


@pytest.fixture(scope="module")
def tar() -> Iterator[Path]:
    """The Debian part of an image, with Python and perl, as a tar that everybody may read."""
    build("mpi-base")
    lock = load_lock(load_recipe("mpi-base"), runtime_requirements())[0]
    cache = Cache.default()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        made = Path(folder, "tree.tar")
        argv = unsquash_argv(cache.debian(debian_key(lock.deb, lock)), cache)
        with (
            subprocess.Popen(argv, stdout=subprocess.PIPE) as source,
            tarfile.open(fileobj=source.stdout, mode="r|") as whole,
            tarfile.open(made, "w", format=tarfile.GNU_FORMAT) as out,
        ):
            for info in whole:
                if "usr/share/" not in info.name and "/gconv/" not in info.name:
                    out.addfile(info, whole.extractfile(info) if info.isreg() else None)
        made.chmod(0o644)
        yield made


@contextmanager
def machine(account: str, tar: Path, tmp_path: Path) -> Iterator[Machine]:
    """Everything that an attack of ``account`` is after; unchanged by the end."""
    with ExitStack() as stack:
        name, home = "", tmp_path
        if account != "root":
            name, home = stack.enter_context(hosts.account("jail"))
            if account == "user without a range":
                for kind in ("uid", "gid"):
                    rows = Path(f"/etc/sub{kind}").read_text().splitlines()
                    first = next(
                        int(row.split(":")[1]) for row in rows if row.startswith(f"{name}:")
                    )
                    change = f"--del-sub{kind}s"
                    subprocess.run(
                        ["usermod", change, f"{first}-{first + 65535}", name], check=True
                    )
        folder = home / "closed"
        for inner in ("work", "log", "tmp", "cache/ldconfig"):
            (folder / inner).mkdir(parents=True)
        (folder / "secret").write_text(WORD)
        kept = [folder / "secret", *(folder / n / "keep" for n in ("log", "tmp", "cache/ldconfig"))]
        for path in kept[1:]:
            path.write_text(WORD)
        for path in (folder, *folder.rglob("*")):
            path.chmod(0o700 if path.is_dir() else 0o600)
            if name:
                os.chown(path, *(int(subprocess.check_output(["id", f"-{k}", name])) for k in "ug"))
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        named = stack.enter_context(socket.socket(socket.AF_UNIX))
        named.bind(f"\0{WORD}")
        named.listen()
        libc = ctypes.CDLL(None, use_errno=True)
        add_key = {"x86_64": 248, "aarch64": 217}[os.uname().machine]
        libc.syscall(add_key, b"user", WORD.encode(), WORD.encode(), len(WORD), -3)
        canary = stack.enter_context(
            subprocess.Popen(["sleep", "3600"], env={**os.environ, "CANARY": WORD})
        )
        stack.callback(canary.kill)
        before = [Path("/proc/sys", s).read_text() for s in SETTINGS]
        listed = sorted(folder.rglob("*"))
        owner = 0 if account == "user without a range" else 1
        yield Machine(name, folder, owner, tar, listener.getsockname()[1])
        assert [Path("/proc/sys", s).read_text() for s in SETTINGS] == before
        assert all(path.read_text() == WORD for path in kept)
        assert sorted(folder.rglob("*")) == listed
        assert canary.poll() is None


def foiled(answer: dict[str, Any], who: int = 0) -> str:
    """What an attack printed that ran to its end and got at nothing."""
    said = str(answer.get("said"))
    assert "said" in answer and f"attacked as {who}" in said, answer
    assert "BROKEN" not in said, [line for line in said.splitlines() if "BROKEN" in line]
    return said


@pytest.mark.parametrize("account", ACCOUNTS)
def test_attack_by_a_source_gets_at_nothing_of_the_machine(
    account: str, tar: Path, tmp_path: Path
) -> None:
    with machine(account, tar, tmp_path) as target:
        answer = target.attack("source")
        foiled(answer)
    with tarfile.open(fileobj=io.BytesIO(bytes.fromhex(answer["made"]))) as archive:
        members = {m.name: m for m in archive}
        assert sorted(members) == ["./folder", "./link", "./made"]
        # The links themselves: nothing that they name was looked at.
        assert all(members[name].issym() for name in ("./folder", "./link"))


@pytest.mark.parametrize("account", BY_ROOT)
def test_attack_by_a_program_of_the_tree_gets_at_nothing_of_the_machine(
    account: str, tar: Path, tmp_path: Path
) -> None:
    """It also puts links to the machine in place of folders that fairlead empties and reads afterwards."""
    with machine(account, tar, tmp_path) as target:
        answer = target.attack("tree")
        foiled(answer)
    changes = bytes.fromhex(answer["made"]).partition(b"\n")[2] + bytes(1024)
    with tarfile.open(fileobj=io.BytesIO(changes)) as archive:
        members = {m.name: m for m in archive}
    assert members["./var"].issym() and members["./etc"].issym()
    assert not [name for name in members if name.endswith(("/keep", "/secret"))]


@pytest.mark.parametrize("account", ACCOUNTS)
def test_attack_by_a_package_gets_at_nothing_of_the_machine(
    account: str, tar: Path, tmp_path: Path
) -> None:
    """From where mmdebstrap runs: a script of a package is in its chroot, at best."""
    with machine(account, tar, tmp_path) as target:
        answer = target.attack("packages")
        if account == "user without a range":
            assert answer["finding"]["check"] == "subuid"
            assert answer["finding"]["remedy"] == "fairlead doctor --fix subids"
        else:
            foiled(answer)


@pytest.mark.full
def test_attack_by_a_maintainer_script_gets_at_nothing_of_the_machine(
    tar: Path, tmp_path: Path
) -> None:
    """Of a real package, run by dpkg below mmdebstrap; root builds."""
    loaded = load_recipe("mpi-base")
    lock = load_lock(loaded, runtime_requirements())[0]
    cache = Cache(tmp_path / "cache")
    cache.make()
    for sha256 in {package.sha256 for package in (*lock.deb, *tool_tree.debs())}:
        hosts.same_file(Cache.default().blob(sha256), cache.blob(sha256))
    with machine("root", tar, tmp_path) as target:
        exports = "".join(f"export {n}={v!r}\n" for n, v in {**target.env, "PACKAGE": "1"}.items())
        attack = (PROGRAMS / "jail_attack.sh").read_text()
        evil = package_with(f"#!/bin/sh\n{exports}{{\n{attack}}} > /said 2>&1\n", tmp_path, cache)
        deb = lock.deb[0].model_copy(
            update={
                "name": "evil",
                "version": "1",
                "architecture": "all",
                "sha256": evil,
                "size": cache.blob(evil).stat().st_size,
            }
        )
        made = debian_tree((*lock.deb, deb), TreeJob(loaded, lock, cache, Silent()))
    argv = [*tool_tree.command("rdsquashfs"), "-c", "said", made]
    foiled({"said": subprocess.run(argv, capture_output=True, text=True, check=True).stdout})


def package_with(postinst: str, folder: Path, cache: Cache) -> str:
    """Makes a package with a script, and puts it into the cache; its sha256."""
    control = folder / "evil" / "DEBIAN"
    control.mkdir(parents=True)
    fields = {"Package": "evil", "Version": "1", "Architecture": "all"}
    fields |= {"Maintainer": "Nobody <nobody@example.org>", "Description": "hostile"}
    (control / "control").write_text("".join(f"{k}: {v}\n" for k, v in fields.items()))
    (control / "postinst").write_text(postinst)
    (control / "postinst").chmod(0o755)
    made = folder / "evil.deb"
    subprocess.run(["dpkg-deb", "--build", control.parent, made], check=True, capture_output=True)
    digest = sha256_of(made)
    shutil.copyfile(made, cache.blob(digest))
    return digest


@pytest.mark.parametrize("account", BY_ROOT)
def test_attack_by_an_images_python_gets_at_nothing_of_the_machine(
    account: str, tar: Path, tmp_path: Path
) -> None:
    """The one that compiles fairlead's wheel."""
    with machine(account, tar, tmp_path) as target:
        python = f"""#!/bin/sh
cat > /dev/null
said=$( {{
{"".join(f"export {name}={value!r}" + chr(10) for name, value in target.env.items())}
cd /tmp
{(PROGRAMS / "jail_attack.sh").read_text()}
}} 2>&1 )
exec /usr/bin/python3 -I -c '
import sys, zipfile
with zipfile.ZipFile("/tmp/said.zip", "w") as made: made.writestr("said", sys.argv[1])
sys.stdout.buffer.write(open("/tmp/said.zip", "rb").read())' "$said"
"""
        squashfs = tar.with_name(f"{ACCOUNTS.index(account)}.squashfs")
        squash(tar, {"./opt/evil/bin/python3": python}, squashfs)
        foiled(target.attack("compile", squashfs=str(squashfs)))


def squash(tar: Path, programs: dict[str, str], target: Path) -> None:
    """The tree with these programs in it."""
    copy = target.with_suffix(".tar")
    shutil.copyfile(tar, copy)
    with tarfile.open(copy, "a", format=tarfile.GNU_FORMAT) as out:
        for name, text in programs.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(text.encode()), 0o755
            out.addfile(info, io.BytesIO(text.encode()))
    argv = [*tool_tree.command("tar2sqfs"), "-q", "-c", "zstd", "-X", "level=1", target]
    with copy.open("rb") as source:
        subprocess.run(argv, stdin=source, check=True)
    copy.unlink()
    target.chmod(0o644)


def test_build_where_proc_is_covered_is_refused_with_the_remedy(tar: Path, tmp_path: Path) -> None:
    """As in a container of Docker's: the machine's /proc is not shown to a build in its place."""
    cover = 'mount --bind /etc/hostname /proc/version && exec "$@"'
    with machine("root", tar, tmp_path) as target:
        answer = target.attack("source", ("unshare", "--mount", "sh", "-c", cover, "sh"))
    finding = answer["finding"]
    assert finding["check"] == "sandbox-proc"
    assert "/proc/version" in finding["why"]
    assert "systempaths=unconfined" in finding["remedy"] and "unmask=ALL" in finding["remedy"]


def test_build_where_no_user_namespace_is_left_names_the_limit_and_no_disk() -> None:
    """The kernel says "No space left on device"."""
    forbid = 'echo 0 >/proc/sys/user/max_user_namespaces; exec "$@"'
    argv = [
        "unshare", "--user", "--map-root-user", "sh", "-ec", forbid, "sh",
        sys.executable, "-P", "-m", "fairlead_build.base.jail", "platform",
    ]  # fmt: skip
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    word, _, finding = done.stderr.strip().partition("\t")
    assert word == "fairlead-refused", done.stderr
    refused = json.loads(finding)
    assert refused["check"] == "sandbox-namespaces"
    assert refused["why"].startswith("user.max_user_namespaces")
