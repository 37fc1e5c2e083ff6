"""Recipes over a ``docker://`` base: a real registry, and a real ``podman system service``."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.system import hosts
from tests.system.engines import Service, service
from tests.system.registries import LoopbackRegistry, registry

from fairlead.base.paths import cache_dir

RECIPE = Path(__file__).parents[1] / "recipes" / "docker-base"
# The base, its lock and the image take a minute or two.
pytestmark = pytest.mark.full


@dataclass(frozen=True)
class Locked:
    """The recipe, locked against a base of the loopback registry."""

    folder: Path
    image: str
    lock: dict[str, Any]
    said: dict[str, Any]


@pytest.fixture(scope="module")
def shore() -> Iterator[LoopbackRegistry]:
    with registry() as running:
        yield running


@pytest.fixture(scope="module")
def engine(shore: LoopbackRegistry) -> Iterator[Service]:
    with service(plain_http=shore.host) as running:
        yield running


@pytest.fixture(scope="module")
def base(shore: LoopbackRegistry, engine: Service, tmp_path_factory: Any) -> str:
    """A small Debian, imported by Podman and pushed: what an image of others looks like."""
    folder = tmp_path_factory.mktemp("base")
    tar = folder / "base.tar"
    memory = Path("/dev/shm")
    env = {**os.environ, "TMPDIR": str(memory if os.access(memory, os.W_OK) else folder)}
    subprocess.run(
        ["mmdebstrap", "--mode=unshare", "--variant=apt", "--quiet", "bookworm", str(tar)],
        env=env, check=True, timeout=300, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    name = f"{shore.host}/ml/base:1"
    engine.podman(
        "import", "--change", "ENV=PATH=/opt/site/bin:/usr/bin:/bin", "--change",
        "ENV=SITE_SETTING=basis", tar, name, limit_s=200,
    )  # fmt: skip
    engine.podman("push", "--tls-verify=false", name, limit_s=200)
    return f"docker://{name}"


@pytest.fixture(scope="module")
def locked(base: str, tmp_path_factory: Any) -> Locked:
    folder = tmp_path_factory.mktemp("recipe") / "docker-base"
    shutil.copytree(RECIPE, folder)
    recipe = folder / "recipe.toml"
    recipe.write_text(recipe.read_text().replace("docker://localhost:5000/ml/base:1", base))
    said = done("recipe", "lock", folder)
    return Locked(folder, base, tomllib.loads((folder / "lock.toml").read_text()), said)


@pytest.fixture(scope="module")
def built(locked: Locked, engine: Service) -> dict[str, Any]:
    made: dict[str, Any] = done("build", locked.folder, env=engine.environ, limit_s=400)
    return made


def done(*words: str | Path, env: dict[str, str] | None = None, limit_s: float = 300) -> Any:
    ended = hosts.fairlead(*words, "--json", env=env, limit_s=limit_s)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return json.loads(ended.stdout)


def refusal(*words: str | Path, env: dict[str, str], code: int = 1) -> dict[str, str]:
    ended = hosts.fairlead(*words, "--json", env=env)
    assert ended.returncode == code, ended.stdout + ended.stderr
    assert "Traceback" not in ended.stderr
    (finding,) = json.loads(ended.stdout)["findings"]
    assert isinstance(finding, dict) and finding["remedy"]
    return finding


def sif() -> Path:
    entry = json.loads((cache_dir() / "images/by-name/docker-base.json").read_text())
    return Path(entry["path"])


def test_lock_of_a_base_image_pins_its_digest_and_only_what_it_lacks(locked: Locked) -> None:
    output = locked.lock["base"]
    assert output["image"] == locked.image and output["digest"].startswith("sha256:")
    assert (output["distribution"], output["suite"], output["glibc"]) == (
        "debian",
        "bookworm",
        "2.36",
    )
    wanted = {deb["name"] for deb in locked.lock["deb"]}
    assert {"hello", "python3"} <= wanted
    assert not wanted & {"libc6", "dpkg", "apt", "perl-base", "libgcc-s1"}, "the base has these"


def test_build_over_a_base_image_runs_with_its_packages_files_and_variables(
    locked: Locked, built: dict[str, Any]
) -> None:
    script = "hello -t; cat /opt/app/note.txt; echo $GREETING, $SITE_SETTING; echo $PATH"
    argv = [hosts.apptainer(), "exec", "--userns", "--cleanenv", sif(), "/bin/sh", "-c", script]
    said = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert said.returncode == 0, said.stderr
    lines = said.stdout.splitlines()
    assert lines[0] == "hello, world" and lines[1] == "Laid over the base."
    assert lines[2] == "ahoy, basis" and "/opt/site/bin" in lines[3]


def test_build_over_a_base_image_runs_mpi4py_from_several_ranks(built: dict[str, Any]) -> None:
    code = "from mpi4py import MPI; print(MPI.COMM_WORLD.allreduce(1), MPI.Get_library_version())"
    ended = hosts.fairlead("run", "-n", "2", "docker-base", "--", "python3", "-c", code)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count("2 MPICH Version") == 2, ended.stdout


def test_build_over_a_base_image_lists_what_the_base_brought(
    locked: Locked, built: dict[str, Any]
) -> None:
    ended = hosts.fairlead("inspect", "--sbom", "docker-base")
    assert ended.returncode == 0, ended.stderr
    listed = {(c["name"], c["version"]) for c in json.loads(ended.stdout)["components"]}
    names = {name for name, _ in listed}
    assert {"libc6", "dpkg", "perl-base"} <= names, "of the base"
    assert {("hello", d["version"]) for d in locked.lock["deb"] if d["name"] == "hello"} <= listed
    assert {"mpi4py", "numpy", "fairlead"} <= names
    ended = hosts.fairlead("inspect", "--json", "docker-base")
    assert locked.lock["base"]["digest"] in ended.stdout


def test_build_over_a_moved_tag_and_with_an_empty_cache_gives_the_same_bits(
    locked: Locked, built: dict[str, Any], engine: Service, tmp_path: Path
) -> None:
    name = locked.image.removeprefix("docker://")
    base = engine.podman("images", "--quiet", name).split()[0]
    moved = f"FROM {base}\nENV SITE_SETTING=moved\n"
    (tmp_path / "Containerfile").write_text(moved)
    engine.podman("build", "--isolation=chroot", "--tag", name, tmp_path)
    engine.podman("push", "--tls-verify=false", name, limit_s=200)

    before = json.loads((cache_dir() / "images/by-name/docker-base.json").read_text())
    (tmp_path / "scratch of another name").mkdir()
    env = {
        **engine.environ,
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "TMPDIR": str(tmp_path / "scratch of another name"),
        "TZ": "Asia/Tokyo",
        "LC_ALL": "C.UTF-8",
    }
    done("build", locked.folder, env=env, limit_s=400)
    entry = tmp_path / "cache/fairlead/images/by-name/docker-base.json"
    after = json.loads(entry.read_text())
    assert after["squashfs_sha256"] == before["squashfs_sha256"]
    assert after["sif_sha256"] == before["sif_sha256"]


def test_build_over_a_base_image_leaves_nothing_in_the_engine(
    built: dict[str, Any], engine: Service
) -> None:
    assert engine.podman("ps", "--all", "--quiet") == ""
    assert "fairlead-build" not in engine.podman("images", "--all")


def test_build_over_a_base_image_without_an_engine_names_what_starts_one(
    locked: Locked, tmp_path: Path
) -> None:
    other = tmp_path / "docker-base"
    shutil.copytree(locked.folder, other)
    (other / "note.txt").write_text("another tree\n")
    env = {"DOCKER_HOST": f"unix://{tmp_path}/none.sock"}
    finding = refusal("build", other, env=env)
    assert finding["check"] == "engine-silent" and "podman system service" in finding["remedy"]


def test_build_over_a_base_image_whose_engine_ends_meanwhile_says_so(
    locked: Locked, shore: LoopbackRegistry, built: dict[str, Any], tmp_path: Path
) -> None:
    other = tmp_path / "docker-base"
    shutil.copytree(locked.folder, other)
    (other / "note.txt").write_text("a third tree\n")
    with service(plain_http=shore.host) as brief:
        argv = [sys.executable, "-m", "fairlead", "build", str(other), "--json"]
        process = subprocess.Popen(
            argv, env={**os.environ, **brief.environ}, text=True, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        assert process.stderr is not None
        for line in process.stderr:
            if "load into" in line and "ok" in line:
                break
        brief.process.kill()
        out, err = process.communicate(timeout=120)
    assert process.returncode == 1, out + err
    (finding,) = json.loads(out)["findings"]
    assert finding["check"] == "engine-broke-off", finding
    assert "start it again" in finding["remedy"] and str(other) in finding["remedy"]
    assert "Traceback" not in err


def test_build_over_a_base_image_that_is_gone_says_so(
    locked: Locked, shore: LoopbackRegistry, engine: Service, tmp_path: Path
) -> None:
    name = f"{shore.host}/ml/short-lived:1"
    (tmp_path / "Containerfile").write_text(
        f"FROM {locked.image.removeprefix('docker://')}\nENV SITE_SETTING=short\n"
    )
    engine.podman("build", "--isolation=chroot", "--tag", name, tmp_path)
    engine.podman("push", "--tls-verify=false", name, limit_s=200)
    other = tmp_path / "docker-base"
    shutil.copytree(RECIPE, other)
    recipe = other / "recipe.toml"
    recipe.write_text(recipe.read_text().replace("localhost:5000/ml/base:1", name))
    done("recipe", "lock", other)
    digest = tomllib.loads((other / "lock.toml").read_text())["base"]["digest"]
    shutil.rmtree(cache_dir() / "bases" / digest.removeprefix("sha256:"))
    shutil.rmtree(shore.storage / "docker/registry/v2/repositories/ml/short-lived")
    finding = refusal("build", other, env=engine.environ)
    assert finding["check"] == "base-gone" and "recipe lock" in finding["remedy"]


def test_build_over_a_base_image_from_its_archive_when_the_registry_has_lost_it(
    locked: Locked, built: dict[str, Any], shore: LoopbackRegistry, engine: Service, tmp_path: Path
) -> None:
    name = f"{shore.host}/ml/archived:1"
    engine.podman("tag", locked.image.removeprefix("docker://"), name)
    engine.podman("push", "--tls-verify=false", name, limit_s=200)
    recipe, archive = tmp_path / "docker-base", tmp_path / "archive"
    shutil.copytree(RECIPE, recipe)
    text = (recipe / "recipe.toml").read_text()
    (recipe / "recipe.toml").write_text(text.replace("localhost:5000/ml/base:1", name))
    done("recipe", "lock", recipe, "--archive", archive)
    base = tomllib.loads((recipe / "lock.toml").read_text())["base"]["digest"].partition(":")[2]
    layout = cache_dir() / "bases" / base / "blobs/sha256"
    kept = {path.name for path in (archive / "sha256").iterdir()}
    assert base in kept and {path.name for path in layout.iterdir()} <= kept

    shutil.rmtree(shore.storage / "docker/registry/v2/repositories/ml/archived")
    env = {**engine.environ, "XDG_CACHE_HOME": str(tmp_path / "cache")}
    assert refusal("build", recipe, env=env)["check"] == "base-gone"
    manifest = archive / "sha256" / base
    sound = manifest.read_bytes()
    manifest.write_bytes(sound.replace(b"sha256", b"sha255", 1))
    finding = refusal("build", recipe, "--archive", archive, env=env)
    assert finding["check"] == "archive-rotten" and str(manifest) in finding["where"]

    manifest.write_bytes(sound)
    done("build", recipe, "--archive", archive, env=env, limit_s=400)
    entry = tmp_path / "cache/fairlead/images/by-name/docker-base.json"
    assert json.loads(entry.read_text())["tree"] != "", "built from the archive alone"


def test_lock_with_another_digest_of_the_base_is_refused(locked: Locked, tmp_path: Path) -> None:
    other = tmp_path / "docker-base"
    shutil.copytree(locked.folder, other)
    text = (other / "lock.toml").read_text()
    digest = locked.lock["base"]["digest"]
    (other / "lock.toml").write_text(text.replace(digest, f"sha256:{'0' * 64}"))
    assert refusal("build", other, env={}, code=2)["check"] == "lock-edited"

    (other / "lock.toml").write_text(text)
    recipe = other / "recipe.toml"
    pinned = f"/ml/base:1@sha256:{'1' * 64}"
    recipe.write_text(recipe.read_text().replace("/ml/base:1", pinned))
    finding = refusal("build", other, env={}, code=2)
    assert finding["check"] == "lock-stale" and pinned in finding["why"]


def test_lock_of_another_base_image_is_stale(locked: Locked, tmp_path: Path) -> None:
    other = tmp_path / "docker-base"
    shutil.copytree(locked.folder, other)
    recipe = other / "recipe.toml"
    recipe.write_text(recipe.read_text().replace("/ml/base:1", "/ml/base:2"))
    finding = refusal("build", other, env={}, code=2)
    assert finding["check"] == "lock-stale" and "/ml/base:2" in finding["why"]
