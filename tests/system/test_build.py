"""Images built for real: run, the same everywhere, interrupted, without room, and by anybody."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.system import hosts

from fairlead.base.errors import FairleadError
from fairlead.image import contents, mount
from fairlead.image.open import open_image
from fairlead.image.sif import read_sif
from fairlead_build.build import BuildResult, build
from fairlead_build.cache.store import Cache
from fairlead_build.formats.images import ImageEntry
from fairlead_build.recipe.load import load_recipe
from fairlead_build.tools import tool_tree

FAIRLEAD = [sys.executable, "-m", "fairlead"]
DEBIAN_MPICH = Path(__file__).parents[1] / "recipes" / "debian-mpich"
# Kept between runs, apart from the user's own images.
TEST_CACHE = Cache(hosts.KEPT / "fairlead")


@pytest.fixture(scope="session")
def mpi_base(tmp_path_factory: pytest.TempPathFactory) -> BuildResult:
    """The image of the recipe mpi-base, in the normal cache, and linked to where it stays."""
    return build("mpi-base", output=tmp_path_factory.mktemp("images"))


@pytest.fixture(scope="session")
def debian_mpich(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a recipe whose [files] is a C program, compiled here."""
    folder = tmp_path_factory.mktemp("recipes") / "debian-mpich"
    shutil.copytree(DEBIAN_MPICH, folder)
    shutil.copy(hosts.compiled("allreduce"), folder / "allreduce")
    return folder


