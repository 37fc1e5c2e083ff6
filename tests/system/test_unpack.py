"""``--unpack``: Apptainer runs the image from a folder, which is made once, checked at every launch, and listed and removed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.system import hosts
from tests.system.hosts import answer, fairlead

SIZE = "from mpi4py import MPI; print('size', MPI.COMM_WORLD.size)"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A cache of its own."""
    return hosts.new_cache(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copy(hosts.image(), tmp_path_factory.mktemp("image") / "app.sif"))


def folders(home: dict[str, str]) -> list[Path]:
    root = Path(home["XDG_CACHE_HOME"]) / "fairlead/unpacked"
    return [path for path in root.glob("[!.]*") if path.is_dir()]


def run(image: Path, home: dict[str, str], *words: str | Path, code: str = SIZE) -> subprocess.CompletedProcess[str]:  # fmt: skip
    return fairlead("run", "-n", "2", "--json", "--unpack", *words, image, "--", "python3", "-c", code, env=home)  # fmt: skip


def test_image_is_unpacked_once_and_runs_proved_from_the_folder(
    image: Path, home: dict[str, str]
) -> None:
    begun = run(image, home)
    assert begun.returncode == 0, begun.stdout + begun.stderr
    assert answer(begun)["proof"]["holds"] and begun.stderr.count("size 2") == 2
    (root,) = folders(home)
    assert (
        str(root) in answer(begun)["command_line"]
        and str(image) not in answer(begun)["command_line"]
    )
    inode = root.stat().st_ino
    inside = run(image, home, code="import os; print(os.stat('/usr/bin/env').st_ino)")
    assert inside.returncode == 0, inside.stderr
    assert str((root / "usr/bin/env").stat().st_ino) in inside.stderr
    assert root.stat().st_ino == inode and len(folders(home)) == 1


def test_nothing_a_rank_does_changes_the_folder(image: Path, home: dict[str, str]) -> None:
    done = run(image, home, code="open('/usr/lib/os-release', 'a')")
    assert done.returncode != 0 and "OSError" in done.stderr, done.stderr
    assert run(image, home).returncode == 0
    assert not list(folders(home)[0].parent.glob(".*.old"))


def test_folder_that_was_changed_is_made_again(image: Path, home: dict[str, str]) -> None:
    assert run(image, home).returncode == 0
    (root,) = folders(home)
    inode, file = root.stat().st_ino, root / "usr/lib/os-release"
    times, text = file.stat(), file.read_text()
    file.write_text(text.swapcase())
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    done = run(image, home, code="print(open('/usr/lib/os-release').read())")
    assert done.returncode == 0 and text.splitlines()[0] in done.stderr, done.stderr
    assert root.stat().st_ino != inode


def typed(image: Path) -> list[str]:
    """The words of a launch that does nothing."""
    words = ("run", "--unpack", "--mpi", "container", image, "--", "true")
    return [sys.executable, "-m", "fairlead", *map(str, words)]


@pytest.mark.full
def test_two_launches_at_once_unpack_it_once(image: Path, tmp_path: Path) -> None:
    home = hosts.new_cache(tmp_path)
    runs = [subprocess.Popen(typed(image), env={**os.environ, **home}, stderr=subprocess.PIPE, text=True) for _ in "12"]  # fmt: skip
    said = [run.communicate(timeout=300)[1] for run in runs]
    assert [run.returncode for run in runs] == [0, 0], said
    (root,) = folders(home)
    assert not [path for path in root.parent.iterdir() if path.name.endswith((".partial", ".old"))]


def test_killed_launch_leaves_no_folder_and_the_next_makes_it(image: Path, tmp_path: Path) -> None:
    home = hosts.new_cache(tmp_path)
    first = subprocess.Popen(typed(image), env={**os.environ, **home}, stderr=subprocess.DEVNULL)
    unpacked = tmp_path / "fairlead/unpacked"
    while first.poll() is None and not list(unpacked.glob(".*.partial/new/usr")):
        pass
    first.kill()
    first.wait()
    assert folders(home) == []
    assert fairlead(*typed(image)[3:], env=home, limit_s=300).returncode == 0
    assert len(folders(home)) == 1 and not list(unpacked.glob(".*.partial"))


def test_site_profile_switches_it_on(image: Path, home: dict[str, str], tmp_path: Path) -> None:
    base = (hosts.ROOT / "sitecfg/laptop.toml").read_text().replace('"laptop"', '"mine"')
    profile = tmp_path / "mine.toml"
    profile.write_text(base + '\n[images]\nsource = "guess"\nunpack = true\n')
    line = fairlead("run", "--dry-run", "--site", profile, image, "--", "true", env=home)
    assert line.returncode == 0 and "/unpacked/" in line.stdout, line.stdout + line.stderr
    plain = fairlead("run", "--dry-run", image, "--", "true", env=home)
    assert "/unpacked/" not in plain.stdout


def test_list_shows_the_folder_and_remove_and_prune_remove_it(
    image: Path, home: dict[str, str]
) -> None:
    assert run(image, home).returncode == 0
    (root,) = folders(home)
    listed = answer(fairlead("images", "list", "--json", env=home))["unpacked"]
    assert [one["path"] for one in listed] == [str(root)] and listed[0]["image"] == str(image)
    assert listed[0]["bytes"] > image.stat().st_size
    assert "unpacked" in fairlead("images", "list", env=home).stdout
    pruned = fairlead("images", "prune", "--unused", "0", "--json", env=home)
    assert pruned.returncode == 0 and str(root) in answer(pruned)["unpacked"]
    assert folders(home) == []


def test_engine_that_may_open_no_folder_is_refused(
    image: Path, home: dict[str, str], tmp_path: Path
) -> None:
    conf = tmp_path / "apptainer.conf"
    conf.write_text("allow container dir = no\n")
    done = run(image, {**home, "APPTAINER_CONFIG_FILE": str(conf)})
    assert done.returncode == 121 and "allow container dir = no" in done.stdout, done.stdout


def test_signature_covers_the_folder_while_it_runs(home: dict[str, str], tmp_path: Path) -> None:
    keys = {**home, "XDG_CONFIG_HOME": str(tmp_path / "config"), "FAIRLEAD_KEY_PASSPHRASE": "of a test"}  # fmt: skip
    image = Path(shutil.copy(hosts.image(), tmp_path / "signed.sif"))
    made = answer(fairlead("key", "new", "--json", env=keys))
    assert fairlead("key", "trust", made["public"], env=keys).returncode == 0
    assert fairlead("sign", image, env=keys).returncode == 0
    code = (
        f"{SIZE}; import sys; open(sys.argv[1], 'a').write(' ') if MPI.COMM_WORLD.rank == 0 else 0"
    )
    (root, *_) = folders(home) or [None]
    if root is None:
        assert run(image, keys, "--require-signature").returncode == 0
        (root,) = folders(home)
    words = ("run", "-n", "2", "--unpack", "--require-signature", "--bind", root.parent, image, "--", "python3", "-c", code)  # fmt: skip
    done = fairlead(*words, root / "usr/lib/os-release", env=keys)
    assert done.returncode == 1 and "signature-changed" in done.stderr, done.stderr
