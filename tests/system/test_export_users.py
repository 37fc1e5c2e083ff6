"""Each export as root makes it, with a closed umask: read and run by another user, with the tool that it is for.

A new target needs a function in RUNS. JupyterHub and Snakemake on Slurm are in test_jupyterhub.py and test_workflows.py.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.support import flux
from tests.system import hosts
from tests.system.podman import Podman, rootless, specified
from tests.system.slurm import waited
from tests.system.test_export import LMOD, podman_hpc_programs, run
from tests.system.test_user import PYTHON, User, processes_of, user

from fairlead.base.paths import atomic_folder, locked
from fairlead.elf.patchelf import find_patchelf
from fairlead.export import TARGETS, audience

__all__ = ["user"]  # a fixture

BIN = Path(sys.executable).parent
PROVE = ("python3", "-m", "fairlead.prove")
MPI = "/opt/fairlead/mpi/lib/libmpi.so.12"
# Of stand-ins that start Apptainer, whose ranks cannot read each other's memory: the engines themselves have no
# user namespace, or one on each node.
APART = {"MPIR_CVAR_CH4_CMA_ENABLE": "0", "UCX_POSIX_USE_PROC_LINK": "n"}
RUNS: dict[str, Callable[[Export], None]] = {}


@dataclass(frozen=True)
class Export:
    """An export of root's, and the user who runs it."""

    user: User
    out: Path
    request: pytest.FixtureRequest

    def words(self, *words: str | Path, **variables: str) -> list[str | Path]:
        """A command with the user's PATH. No variable says which MPI: the export has to."""
        apptainer = self.user.shared / "fairlead/apptainer/current/bin"
        path = {"PATH": f"{self.user.shared}/bin:{apptainer}:/usr/bin:/bin"}
        given = [f"{name}={value}" for name, value in {**path, **variables}.items()]
        return ["env", "-u", "FAIRLEAD_MPI", *given, *words]

    def run(self, *words: str | Path, code: int = 0, **variables: str) -> str:
        """What a command of the user's prints."""
        done = self.user.run(*self.words(*words, **variables))
        assert done.returncode == code, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    def ranks(
        self, *words: str | Path, place: str = MPI, more: tuple[str, ...] = (), **variables: str
    ) -> None:
        """Two ranks by ``WORDS PROGRAM`` are on the host's MPI, and their large messages arrive."""
        launch = (self.user.shared / "mpich/bin/mpiexec", "-n", "2", *words)
        text = self.run(*launch, *PROVE, *more, **variables)
        assert "proved on 2 ranks" in text and f"5.0.2 from {place}" in text, text
        assert self.run(*launch, "/opt/app/exchange", **variables).count(": 0 wrong") == 2

    def installed(self, *names: str, source: Path = BIN) -> None:
        """Programs of a virtual environment that may be closed, in the user's PATH and by the user's Python."""
        folder = self.user.shared / "bin"
        folder.mkdir(exist_ok=True)
        for name in names:
            lines = (source / name).read_text().splitlines(keepends=True)
            (folder / name).write_text("".join([f"#!{PYTHON}\n", *lines[1:]]))
            (folder / name).chmod(0o755)

    def standin(self, kind: str) -> dict[str, str]:
        """A stand-in for an engine, in the user's PATH, and its variables."""
        program = self.user.shared / "bin" / kind
        program.write_text(f"#!{PYTHON} -I\n{Path(__file__).with_name('standin.py').read_text()}")
        program.chmod(0o755)
        return {
            "STANDIN_APPTAINER": f"{self.user.shared}/fairlead/apptainer/current/bin/apptainer",
            "STANDIN_SRUN": f"{self.user.shared}/mpich/bin/mpiexec",
        }

    @property
    def podman(self) -> Podman:
        made: Podman = self.request.getfixturevalue("podman")
        return made

    @property
    def root(self) -> tuple[str, str, str]:
        """Options of Podman for the image, unpacked and owned by the user."""
        folder = self.request.getfixturevalue("unpacked")
        return ("--env=PATH=/opt/python/bin:/usr/bin:/bin", "--rootfs", f"{folder}:O")


def runs(target: str) -> Callable[[Callable[[Export], None]], Callable[[Export], None]]:
    def registered(function: Callable[[Export], None]) -> Callable[[Export], None]:
        RUNS[target] = function
        return function

    return registered


@pytest.fixture(scope="module")
def podman(user: User) -> Iterator[Podman]:
    if not shutil.which("podman"):
        pytest.skip("no podman")
    with rootless(user.uid, user.home) as made:
        yield made