@pytest.fixture(scope="session")
def other_cache(mpi_base: BuildResult, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache of its own that has the downloads, and nothing that was made of them."""
    root = tmp_path_factory.mktemp("cache")
    copy_downloads("mpi-base", root / "fairlead")
    return root


def copy_downloads(recipe: str | Path, target: Path, source: Cache | None = None) -> None:
    lock = tomllib.loads(load_recipe(recipe).lock_path.read_text())
    (target / "blobs" / "sha256").mkdir(parents=True, exist_ok=True)
    tools = [deb.sha256 for deb in tool_tree.debs()]
    packages = [p for kind in ("deb", "build_deb", "wheel") for p in lock.get(kind, ())]
    for sha256 in (*(p["sha256"] for p in packages), *tools):
        blob = (source or Cache.default()).blob(sha256)
        if blob.is_file():
            shutil.copy(blob, target / "blobs" / "sha256")


def start(*words: str | Path, env: Mapping[str, str], **more: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*FAIRLEAD, *map(str, words)],
        env={**os.environ, **env},
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **more,
    )


def finish(process: subprocess.Popen[str]) -> tuple[dict[str, Any], str]:
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, out + err
    return json.loads(out), err


def inside(image: Path, *command: str, stdin: str = "") -> str:
    argv = [hosts.apptainer(), "exec", "--userns", "--cleanenv", image, *command]
    done = subprocess.run(argv, input=stdin, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# --- the image ---------------------------------------------------------------------------------


def test_image_environment_comes_from_the_recipe(mpi_base: BuildResult) -> None:
    said = inside(
        mpi_base.outputs[0], "sh", "-c", "echo $PATH; echo $PYTHONNOUSERSITE; which fairlead"
    )
    path, nousersite, program = said.split()
    assert path.startswith("/opt/python/bin:/opt/mpich/bin:/usr/")
    assert (nousersite, program) == ("1", "/opt/python/bin/fairlead")


def test_image_reveals_nothing_of_the_machine_that_built_it(mpi_base: BuildResult) -> None:
    script = "cat /etc/hostname /etc/machine-id; cat /.fairlead/image.json"
    said = inside(mpi_base.outputs[0], "sh", "-c", script)
    assert said.startswith("{")
    for fact in (os.uname().nodename, str(Path.home()), str(Path.cwd()), "nameserver "):
        assert fact not in said or fact == "/"


def test_image_python_files_are_compiled_and_never_checked(mpi_base: BuildResult) -> None:
    script = """
import importlib.util, pathlib, sys
bad = []
for root in ("/opt/python/lib/python3.11/site-packages/fairlead", "/usr/lib/python3.11/json"):
    for source in pathlib.Path(root).rglob("*.py"):
        compiled = pathlib.Path(importlib.util.cache_from_source(str(source)))
        if not compiled.is_file() or compiled.read_bytes()[4:8] != b"\\x01\\0\\0\\0":
            bad.append(str(source))
print(bad)
"""
    assert inside(mpi_base.outputs[0], "python3", "-c", script).strip() == "[]"


def test_image_mpi_lies_outside_every_python_prefix(mpi_base: BuildResult) -> None:
    document = read_sif(mpi_base.outputs[0]).document("image.json")
    assert document is not None
    (mpi,) = document["facts"]["mpis"]
    assert (mpi["vendor"], mpi["version"], mpi["python_prefix"]) == ("MPICH", "3.4.3", "")
    assert mpi["elf"]["path"] == "/opt/mpich/lib/libmpi.so.12"
    assert document["packages"]["wheel"]["mpi4py"].startswith("4.1.")


def test_sif_of_ours_is_understood_by_apptainer(mpi_base: BuildResult) -> None:
    argv = [hosts.apptainer(), "sif", "list", mpi_base.outputs[0]]
    said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout
    assert "FS (Squashfs/*System/amd64)" in said and "JSON.Generic" in said


@pytest.mark.full
def test_image_of_debians_mpich_has_no_libmpi(debian_mpich: Path) -> None:
    result = build(debian_mpich, cache=TEST_CACHE)
    document = read_sif(result.outputs[0]).document("image.json")
    assert document is not None
    (mpi,) = document["facts"]["mpis"]
    assert (mpi["version"], mpi["elf"]["soname"]) == ("4.0.2", "libmpich.so.12")
    assert not any(name.startswith("libmpi.so") for name in mpi["names"])
    consumers = {elf["path"]: elf["needed"] for elf in document["facts"]["consumers"]}
    assert "libmpi.so.12" in consumers["/opt/app/allreduce"]
    assert inside(result.outputs[0], "stat", "-c", "%a %u", "/opt/app/allreduce") == "755 0\n"


# --- the cache ---------------------------------------------------------------------------------


def test_build_unchanged_makes_nothing(mpi_base: BuildResult) -> None:
    again = build("mpi-base")
    assert again.cached and again.entry == mpi_base.entry
    assert all(stage.cached for stage in build("mpi-base", dry_run=True).stages)


def test_build_formats_hold_the_same_squashfs(mpi_base: BuildResult, tmp_path: Path) -> None:
    result = build("mpi-base", formats=("sif", "squashfs"), output=tmp_path)
    sif, squashfs = result.outputs
    assert (sif.name, squashfs.name) == ("mpi-base.sif", "mpi-base.squashfs")
    digest = hashlib.sha256(squashfs.read_bytes()).hexdigest()
    assert result.entry is not None and digest == result.entry.squashfs_sha256
    assert sorted(p.name for p in tmp_path.iterdir()) == ["mpi-base.sif", "mpi-base.squashfs"]


def test_build_unknown_format_lists_the_known(mpi_base: BuildResult) -> None:
    with pytest.raises(FairleadError) as caught:
        build("mpi-base", formats=("tar",))
    assert "Known: oci, sandbox, shifter, sif, squashfs" in caught.value.findings[0].why


@pytest.mark.full
def test_build_killed_goes_on_and_gives_the_same_bytes_elsewhere(
    mpi_base: BuildResult, other_cache: Path, tmp_path: Path
) -> None:
    """kill -9 while unpacking; then again, with another TMPDIR, umask, time zone and locale."""
    scratch = tmp_path / "it's a TMPDIR"
    scratch.mkdir()
    scratch.chmod(0o755)
    env = {
        "XDG_CACHE_HOME": str(other_cache),
        "TMPDIR": str(scratch),
        "TZ": "Asia/Tokyo",
        "LC_ALL": "POSIX",
        "LANG": "tr_TR.UTF-8",
    }
    victim = start("build", "mpi-base", env=env, umask=0o077)
    assert victim.stderr is not None
    assert any("unpack the tools" in line for line in victim.stderr)
    wait_for(lambda: list(scratch.glob("fairlead-*/tree/mmdebstrap.*/usr")))
    victim.kill()
    victim.wait()
    kept = other_cache / "fairlead"
    assert not list((kept / "trees").iterdir())
    assert not [p for p in (kept / "images").rglob("*") if p.is_file()]
    wait_for(lambda: not running(str(scratch)))

    shown, _ = finish(start("build", "mpi-base", "--json", env=env, umask=0o077))
    assert mpi_base.entry is not None
    assert shown["image"]["wheel_sha256"] == mpi_base.entry.wheel_sha256, "the checkout was edited"
    assert shown["image"]["squashfs_sha256"] == mpi_base.entry.squashfs_sha256
    assert shown["image"]["sif_sha256"] == mpi_base.entry.sif_sha256
    assert not list(scratch.iterdir()) and not list((kept / "work").iterdir())

    # Two at once: the later one waits, and takes what the first one made.
    (kept / "images" / "by-name" / "mpi-base.json").unlink()
    first, second = (start("build", "mpi-base", "--json", env=env) for _ in range(2))
    (one, said_one), (two, said_two) = finish(first), finish(second)
    assert one["image"] == two["image"]
    assert "which is building `mpi-base` too" in said_one + said_two


def wait_for(condition: Any, limit_s: float = 60) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


def running(text: str) -> list[str]:
    """Command lines of processes that name ``text``."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:
            continue
        if text in line:
            found.append(line)
    return found


@pytest.mark.full
def test_build_rotten_download_is_noticed_and_removed(
    mpi_base: BuildResult, tmp_path: Path
) -> None:
    copy_downloads("mpi-base", tmp_path / "fairlead")
    victim = max((tmp_path / "fairlead" / "blobs" / "sha256").iterdir())
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    victim.write_bytes(data)
    with pytest.raises(FairleadError, match="a file in the cache has changed"):
        build("mpi-base", cache=Cache(tmp_path / "fairlead"))
    assert not victim.exists()


def test_build_vanished_package_names_the_lock_command(tmp_path: Path) -> None:
    (tmp_path / "mirror").mkdir()
    env = {"XDG_CACHE_HOME": str(tmp_path), "FAIRLEAD_INDEX_DEBIAN": f"file:{tmp_path}/mirror"}
    process = start("build", "mpi-base", "--json", env=env)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 1
    (finding,) = json.loads(out)["findings"]
    assert finding["check"] == "deb-vanished"
    assert finding["remedy"] == "fairlead recipe lock mpi-base"


# --- no room -----------------------------------------------------------------------------------


def on_small_disk(folder: Path, megabytes: int, script: str) -> subprocess.CompletedProcess[str]:
    """Runs a shell script where ``folder`` is a file system of its own, of so many MB."""
    if os.getuid() != 0:
        pytest.skip("only root can mount a small file system that mmdebstrap's user ids may use")
    mount = f"mount -t tmpfs -o size={megabytes}m none '{folder}' || exit 77\n"
    argv = ["unshare", "--mount", "sh", "-c", mount + script]
    env = {**os.environ, "XDG_CACHE_HOME": str(folder), "PY": sys.executable}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=200)
    assert done.returncode != 77, done.stderr
    return done


