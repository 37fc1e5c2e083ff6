"""A real Shifter with the image, the udiRoot.conf and the staged MPI that fairlead makes.

Shifter is packaged nowhere and reads one udiRoot.conf, whose path is compiled in. So this runs where
``shifter`` is on PATH or $FAIRLEAD_SHIFTER names it, and $SHIFTER_CONFIG names the file that it
reads: the tests write it, and put back what was there.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.system import hosts
from tests.system.test_user import PYTHON

import fairlead
import fairlead_build

SHIFTER = os.environ.get("FAIRLEAD_SHIFTER") or shutil.which("shifter") or ""
CONF = Path(os.environ.get("SHIFTER_CONFIG", ""))
pytestmark = [
    pytest.mark.skipif(not SHIFTER, reason="no shifter on PATH, and none in FAIRLEAD_SHIFTER"),
    pytest.mark.skipif(
        Path() == CONF, reason="SHIFTER_CONFIG does not name the udiRoot.conf to write"
    ),
    pytest.mark.skipif(os.geteuid() != 0, reason="only root may write udiRoot.conf"),
]
PROVE = ("python3", "-m", "fairlead.prove")


@dataclass(frozen=True)
class Site:
    """A machine with Shifter, a user, and the exports that were made for it.

    Attributes:
        lines: of udiRoot.conf, as fairlead wrote it and with the places of this test.
    """

    uid: int
    home: Path
    shared: Path
    lines: tuple[str, ...]

    def configure(self, *lines: str) -> None:
        """udiRoot.conf with these lines; as exported without any."""
        CONF.write_text("\n".join(lines or self.lines) + "\n")
        CONF.chmod(0o644)

    def run(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        """A command of the user, who has nothing of our environment."""
        code = self.shared / "code"
        variables = {
            "PATH": f"{Path(SHIFTER).parent}:/usr/bin:/bin",
            "PYTHONPATH": f"{code}:{code}/packages",
            "FAIRLEAD_MPI": str(self.shared / "mpich"),
            "FAIRLEAD_SHIFTER": SHIFTER,
        }
        return subprocess.run(
            hosts.as_user(self.uid, self.home, variables, *words),
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            stdin=subprocess.DEVNULL,
        )

    def ranks(self, *words: str) -> subprocess.CompletedProcess[str]:
        """``mpiexec -n 2 shifter WORDS``, as people write it who know nothing of fairlead."""
        return self.run(self.shared / "mpich/bin/mpiexec", "-n", "2", SHIFTER, *words)

    def fairlead(self, *words: str | Path) -> subprocess.CompletedProcess[str]:
        return self.run(PYTHON, "-m", "fairlead", *words)

    @property
    def image(self) -> Path:
        return self.shared / "images/mpi-base"


@pytest.fixture(scope="module")
def made() -> Iterator[Site]:
    if not Path(PYTHON).exists():
        pytest.skip(f"no {PYTHON}, which another user could run")
    before = CONF.read_bytes() if CONF.exists() else None
    # Below /tmp, which Shifter shows to every container.
    shared = Path(tempfile.mkdtemp(prefix="fairlead-shifter-", dir="/tmp"))
    shared.chmod(0o755)
    try:
        with hosts.account("shifter", shared) as (_, home):
            for folder in ("images", "udi", "loop", "etc"):
                (shared / folder).mkdir()
            for file in ("passwd", "group", "nsswitch.conf"):
                shutil.copy(Path("/etc", file), shared / "etc")
            shutil.copytree(hosts.mpich(), shared / "mpich", symlinks=True)
            built = hosts.fairlead(
                "build", "mpi-base", "--format", "shifter", "-o", shared / "images"
            )
            assert built.returncode == 0, built.stdout + built.stderr
            hosts.packages(shared / "code/packages")
            for package in (fairlead, fairlead_build):
                code = Path(package.__file__ or "").parent
                shutil.copytree(code, shared / "code" / code.name)
            shutil.copytree(hosts.ROOT / "sitecfg", shared / "code/fairlead/_data/sitecfg")
            yield Site(home.stat().st_uid, home, shared, exported(shared, "copy"))
    finally:
        if before is None:
            CONF.unlink(missing_ok=True)
        else:
            CONF.write_bytes(before)
        shutil.rmtree(shared)


def exported(shared: Path, form: str) -> tuple[str, ...]:
    """The lines of the udiRoot.conf that ``site export`` makes; what its script stages is staged."""
    out = shared / f"export-{form}"
    done = hosts.fairlead(
        "site", "export", "--for", "shifter", "--mpi", shared / "mpich", "--form", form, "--name", "mpich",
        "--stage", shared / "stage", "-o", out,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    subprocess.run([out / "stage.sh"], check=True, capture_output=True)
    places = {
        "udiMount": "udi",
        "loopMount": "loop",
        "imagePath": "images",
        "etcPath": "etc",
    }
    text = (out / "udiRoot.conf").read_text()
    for key, folder in places.items():
        text, found = re.subn(rf"^{key}=.*$", f"{key}={shared / folder}", text, flags=re.MULTILINE)
        assert found == 1, key
    return tuple(text.splitlines())


@pytest.fixture
def site(made: Site) -> Site:
    made.configure()
    return made


def test_module_swaps_the_mpi_on_every_rank(site: Site) -> None:
    done = site.ranks("--image=id:mpi-base", *PROVE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "fairlead: proved on 2 ranks, 1 node: MPICH Version: 5.0.2 from " in done.stdout
    assert "/opt/udiImage/modules/mpich/lib/libmpi.so.12" in done.stdout
    print(done.stdout)


def test_module_as_a_bind_swaps_too_without_a_copy_a_rank(site: Site) -> None:
    site.configure(*exported(site.shared, "bind"))
    done = site.ranks("--image=id:mpi-base", "--module=mpich", *PROVE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "MPICH Version: 5.0.2 from /fairlead/lib/libmpi.so.12" in done.stdout
    print(done.stdout)


def test_without_the_module_the_image_runs_on_its_own(site: Site) -> None:
    done = site.ranks("--image=id:mpi-base", "--module=none", *PROVE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "MPICH Version: 3.4.3 from /opt/mpich/lib/" in done.stdout
    print(done.stdout)


def test_key_in_the_wrong_case_swaps_nothing_and_the_proof_stops_it(site: Site) -> None:
    site.configure(*(line.replace("_copyPath=", "_copypath=") for line in site.lines))
    silent = site.ranks("--image=id:mpi-base", "python3", "-m", "mpi4py.bench", "helloworld")
    assert silent.returncode == 0 and not silent.stderr, silent.stderr  # nobody notices
    done = site.ranks("--image=id:mpi-base", *PROVE)
    assert done.returncode == 122, done.stdout + done.stderr
    print(done.stdout)
    assert (
        "/opt/udiImage/modules/mpich/lib/libmpi.so.12 must be mapped, /opt/mpich/lib/"
        in done.stdout
    )
    assert "that file is not there" in done.stdout


def test_underscore_in_the_name_of_a_module_is_another_module(site: Site) -> None:
    renamed = (line.replace("module_mpich_", "module_my_mpich_") for line in site.lines)
    site.configure(*(line for line in renamed if not line.startswith("defaultModules")))
    done = site.run(SHIFTER, "--image=id:mpi-base", "--module=my_mpich", "true")
    assert done.returncode != 0 and "Unknown shifter module: my_mpich" in done.stderr


def test_unknown_key_ends_shifter(site: Site) -> None:
    site.configure(*site.lines, "modulePath=/opt")
    done = site.run(SHIFTER, "--image=id:mpi-base", "true")
    assert done.returncode != 0
    assert "Couldn't understand key: modulePath" in done.stdout + done.stderr


def test_value_with_a_blank_loses_what_follows_it(site: Site) -> None:
    """Why the export refuses such a value."""
    site.configure(*site.lines, "siteEnv=GREETING=good morning")
    done = site.run(SHIFTER, "--image=id:mpi-base", "printenv", "GREETING")
    assert done.stdout != "good morning\n"


def test_unknown_module_is_refused(site: Site) -> None:
    done = site.run(SHIFTER, "--image=id:mpi-base", "--module=cray", "true")
    assert done.returncode == 1 and "Unknown shifter module: cray" in done.stderr


def test_lists_of_meta_are_in_single_quotes(site: Site) -> None:
    folder = site.image.parent
    for name, entry in (
        ("single", "['/bin/echo', 'as two words']"),
        ("double", '["/bin/echo", "x"]'),
    ):
        (folder / f"{name}.squashfs").hardlink_to(folder / "mpi-base.squashfs")
        (folder / f"{name}.meta").write_text(f"FORMAT: squashfs\nENTRY: {entry}\n")
    single = site.run(SHIFTER, "--image=id:single", "--entrypoint")
    double = site.run(SHIFTER, "--image=id:double", "--entrypoint")
    assert single.stdout == "as two words\n", single.stderr
    assert double.returncode != 0 and "x" not in double.stdout.splitlines()


def test_run_starts_shifter_and_proves_its_own_launch(site: Site) -> None:
    done = site.fairlead(
        "run", "--engine", "shifter", "-n", "2", "-v", site.image, "--", "python3", "-m",
        "mpi4py.bench", "helloworld",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Hello, World! I am process 1 of 2" in done.stdout
    assert "MPICH 3.4.3 of the image -> MPICH 5.0.2 of the host" in done.stderr
    assert (
        "proved on 2 ranks" in done.stderr and "/opt/fairlead/mpi/lib/libmpi.so.12" in done.stderr
    )
    print(done.stderr)


def test_run_on_an_mpi_that_needs_a_newer_glibc_goes_by_the_hosts_loader(site: Site) -> None:
    """Shifter shows no single files, so the host's C library cannot be shown over the image's."""
    newer = site.shared / "sid"
    shutil.copytree(hosts.sid(), newer, symlinks=True, dirs_exist_ok=True)
    words = (
        "--engine", "shifter", "--mpi", newer / "usr", "--launcher",
        site.shared / "mpich/bin/mpiexec", site.image, "--",
    )  # fmt: skip
    program = ("/opt/python/bin/python3", "-m", "mpi4py.bench", "helloworld")
    done = site.fairlead("run", "-n", "2", *words, *program)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "proved on 2 ranks" in done.stderr and "5.0.2" in done.stderr, done.stderr
    assert "Hello, World! I am process 1 of 2" in done.stdout
    module = hosts.fairlead(
        "site", "export", "--for", "shifter", "--mpi", newer / "usr", "--image", site.image,
        "-o", site.shared / "refused",
    )  # fmt: skip
    assert module.returncode == 121 and "export-glibc" in module.stderr, module.stderr


def test_run_on_the_images_own_mpi_is_proved(site: Site) -> None:
    done = site.fairlead(
        "run", "--engine", "shifter", "-n", "2", "--mpi", "container", "--probe", site.image, "--",
        "python3", "-m", "mpi4py.bench", "helloworld",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "proved on 2 ranks" in done.stderr and "3.4.3" in done.stderr


def test_run_gives_back_the_code_of_the_rank(site: Site) -> None:
    done = site.fairlead(
        "run", "-q", "--engine", "shifter", "-n", "2", site.image, "--", "sh", "-c", "exit 7"
    )
    assert done.returncode == 7, done.stdout + done.stderr


def test_line_of_a_dry_run_can_be_pasted(site: Site) -> None:
    output = site.fairlead(
        "run", "--engine", "shifter", "-n", "2", "--dry-run", "--env", "GREETING=good, morning",
        site.image, "--", "python3", "-m", "mpi4py.bench", "helloworld",
    )  # fmt: skip
    assert output.returncode == 0, output.stderr
    pasted = site.run("/bin/sh", "-c", output.stdout)
    assert pasted.returncode == 0, pasted.stdout + pasted.stderr
    assert "Hello, World! I am process 1 of 2" in pasted.stdout
    assert "fairlead: proved on 2 ranks" in pasted.stdout + pasted.stderr


def test_image_that_shifter_does_not_keep_is_refused_with_the_way_to_make_it(site: Site) -> None:
    sif = site.shared / "mpi-base.sif"
    shutil.copy(hosts.image("mpi-base"), sif)
    done = site.fairlead("run", "--engine", "shifter", sif, "--", "true")
    assert done.returncode == 121, done.stdout + done.stderr
    assert "--format shifter" in done.stderr