@pytest.fixture(scope="module")
def unpacked(user: User) -> Path:
    programs = {f"/opt/app/{name}": hosts.compiled(name) for name in ("allreduce", "exchange")}
    folder = hosts.unpacked(user.shared / "tree", programs)
    subprocess.run(["chown", "-R", f"{user.uid}:{user.uid}", folder], check=True)
    return folder


@pytest.fixture(scope="module")
def with_kernel() -> Path:
    """mpi-base with ipykernel in its Python."""
    folder = hosts.KEPT / "ipykernel-7"
    with locked(hosts.KEPT / ".lock"):
        if not folder.is_dir():
            with atomic_folder(folder) as tree:
                quiet = ("-q", "--no-compile", "--only-binary=:all:", "--python-version", "3.11")
                pin = "ipykernel>=7,<8"
                run(sys.executable, "-m", "pip", "install", *quiet, "--target", tree, pin)
    return hosts.squashfs_with("kernel", {"/opt/python/lib/python3.11/site-packages": folder})


def made_by_root(target: str, user: User, *more: str | Path, image: Path | None = None) -> Path:
    """The export, and what its script stages."""
    out = user.shared / "exports" / target
    stage = user.shared / "stage"
    for folder in (out, stage):
        shutil.rmtree(folder, ignore_errors=True)
    named = () if target in WITHOUT else ("--image", image or user.image)
    before = os.umask(0o077)
    try:
        done = hosts.fairlead(
            "site", "export", "--for", target, "--mpi", user.shared / "mpich", "--stage", stage, "-o", out, *named,
            *more,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        if (out / "stage.sh").exists():
            patchelf = {"PATCHELF": find_patchelf()}
            done = hosts.program(out / "stage.sh", env=patchelf)
            assert done.returncode == 0, done.stdout + done.stderr
    finally:
        os.umask(before)
    places = [out, *filter(Path.exists, [stage])]
    hidden = user.run("find", *places, "!", "-readable", "-o", "-type", "d", "!", "-executable")
    assert (hidden.returncode, hidden.stdout, hidden.stderr) == (0, "", "")
    for file in filter(Path.is_file, out.rglob("*")):
        for path in re.findall(r"(?<![\w/.$}])(/[\w./-]+)", file.read_text()):
            inside = path.startswith(("/opt/app", "/proc", "/dev"))
            assert inside or not audience.closed(path), f"{file}: {path}"
    return out


# Sarus Suite starts images of Podman's store, and no files; of these workflows each step names an image.
WITHOUT = ("sarus-suite", "nextflow", "parsl")
MORE = {
    "jupyter": ("--name", "in-image"),
    "jupyterhub": ("--name", "in-image"),
    "lmod": ("--program", "/opt/app/allreduce"),
}


@pytest.mark.parametrize("target", sorted(TARGETS.names()))
def test_export_of_root_is_read_and_run_by_another_user(
    target: str, user: User, request: pytest.FixtureRequest
) -> None:
    image = None
    if target == "jupyter":
        image = user.shared / "kernel.squashfs"
        hosts.same_file(request.getfixturevalue("with_kernel"), image)
        image.chmod(0o644)
    out = made_by_root(target, user, *MORE.get(target, ()), image=image)
    made = Export(user, out, request)
    made.installed("fairlead")  # which exports name where the maker's own is closed
    RUNS[target](made)


@runs("apptainer")
def _apptainer(it: Export) -> None:
    """Each of the user's ranks is in a separate user namespace, and none of root's is."""
    start = f'. {it.out}/environment.sh; exec apptainer --quiet exec {it.user.image} "$@"'
    it.ranks("/bin/sh", "-euc", start, "sh")


@runs("cdi")
def _cdi(it: Export) -> None:
    """As sites set Podman for HPC: with a user namespace for each container."""
    file = it.out / "fairlead-mpi.json"
    device = f"--device=fairlead/mpi={json.loads(file.read_text())['devices'][0]['name']}"
    with specified(file):
        it.ranks(*it.podman.rank("--userns=keep-id", device, *it.root), **it.podman.environ)


@runs("ce")
def _ce(it: Export) -> None:
    """CSCS' Container Engine is in no package registry: a stand-in reads the EDF by its documentation."""
    variables = it.standin("srun") | APART
    [edf] = it.out.glob("*.toml")
    words = ("srun", "-n", "2", f"--environment={edf}")
    text = it.run(*words, *PROVE, **variables)
    assert "proved on 2 ranks" in text and f"5.0.2 from {MPI}" in text, text
    assert it.run(*words, "/opt/app/exchange", **variables).count(": 0 wrong") == 2


@runs("enroot")
def _enroot(it: Export) -> None:
    """enroot is a package of its GitHub releases only: a stand-in reads the folders as its sources do."""
    own = it.user.home / ".config/enroot"
    it.run("mkdir", "-p", own)
    it.run("cp", "-r", *(it.out / name for name in ("environ.d", "mounts.d", "hooks.d")), own)
    # enroot takes this from the image.
    path = {"PATH": f"{it.user.shared}/bin:/opt/python/bin:/usr/bin:/bin"}
    it.ranks("enroot", "start", it.user.image, **it.standin("enroot"), **path)


@runs("flux")
def _flux(it: Export) -> None:
    """Flux' broker is in no package registry. Its own `flux batch` reads the command and makes the job, whose script
    runs here, with `flux run` by Hydra.
    """
    shared = it.user.shared
    flux.install(shared / "bin/flux", shared / "flux", PYTHON, shared / "mpich/bin/mpiexec")
    submit, odd = it.out / "fairlead-submit", ["a b", "it's", "$HOME", "x\ny"]
    program = "import sys; from mpi4py import MPI; print(sys.argv[1:])"
    words = ("-N", "1", "-n", "2", it.user.image, "python3", "-c", program, *odd)
    # No profile has Flux on this machine.
    text = it.run(submit, "--dependency=afterok:f1", *words, FAIRLEAD_SITE="laptop")
    assert text.count(str(odd)) == 2 and "proved on 2 ranks" in text, text
    job = json.loads((it.user.home / "jobspec.json").read_text())["attributes"]["system"]
    assert job["dependencies"] == [{"scheme": "afterok", "value": "f1"}]
    assert job["job"]["name"] == it.user.image.name
    assert it.run(submit, "-n", "2", code=2).count("error: this job has no image") == 1


KERNEL = """
import sys
from jupyter_client.manager import start_new_kernel
manager, client = start_new_kernel(kernel_name="in-image", startup_timeout=90)
said = []
def keep(message):
    if message["msg_type"] == "stream":
        said.append(message["content"]["text"])
client.execute_interactive(
    "import sys, os, mpi4py; print(sys.prefix, os.path.exists('/opt/mpich'))",
    timeout=90, output_hook=keep)
print("".join(said))
client.stop_channels()
manager.shutdown_kernel()
"""


@runs("jupyter")
def _jupyter(it: Export) -> None:
    folder = it.user.home / "kernels"
    program = f'mkdir -p {folder} && cp -r {it.out} {folder}/kernels && exec {PYTHON} -c "$KERNEL"'
    text = it.run("sh", "-c", program, JUPYTER_PATH=str(folder), KERNEL=KERNEL)
    assert "/opt/python True" in text


SERVER = """
import os, sys
from traitlets.config import PyFileConfigLoader
config = PyFileConfigLoader("fairlead_hub.py", sys.argv[1]).load_config()
os.environ.update(config.Spawner.environment)
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.provisioning import KernelProvisionerFactory
spec = KernelSpecManager().get_kernel_spec("in-image")
made = KernelProvisionerFactory.instance().create_provisioner_instance("1", spec, None)
print(made.image, *made.arguments)
"""


@runs("jupyterhub")
def _jupyterhub(it: Export) -> None:
    """The environment that the hub gives to a user's server leads to the kernel, whose ranks can start."""
    image, first, *options = it.run(PYTHON, "-c", SERVER, it.out).split()
    assert (image, first) == (str(it.user.image), "--with-kernel")
    text = it.run("fairlead", "run", "-n", "2", *options, image, "--", "/opt/app/allreduce")
    assert set(hosts.ranks_of(text)) == {0, 1}


@runs("lmod")
def _lmod(it: Export) -> None:
    if not LMOD.exists():
        pytest.skip("no Lmod; Debian's package is lmod")
    load = f". {LMOD}; module use {it.out}; module load image; FAIRLEAD_RANKS=2 allreduce"
    text = it.run("bash", "--noprofile", "--norc", "-c", load)
    assert set(hosts.ranks_of(text)) == {0, 1}, text


@runs("nextflow")
def _nextflow(it: Export) -> None:
    """As Nextflow starts it: what PyPI has of Nextflow is a script that downloads the rest from elsewhere."""
    shell = it.out / "fairlead-process"
    assert f"shell = ['{shell}']" in (it.out / "nextflow.config").read_text()
    script = it.user.shared / ".command.sh"
    script.write_text("set -o pipefail\npython3 -m mpi4py.bench helloworld\nfalse\necho no\n")
    variables = {"FAIRLEAD_IMAGE": str(it.user.image), "FAIRLEAD_RANKS": "2"}
    text = it.run(shell, script, code=1, **variables)
    assert text.count("of 2") == 2 and "proved on 2 ranks" in text and "no" not in text.split()
    assert it.run(shell, script, code=1).count("error: this process has no image") == 1


PARSL = """
import sys, parsl
from fairlead_parsl import config, launch

@parsl.bash_app
def run(line, stdout=None, parsl_resource_specification=None):
    return line

image, two = sys.argv[1], {"num_nodes": 1, "ranks_per_node": 2}
try:
    launch("true")
except ValueError as exc:
    print(exc, flush=True)
with parsl.load(config()):
    hello = launch("python3", "-c", "from mpi4py import MPI; print(MPI.COMM_WORLD.size)", image=image)
    run(hello, stdout="hello.txt", parsl_resource_specification=two).result()
    line = launch("python3", "-c", "from mpi4py import MPI; import time; print('up', flush=True); time.sleep(600)", image=image)
    run(line, stdout="up.txt", parsl_resource_specification=two).result()
"""


@runs("parsl")
def _parsl(it: Export) -> None:
    """Nothing outlives a script that is killed."""
    it.installed("interchange.py", "process_worker_pool.py")
    home = it.user.home
    it.run("cp", it.out / "fairlead_parsl.py", ".")
    before = set(processes_of(it.user.uid))
    with (it.user.shared / "parsl.log").open("w") as log:
        words = it.user.argv(*it.words(PYTHON, "-c", PARSL, it.user.image))
        process = subprocess.Popen(words, cwd=home, stdout=log, stderr=log)
    up = home / "up.txt"
    try:
        waited(lambda: up.exists() and up.read_text() == "up\nup\n", 60, "no ranks come up")
    finally:
        process.kill()
        process.wait()
    assert (home / "hello.txt").read_text() == "2\n2\n"
    assert (it.user.shared / "parsl.log").read_text().count("an app has no image") == 1
    waited(lambda: set(processes_of(it.user.uid)) <= before, 40, "workers or ranks go on")


@runs("podman-hpc")
def _podman_hpc(it: Export) -> None:
    """With podman-hpc as it is installed: none of its hooks is configured."""
    modules = it.user.shared / "modules.d"
    shutil.copytree(it.out / "modules.d", modules)
    [module] = modules.iterdir()
    [use] = re.findall(r"^# Use: (.+) IMAGE COMMAND$", module.read_text(), re.MULTILINE)
    assert use == "podman-hpc run --fairlead-mpich-5-0-2"
    podman_hpc = podman_hpc_programs()
    it.installed("podman-hpc", source=podman_hpc)
    shutil.copy(podman_hpc / "fuse-overlayfs-wrap", it.user.shared / "bin")
    shutil.copytree(
        next(podman_hpc.parent.glob("lib/python3*/site-packages")), it.user.shared / "podman-hpc"
    )
    folder = it.podman.folder
    (folder / "podman_hpc.yaml").write_text("use_default_args: false\n")
    (folder / "storage.conf").write_text(
        f'[storage]\ndriver = "overlay"\ngraphroot = "{folder}/root"\nrunroot = "{folder}/run"\n'
    )
    variables = {
        "PATH": f"{it.user.shared}/bin:{it.podman.environ['PATH']}",
        "PYTHONPATH": str(it.user.shared / "podman-hpc"),
        "USER": it.user.home.name,
        "PODMANHPC_CONFIG_FILE": str(folder / "podman_hpc.yaml"),
        "PODMANHPC_MODULES_DIR": str(modules),
        "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
    }
    it.ranks(*use.split(), "--rm", *it.root, **{**it.podman.environ, **variables})


@runs("reframe")
def _reframe(it: Export) -> None:
    it.installed("reframe")
    files, home = ("-C", it.out / "config.py", "-c", it.out / "swap_test.py"), it.user.home
    places = ("--prefix", home / "rfm", "--report-file", home / "report.json")
    text = it.run("reframe", *files, "-r", "--nocolor", *places)
    assert re.search(r"PASSED.* 1/1 test case", text), text
    assert "until_proved" in (home / "report.json").read_text()


def hooks(it: Export) -> Path:
    """The export's hooks, with stand-ins for their programs."""
    folder = it.user.shared / f"hooks-{it.out.name}"
    folder.mkdir()
    text = Path(__file__).with_name("oci_hooks.py").read_text()
    for file in (it.out / "hooks.d").iterdir():
        document = json.loads(file.read_text())
        program = folder / Path(document["hook"]["path"]).name
        program.write_text(f"#!{PYTHON} -I\n{text}")
        program.chmod(0o755)
        document["hook"]["path"] = str(program)
        (folder / file.name).write_text(json.dumps(document))
    return folder


@runs("sarus")
def _sarus(it: Export) -> None:
    """Sarus is in no package registry: a real Podman and runc read the hooks, by the same rules, and start stand-ins."""
    part = json.loads((it.out / "sarus.part.json").read_text())
    env = [f"--env={name}={value}" for name, value in part["environment"]["set"].items()]
    enabled = [f"--annotation=com.hooks.{name}.enabled=true" for name in ("mpi", "glibc")]
    words = ("--hooks-dir", hooks(it), *env, *enabled)
    own = "/opt/mpich/lib/libmpi.so.12"
    it.ranks(
        *it.podman.rank(*words, f"--annotation=com.hooks.mpi.type={part['defaultMPIType']}", *it.root),
        place=own, more=("--expects", own), **it.podman.environ,
    )  # fmt: skip
    # Every annotation of a hook has to hold.
    version = "from mpi4py import MPI; print(MPI.Get_library_version())"
    text = it.podman("run", "--rm", "--network=host", *words, *it.root, "python3", "-c", version)
    assert "3.4.3" in text


def flat(table: dict[str, Any], before: str = "") -> dict[str, str]:
    """A table of TOML by its dotted keys."""
    found = {}
    for key, value in table.items():
        inner = flat(value, f"{before}{key}.") if isinstance(value, dict) else {before + key: value}
        found |= inner
    return found


@runs("sarus-suite")
def _sarus_suite(it: Export) -> None:
    """Sarus Suite is in no package registry: as for Sarus, with the EDF's annotations."""
    [edf] = it.out.glob("*.toml")
    given = flat(tomllib.loads(edf.read_text())["annotations"])
    words = [f"--annotation={name}={value}" for name, value in given.items()]
    rank = it.podman.rank("--userns=keep-id", "--hooks-dir", hooks(it), *words, *it.root)
    # The hook shows the library at the place of the image's.
    it.ranks(*rank, place="/opt/mpich/lib/libmpi.so.12", **it.podman.environ)


@runs("shifter")
def _shifter(it: Export) -> None:
    """A stand-in reads the module; test_shifter.py has a real Shifter, where there is one."""
    for folder in ("store", "etc"):
        (it.user.shared / folder).mkdir()
    hosts.same_file(it.user.image, it.user.shared / "store/train.squashfs")
    (it.user.shared / "store/train.meta").write_text("FORMAT: squashfs\n")
    text = (it.out / "module.conf").read_text()
    [module] = re.findall(r"^# Use: shifter --module=(\S+)", text, re.MULTILINE)
    (it.user.shared / "etc/udiRoot.conf").write_text(f"imagePath={it.user.shared}/store\n{text}")
    it.ranks(
        "shifter", "--image=id:train", f"--module={module}",
        place=f"/opt/udiImage/modules/{module}/lib/libmpi.so.12",
        **it.standin("shifter"), **APART,
    )  # fmt: skip


SNAKEFILE = """
rule all:
    input: "ranks.txt", "plain.txt", "bare.txt", "host.txt"
rule ranks:
    output: "ranks.txt"
    container: "{image}"
    resources: tasks=2, mpi="mpiexec"
    shell: "{{resources.mpi}} -n {{resources.tasks}} python3 -c 'from mpi4py import MPI; w = MPI.COMM_WORLD;"
        " print(f\\"{{{{w.rank}}}} of {{{{w.size}}}} on {{{{MPI.Get_library_version().split()[2]}}}}\\")' > {{output}}"
rule plain:
    output: "plain.txt"
    container: "{image}"
    shell: "test -e /opt/mpich && echo 'it'\\\\''s  inside' | cat > {{output}}"
rule bare:
    output: "bare.txt"
    shell: "test -e /opt/mpich && hostname > {{output}}"
rule host:
    output: "host.txt"
    resources: shell_exec="bash"
    shell: "test ! -e /opt/mpich && hostname > {{output}}"
"""


@runs("snakemake")
def _snakemake(it: Export) -> None:
    it.installed("snakemake")
    file = it.user.shared / "Snakefile"
    file.write_text(SNAKEFILE.format(image=it.user.image))
    assert "proved on 2 ranks" in it.run("snakemake", "-s", file, "--profile", it.out)
    lines = sorted((it.user.home / "ranks.txt").read_text().splitlines())
    assert lines == ["0 of 2 on 5.0.2", "1 of 2 on 5.0.2"]
    assert (it.user.home / "plain.txt").read_text() == "it's  inside\n"
    assert (it.user.home / "bare.txt").exists(), "it runs in the profile's image"