def test_build_without_room_says_so_before_it_begins(tmp_path: Path) -> None:
    done = on_small_disk(tmp_path, 60, '"$PY" -m fairlead build mpi-base --json')
    assert done.returncode == 1, done.stderr
    (finding,) = json.loads(done.stdout)["findings"]
    assert finding["check"] == "no-space" and finding["where"].startswith(str(tmp_path))
    assert "MB are needed" in finding["why"] and "XDG_CACHE_HOME" in finding["remedy"]


@pytest.mark.full
def test_build_disk_filled_meanwhile_is_called_by_its_name(
    debian_mpich: Path, tmp_path: Path
) -> None:
    build(debian_mpich, cache=TEST_CACHE)
    disk = tmp_path / "disk"
    disk.mkdir()
    copy_downloads(debian_mpich, tmp_path / "fairlead", TEST_CACHE)
    script = f"""
cp -r '{tmp_path}/fairlead' '{disk}/'
mkfifo '{tmp_path}/said'
"$PY" -m fairlead build '{debian_mpich}' --json 2> '{tmp_path}/said' &
{{ read line; dd if=/dev/zero of='{disk}/ballast' bs=1M 2>/dev/null; cat >&2; }} < '{tmp_path}/said'
wait $!
"""
    done = on_small_disk(disk, 260, script)
    assert done.returncode == 1 and done.stdout, done.stderr
    (finding,) = json.loads(done.stdout)["findings"]
    assert finding["check"] == "no-space", finding
    assert "XDG_CACHE_HOME" in finding["remedy"]


