"""Rendered recipes, built by Podman and by Apptainer: the package set of `fairlead build`."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.system import hosts
from tests.system.sitemirror import Site, site

from fairlead_build.build import build
from fairlead_build.recipe.load import load_recipe
from fairlead_build.render import contents, lock_of, render_recipe

# Everything that is installed, and a message through the image's own MPI.
LOOK = r"""
dpkg-query --show --showformat '${Package} ${Version} ${Status}\n'
dpkg --audit
python3 - <<'END'
import importlib.metadata, json
found = {}
for folder in ("/opt/python", "/opt/mpich"):
    for d in importlib.metadata.distributions(path=[folder + "/lib/python3.11/site-packages"]):
        found[folder + " " + d.name.lower().replace("_", "-")] = d.version
found.pop("/opt/python fairlead", None)  # laid over the tree by `fairlead build`; no part of a lock
print("wheels", json.dumps(found, sort_keys=True))
from mpi4py import MPI
total = MPI.COMM_WORLD.allreduce(41)
print("mpi", MPI.Get_library_version().split()[2], total)
END
for name in PATH PYTHONNOUSERSITE ODD; do eval echo "$name=\$$name"; done
[ ! -x /opt/app/hello ] || /opt/app/hello
echo / $(ls /)
"""
ODD = r"""a "b" 'c' $HOME \ {{ MIRROR }}"""


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    build("mpi-base")  # brings the files that the mirror serves
    lock = lock_of(load_recipe("mpi-base"))
    assert lock is not None
    with site([lock]) as found:
        yield found


def look(engine: str, image: Path) -> list[str]:
    argv = [engine, "exec", "-u", "--no-home", "--cleanenv", str(image), "sh", "-c", LOOK]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, cwd="/", check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def packages(lines: list[str]) -> list[str]:
    return [line for line in lines if line.endswith(" installed") or line.startswith("wheels")]


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """mpi-base with a program and a variable of its own: its packages, and so its lock."""
    folder = tmp_path_factory.mktemp("mine")
    text = f"""extends = "mpi-base"
[recipe]
name = "mine"
[files]
"/opt/app/hello" = "hello"
[env]
ODD = {json.dumps(ODD)}
"""
    (folder / "recipe.toml").write_text(text)
    (folder / "hello").write_text("#!/bin/sh\necho hello\n")
    (folder / "hello").chmod(0o755)
    shutil.copy(load_recipe("mpi-base").lock_path, folder)
    return render_recipe(folder, folder / "rendered").folder


@pytest.fixture(scope="module")
def built() -> list[str]:
    """What the image of `fairlead build` says."""
    return look(hosts.apptainer(), hosts.image("mpi-base"))


@pytest.mark.full
def test_containerfile_built_by_podman_has_the_packages_of_fairlead_build(
    here: Site, built: list[str], rendered: Path
) -> None:
    here.podman_build(rendered, "localhost/mine:1")
    run = ("run", "--rm", "--network=none", "localhost/mine:1", "sh", "-c", LOOK)
    said = here.podman(*run).splitlines()
    assert packages(said) == packages(built) and len(packages(said)) > 80
    assert {"mpi 3.4.3 41", f"ODD={ODD}", "hello"} <= set(said)
    assert [w for w in said if w.startswith("PATH=")] == [w for w in built if w[:5] == "PATH="]
    (config,) = json.loads(here.podman("inspect", "localhost/mine:1"))
    assert config["Labels"]["org.fairlead.recipe"] == "mine"
    assert len(config["RootFS"]["Layers"]) == 1
    assert " files " not in said[-1]


@pytest.mark.full
def test_definition_built_by_apptainer_has_the_packages_of_fairlead_build(
    here: Site, built: list[str], rendered: Path, tmp_path: Path
) -> None:
    image = tmp_path / "mine.sif"
    here.apptainer_build(rendered, image)
    said = look(hosts.apptainer(), image)
    assert packages(said) == packages(built)
    assert {"mpi 3.4.3 41", "PYTHONNOUSERSITE=1", f"ODD={ODD}", "hello"} <= set(said)
    assert " files " not in said[-1]


@pytest.mark.full
def test_sources_of_a_recipe_are_built_by_podman_and_apptainer(here: Site, tmp_path: Path) -> None:
    """A patched program, built by Python, which both stages have; it is in the image, its source is not."""
    (tmp_path / "tool").mkdir()
    (tmp_path / "tool" / "say.txt").write_text("hello\n")
    text = """extends = "mpi-base"
[recipe]
name = "tooled"
[[source]]
name = "tool"
version = "1"
path = "tool"
env = { WORD = "an odd 'word'" }
run = '''
mkdir -p $DESTDIR/opt/tool
# a remark; and a line with "quotes"
{ echo '#!/bin/sh'; echo "echo $(cat say.txt) $WORD $PREFIX" | sed "s/'//g"; } > $DESTDIR/opt/tool/say
chmod 755 $DESTDIR/opt/tool/say
'''
"""
    (tmp_path / "recipe.toml").write_text(text)
    lock = lock_of(load_recipe("mpi-base"))
    assert lock is not None
    folder = tmp_path / "rendered"
    for path, (body, mode) in contents(load_recipe(tmp_path), lock).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(body)
        (folder / path).chmod(mode)
    script = "/opt/tool/say; ls -d /built /files /usr/src/fairlead 2>/dev/null"
    here.podman_build(folder, "localhost/tooled:1")
    run = ("run", "--rm", "--network=none", "localhost/tooled:1", "sh", "-c", f"{script}; true")
    assert here.podman(*run) == "hello an odd word /opt/python\n"
    here.apptainer_build(folder, tmp_path / "tooled.sif")
    argv = [hosts.apptainer(), "exec", "-u", tmp_path / "tooled.sif", "sh", "-c", f"{script}; true"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "hello an odd word /opt/python\n"