# --- bad input ---------------------------------------------------------------------------------


def test_recipe_check_reports_three_mistakes_at_once(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text(
        '[recipe]\nname = "bad"\n[base]\nsuite = "bookworm"\n[mpi]\nfamily = "mpch"\nsource = "wheel"\n'
        'verson = "3.4.3"\n[python]\nversion = 3.11\n'
    )
    process = start("recipe", "check", tmp_path, "--json", env={})
    out, err = process.communicate(timeout=60)
    assert process.returncode == 2, err
    found = json.loads(out)["findings"]
    lines = {f["where"].rsplit(":", 1)[1] for f in found}
    assert {"6", "8", "10"} <= lines and "Traceback" not in err
    assert all(f["remedy"].endswith(f"`fairlead recipe check {tmp_path}`") for f in found)


def test_build_lock_that_does_not_match_names_the_difference(tmp_path: Path) -> None:
    shutil.copytree(load_recipe("mpi-base").folder, tmp_path / "mine")
    recipe = tmp_path / "mine" / "recipe.toml"
    recipe.write_text(recipe.read_text().replace('"numpy>=2"', '"numpy>=2", "scipy"'))
    process = start("build", tmp_path / "mine", "--json", env={})
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 2
    (finding,) = json.loads(out)["findings"]
    assert "wants pip scipy" in finding["why"]
    assert finding["remedy"] == f"fairlead recipe lock {tmp_path / 'mine'}"


def test_sif_cut_short_names_both_sizes(mpi_base: BuildResult, tmp_path: Path) -> None:
    whole = mpi_base.outputs[0]
    cut = tmp_path / "cut.sif"
    with whole.open("rb") as source:
        cut.write_bytes(source.read(1_000_000))
    with pytest.raises(FairleadError) as caught:
        read_sif(cut)
    assert (
        f"1000000 bytes; its own table of contents needs {whole.stat().st_size}"
        in caught.value.findings[0].why
    )


# --- an ordinary user --------------------------------------------------------------------------


@pytest.fixture
def user() -> Iterator[tuple[str, Path]]:
    with hosts.account("build") as made:
        yield made


@pytest.mark.full
def test_build_by_an_ordinary_user_gives_the_same_bytes(
    mpi_base: BuildResult, user: tuple[str, Path]
) -> None:
    name, home = user
    python = readable_python()
    cache = home / ".cache" / "fairlead"
    copy_downloads("mpi-base", cache)
    subprocess.run(["chown", "-R", f"{name}:", home], check=True)
    argv = [python, "-m", "fairlead", "build", "mpi-base", "--json"]
    env = {
        "HOME": str(home),
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    done = subprocess.run(
        argv,
        env=env,
        cwd="/",
        capture_output=True,
        text=True,
        timeout=300,
        user=name,
        group=name,
        extra_groups=[],
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert mpi_base.entry is not None
    image = json.loads(done.stdout)["image"]
    assert Path(image["path"]).is_relative_to(home)
    assert image["squashfs_sha256"] == mpi_base.entry.squashfs_sha256
    assert not list((cache / "work").iterdir())


def readable_python() -> str:
    """A Python of our own version that every user may execute, to whom our packages are readable."""
    code = "import pydantic_core, fairlead_build"
    env = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTHONDONTWRITEBYTECODE": "1"}
    for candidate in (sys.executable, "/usr/bin/python3"):
        try:
            done = subprocess.run(
                [candidate, "-c", code],
                env=env,
                cwd="/",
                capture_output=True,
                user=65534,
                group=65534,
                extra_groups=[],
            )
        except PermissionError:
            continue
        if done.returncode == 0:
            return candidate
    pytest.skip("neither this Python nor Debian's can be used by other users with these packages")


@pytest.mark.full
def test_build_interrupted_ends_its_children(other_cache: Path, tmp_path: Path) -> None:
    """Ctrl-C while unpacking: the exit code says so, and nothing is left running or lying about."""
    env = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "TMPDIR": str(tmp_path)}
    tmp_path.chmod(0o755)
    shutil.copytree(other_cache / "fairlead" / "blobs", tmp_path / "cache" / "fairlead" / "blobs")
    process = start("build", "mpi-base", env=env)
    wait_for(lambda: list(tmp_path.glob("fairlead-*/tree/mmdebstrap.*")))
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "interrupted; run the same command again" in err
    assert not list(tmp_path.glob("fairlead-*")) and not running(f"{tmp_path}/fairlead-")


def test_built_image_is_not_looked_into_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its build has: also a copy elsewhere is known by its digest."""
    monkeypatch.setattr("fairlead.image.contents.look", None)
    copy = tmp_path / "copy.sif"
    copy.symlink_to(hosts.image("mpi-base"))
    found = open_image(str(copy))
    assert found.looked and "/opt/python/bin/fairlead" in found.facts.programs


def _same_as_a_look(cache: Cache, entry: ImageEntry, folder: Path) -> None:
    """What is kept of an image is what a look into it finds."""
    (kept,) = (cache.root / "facts").glob(f"contents-*-{entry.squashfs_sha256}.json")
    image = Path(entry.path)
    contents.contents_of(image, read_sif(image).squashfs.offset, entry.squashfs_sha256, folder)
    assert json.loads(kept.read_text()) == json.loads((folder / kept.name).read_text())


def test_what_is_known_of_an_image_since_its_build_is_what_a_look_finds(
    mpi_base: BuildResult, tmp_path: Path
) -> None:
    assert mpi_base.entry is not None
    _same_as_a_look(Cache.default(), mpi_base.entry, tmp_path)


@pytest.mark.full
@pytest.mark.parametrize(("scratch", "looks"), [("scratch", 0), ("over:lay,fs", 1)])
def test_what_a_build_knows_of_its_image_is_what_a_look_into_it_finds(
    debian_mpich: Path, scratch: str, looks: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tree is looked into with fairlead laid over it while it is packed, where the kernel can show that."""
    recipe = tmp_path / "debian-mpich"
    shutil.copytree(debian_mpich, recipe)
    with (recipe / "allreduce").open("ab") as program:
        program.write(os.urandom(16))  # a tree that no build has made
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("TMPDIR", str(tmp_path / scratch))
    (tmp_path / scratch).mkdir()
    tmp_path.chmod(0o755)
    looked = []
    monkeypatch.setattr(contents, "look", lambda *words: looked.append(words) or mount.look(*words))
    cache = Cache(tmp_path / "cache" / "fairlead")
    copy_downloads(recipe, cache.root, TEST_CACHE)
    entry = build(recipe, cache=cache).entry
    assert entry is not None and len(looked) == looks
    _same_as_a_look(cache, entry, tmp_path)
    assert len(looked) == looks + 1
