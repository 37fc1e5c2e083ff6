"""What ``site export`` writes, taken by the tools that it is written for."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from tests.system import hosts
from tests.system.podman import podman
from tests.system.test_user import PYTHON, User, user

from fairlead.base.paths import atomic_folder, locked
from fairlead.elf.patchelf import find_patchelf
from fairlead.engines.apptainer import find_apptainer
from fairlead.export import TARGETS, audience
from fairlead_build.cache.store import scratch_parent

__all__ = ["user"]  # a fixture

LMOD = Path("/usr/share/lmod/lmod/init/bash")
BIN = Path(sys.executable).parent
# MPICH's own Hydra starts as root; Apptainer as root wants one capability less here.
ROOT = ("--drop-caps", "CAP_SYS_RESOURCE") if os.geteuid() == 0 else ()


@pytest.fixture(scope="module")
def image() -> Path:
    return hosts.image_with_programs()


def export(target: str, folder: Path, *more: str | Path) -> Path:
    """The folder with the export of this machine."""
    out = folder / target
    done = hosts.fairlead(
        "site", "export", "--for", target, "--mpi", hosts.mpich(), "--stage", folder / "stage",
        "-o", out, "--private", *more,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return out


def run(*words: str | Path, env: dict[str, str] | None = None, cwd: Path | None = None) -> str:
    done = subprocess.run(
        list(map(str, words)), capture_output=True, text=True, timeout=300, check=False, cwd=cwd,
        env={**os.environ, "PATCHELF": find_patchelf(), **(env or {})}, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_staging_script_makes_the_folder_that_a_launch_makes(tmp_path: Path, image: Path) -> None:
    out = export("apptainer", tmp_path, "--image", image)
    folder = Path(run(out / "stage.sh").strip())
    words = ("--mpi", hosts.mpich(), image, "--", "true")
    assert hosts.fairlead("run", *words).returncode == 0
    launch = re.search(
        r"([^\s:=']+/stage/[^\s:/]+):", hosts.fairlead("run", "--dry-run", *words).stdout
    )
    assert launch

    def contents(folder: Path) -> dict[str, str]:
        """Each file's place; where a link leads. A launch's copies have a DT_RPATH as well."""
        kept = (p for p in folder.rglob("*") if p.name not in (".state", "copies.json"))
        return {
            str(p.relative_to(folder)): str(p.readlink()) if p.is_symlink() else "" for p in kept
        }

    assert contents(folder) == contents(Path(launch[1]))


def test_staging_script_leaves_what_is_whole_and_fixes_what_is_not(tmp_path: Path) -> None:
    script = export("apptainer", tmp_path) / "stage.sh"
    folder = Path(run(script).strip())
    library = folder / "lib/libmpi.so.12"
    inode = library.stat().st_ino
    assert run(script).strip() == str(folder)
    assert library.stat().st_ino == inode
    (folder / "lib/libmpi.so").unlink()
    library.write_bytes(b"cut")
    run(script)
    assert library.stat().st_size > 1_000_000 and (folder / "lib/libmpi.so").readlink()
    old = list(folder.parent.glob(f".{folder.name}.*.old"))
    assert len(old) == 1, "jobs may have it mounted"
    assert sorted(p.name for p in folder.parent.iterdir() if ".old" not in p.name) == [folder.name]


def test_staging_script_stops_at_a_library_that_is_gone_and_leaves_nothing(tmp_path: Path) -> None:
    script = export("apptainer", tmp_path) / "stage.sh"
    text = script.read_text().replace("libucp.so.0 ", "libucp.so.9 ", 1)
    script.write_text(text)
    done = subprocess.run([script], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "libucp.so.9 is not there" in done.stderr
    assert "fairlead site export" in done.stderr
    assert not [p for p in (tmp_path / "stage").iterdir() if p.is_dir()]


def test_apptainer_exec_with_the_exported_variables_runs_on_the_hosts_mpi(
    tmp_path: Path, image: Path
) -> None:
    out = export("apptainer", tmp_path, "--image", image)
    run(out / "stage.sh")
    line = (
        f". {out}/environment.sh; {hosts.mpich()}/bin/mpiexec -n 2 {find_apptainer()} --quiet exec "
        f"{image} python3 -m fairlead.prove"
    )
    output = run("/bin/sh", "-euc", line)
    assert (
        "proved on 2 ranks" in output and "5.0.2 from /opt/fairlead/mpi/lib/libmpi.so.12" in output
    )
    # And the proof knows what must be there: without the bind it stops.
    gone = line.replace("; ", "; unset APPTAINER_BINDPATH; ", 1)
    done = subprocess.run(["/bin/sh", "-c", gone], capture_output=True, text=True, check=False)
    assert done.returncode == 122 and "must be mapped" in done.stdout, done.stdout + done.stderr


def _lmod(modules: Path, commands: str) -> str:
    script = f". {LMOD}\nmodule use {modules}\n{commands}"
    return run("bash", "--noprofile", "--norc", "-c", script, env={"MODULEPATH": str(modules)})


needs_lmod = pytest.mark.skipif(not LMOD.exists(), reason="no Lmod; Debian's package is lmod")


@needs_lmod
def test_lmod_loads_the_module_and_its_commands_run_in_the_image(
    tmp_path: Path, image: Path
) -> None:
    out = export(
        "lmod", tmp_path, "--image", image, "--name", "my-image/1.0", "--program", "python3",
        "--program", "/opt/app/allreduce", "--program", "printf",
    )  # fmt: skip
    output = _lmod(
        out,
        "module load my-image/1.0; module -t list 2>&1; printf '%s|' 'two words' '$HOME'; echo; "
        "FAIRLEAD_RANKS=2 python3 -m mpi4py.bench helloworld; echo $FAIRLEAD_IMAGE; "
        "module unload my-image; type python3; echo [$FAIRLEAD_IMAGE]",
    )
    assert "my-image/1.0" in output
    assert "two words|$HOME|" in output
    assert "Hello, World! I am process 1 of 2" in output
    assert f"{image}\n" in output and output.endswith("[]\n")
    assert not re.search(r"python3 is a function", output)


@needs_lmod
def test_lmod_loads_the_module_of_apptainers_variables(tmp_path: Path) -> None:
    out = export("apptainer", tmp_path)
    output = _lmod(
        out,
        "export APPTAINER_BINDPATH=/data; module load fairlead-mpi; echo $APPTAINER_BINDPATH; "
        "echo $APPTAINERENV_LD_LIBRARY_PATH; module unload fairlead-mpi; echo $APPTAINER_BINDPATH",
    )
    binds, path, after = output.splitlines()[-3:]
    assert binds.startswith("/data,") and binds.endswith(":/opt/fairlead/mpi:ro")
    assert path.startswith("/opt/fairlead/mpi/lib") and after == "/data"


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


@pytest.mark.full
def test_jupyter_lists_and_starts_the_kernel_in_the_image(
    tmp_path: Path, with_kernel: Path
) -> None:
    out = export("jupyter", tmp_path, "--image", with_kernel, "--name", "in-image")
    data = tmp_path / "data"
    shutil.copytree(out, data / "kernels")
    environ = {"JUPYTER_PATH": str(data), "JUPYTER_RUNTIME_DIR": str(tmp_path / "runtime")}
    listed = json.loads(run(BIN / "jupyter-kernelspec", "list", "--json", env=environ))
    assert listed["kernelspecs"]["in-image"]["spec"]["display_name"].startswith("Python in ")
    output = run(sys.executable, "-c", KERNEL, env=environ)
    assert "/opt/python" in output and "True" in output


def test_reframe_takes_the_site_and_its_test_passes(tmp_path: Path, image: Path) -> None:
    out = export("reframe", tmp_path, "--image", image)
    environ = {"FAIRLEAD_MPI": str(hosts.mpich()), "NO_COLOR": "1"}
    output = run(
        BIN / "reframe", "-C", "config.py", "-c", "swap_test.py", "-r", "--nocolor",
        "--prefix", tmp_path / "rfm", "--report-file", tmp_path / "report.json",
        env=environ, cwd=out,
    )  # fmt: skip
    assert re.search(r"PASSED.* 1/1 test case", output), output
    assert "until_proved" in (tmp_path / "report.json").read_text()


def test_reframe_test_fails_where_the_image_runs_on_its_own_mpi(
    tmp_path: Path, image: Path
) -> None:
    out = export("reframe", tmp_path, "--image", image)
    test = out / "swap_test.py"
    test.write_text(test.read_text().replace('"-v", ', '"-v", "--mpi", "container", '))
    done = subprocess.run(
        [BIN / "reframe", "-C", "config.py", "-c", "swap_test.py", "-r", "--prefix", tmp_path / "rfm"],
        cwd=out, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 1 and "FAILED" in done.stdout, done.stdout
    assert "pattern 'MPICH" in done.stdout and "of the host' not found" in done.stdout, done.stdout


needs_podman = pytest.mark.skipif(
    not shutil.which("podman") or os.geteuid() != 0, reason="needs root and podman"
)


def podman_hpc_programs() -> Path:
    """podman-hpc from PyPI, apart: on PATH for good it would be an engine of this machine.

    A virtual environment holds its own path, so one in a cache that was moved or copied is made anew.
    """
    made = hosts.KEPT / "podman-hpc-1.2.2"
    whole = made / "whole"
    with locked(hosts.KEPT / ".lock"):
        if not whole.exists() or whole.read_text() != str(made):
            run(sys.executable, "-m", "venv", "--clear", "--without-pip", made)
            pip = (sys.executable, "-m", "pip", "--python", made / "bin/python", "install", "-q")
            run(*pip, "podman-hpc==1.2.2")
            whole.write_text(str(made))
    return made / "bin"


@pytest.fixture(scope="module")
def podman_hpc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Variables by which a real podman-hpc works as root, with folders of its own."""
    folder = tmp_path_factory.mktemp("podman-hpc")
    (folder / "podman_hpc.yaml").write_text("use_default_args: false\n")
    (folder / "storage.conf").write_text(
        f'[storage]\ndriver = "overlay"\ngraphroot = "{folder}/root"\nrunroot = "{folder}/run"\n'
    )
    programs = podman_hpc_programs()
    with podman() as store:
        yield {
            **store.environ,
            "PATH": f"{programs}:{store.environ['PATH']}",
            "USER": "root",
            "PODMANHPC_CONFIG_FILE": str(folder / "podman_hpc.yaml"),
            "PODMANHPC_MODULES_DIR": str(folder / "modules.d"),
            "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
        }
    subprocess.run(["umount", "-l", folder / "root/overlay"], capture_output=True, check=False)


@pytest.fixture(scope="module")
def unpacked() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=scratch_parent(400 << 20)) as work:
        yield hosts.unpacked(Path(work, "image"), {})


@needs_podman
def test_podman_hpc_takes_the_module_as_the_export_prints_it(
    tmp_path: Path, unpacked: Path, podman_hpc: dict[str, str]
) -> None:
    """With podman-hpc as it is installed: none of its hooks is configured."""
    out = export("podman-hpc", tmp_path)
    run(out / "stage.sh")
    modules = Path(podman_hpc["PODMANHPC_MODULES_DIR"])
    shutil.copytree(out / "modules.d", modules)
    [module] = modules.iterdir()
    [use] = re.findall(r"^# Use: (.+) IMAGE COMMAND$", module.read_text(), re.MULTILINE)
    assert use == "podman-hpc run --fairlead-mpich-5-0-2"
    words = (
        hosts.mpich() / "bin/mpiexec", "-n", "2", podman_hpc_programs() / "podman-hpc", *use.split()[1:],
        "--rm", "--env", f"PODMANHPC_MODULES_DIR={modules}", "--env=PATH=/opt/python/bin:/usr/bin:/bin",
        "--rootfs", f"{unpacked}:O", "python3", "-m", "fairlead.prove",
    )  # fmt: skip
    output = run(*words, env=podman_hpc)
    assert (
        "proved on 2 ranks" in output and "5.0.2 from /opt/fairlead/mpi/lib/libmpi.so.12" in output
    )


@needs_podman
def test_run_starts_podman_hpc_and_proves_its_own_launch(
    unpacked: Path, podman_hpc: dict[str, str]
) -> None:
    done = hosts.fairlead(
        "run", "--engine", "podman-hpc", "-n", "2", "--mpi", hosts.mpich(), unpacked, "--",
        "/opt/python/bin/python3", "-m", "mpi4py.bench", "helloworld",
        env=podman_hpc,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Hello, World! I am process 1 of 2" in done.stdout
    assert "proved on 2 ranks" in done.stderr


@pytest.mark.skipif(not shutil.which("podman") or os.geteuid() != 0, reason="needs root and podman")
def test_hooks_of_sarus_are_read_by_a_real_reader_of_oci_hooks(
    tmp_path: Path, unpacked: Path
) -> None:
    """Podman reads hooks by the same rules; it starts the program of one whose annotations hold."""
    hooks = export("sarus", tmp_path) / "hooks.d"
    output = tmp_path / "output"
    program = tmp_path / "hook"
    program.write_text(f"#!/bin/sh\nenv >>{output}\n")
    program.chmod(0o755)
    for file in hooks.iterdir():
        file.write_text(re.sub(r'"/opt/sarus/default/bin/\w+"', f'"{program}"', file.read_text()))

    def start(*annotations: str) -> str:
        output.write_text("")
        more = [word for text in annotations for word in ("--annotation", text)]
        with podman() as store:
            store(
                "run", "--rm", "--network=host", "--hooks-dir", hooks, *more,
                "--rootfs", f"{unpacked}:O", "true",
            )  # fmt: skip
        return output.read_text()

    both = start(
        "com.hooks.mpi.enabled=true",
        "com.hooks.mpi.type=mpich-5.0.2",
        "com.hooks.glibc.enabled=true",
    )
    assert re.search(r"^MPI_LIBS=\S+/lib/libmpi\.so\.12$", both, re.MULTILINE)
    assert re.search(r"^GLIBC_LIBS=\S+libc\.so\.6", both, re.MULTILINE)
    assert start("com.hooks.mpi.enabled=true") == "", "every annotation must hold"
    (hooks / "bad.json").write_text(
        (hooks / "05-mpi-hook.json").read_text().replace("createC", "c")
    )
    with podman() as store:
        words = ("run", "--rm", "--hooks-dir", hooks, "--rootfs", f"{unpacked}:O", "true")
        assert "unknown stage" in store(*words, fails=True)


# Made by root, used by somebody else: an account of its own, with its own Apptainer, in a folder that all can read.


def shared_export(
    target: str, user: User, *more: str | Path, image: Path | None = None, umask: int = 0o022
) -> Path:
    """The export that root makes for everybody, and what its script stages."""
    out = user.shared / f"export-{target}"
    # Sarus Suite starts images of Podman's store, and no files.
    named = () if target == "sarus-suite" else ("--image", image or user.image)
    before = os.umask(umask)
    try:
        done = hosts.fairlead(
            "site", "export", "--for", target, "--mpi", user.shared / "mpich", "--stage",
            user.shared / "stage", "-o", out, *named, *more,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        if (out / "stage.sh").exists():
            run(out / "stage.sh")
    finally:
        os.umask(before)
    return out


def engine_of(kind: str, user: User) -> dict[str, str]:
    """A stand-in on the user's PATH, and its variables."""
    program = user.shared / "engines" / kind
    program.parent.mkdir(exist_ok=True)
    text = Path(__file__).with_name("standin.py").read_text()
    program.write_text(f"#!{PYTHON} -I\n{text}")
    program.chmod(0o755)
    return {
        "PATH": f"{program.parent}:/usr/bin:/bin",
        "STANDIN_APPTAINER": f"{user.shared}/fairlead/apptainer/current/bin/apptainer",
        "STANDIN_SRUN": f"{user.shared}/mpich/bin/mpiexec",
    }


def words_of(variables: Mapping[str, str]) -> list[str]:
    return ["env", *(f"{name}={value}" for name, value in variables.items())]


def with_fairlead(user: User) -> str:
    """PATH with a `fairlead` that a user can start."""
    programs = user.shared / "bin"
    programs.mkdir(exist_ok=True)
    (programs / "fairlead").write_text(f'#!/bin/sh\nexec {PYTHON} -m fairlead "$@"\n')
    (programs / "fairlead").chmod(0o755)
    return f"PATH={programs}:/usr/bin:/bin"


@pytest.mark.full
def test_jupyter_kernel_of_roots_export_starts_for_a_user(user: User, with_kernel: Path) -> None:
    image = user.shared / "kernel.squashfs"
    image.unlink(missing_ok=True)
    shutil.copy(with_kernel, image)
    image.chmod(0o644)
    out = shared_export("jupyter", user, "--name", "in-image", image=image)
    folder = user.home / "kernels"
    program = f'mkdir -p {folder} && cp -r {out} {folder}/kernels && exec {PYTHON} -c "$KERNEL"'
    done = user.run(
        "env",
        with_fairlead(user),
        f"JUPYTER_PATH={folder}",
        f"KERNEL={KERNEL}",
        "sh",
        "-c",
        program,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "/opt/python" in done.stdout and "True" in done.stdout


def proved_by(done: subprocess.CompletedProcess[str]) -> None:
    assert done.returncode == 0, done.stdout + done.stderr
    assert "proved on 2 ranks" in done.stdout, done.stdout + done.stderr
    assert "5.0.2 from /opt/fairlead/mpi/lib/libmpi.so.12" in done.stdout


# Each of these starts the program that it is for; in CI one of them does.
@pytest.mark.parametrize(
    "target",
    [
        pytest.param(name, marks=pytest.mark.full) if name in ("apptainer", "reframe") else name
        for name in sorted(TARGETS.names())
    ],
)
def test_export_of_every_kind_can_be_read_by_a_user_whatever_roots_umask_is(
    target: str, user: User, request: pytest.FixtureRequest
) -> None:
    mine = None
    if target == "jupyter":
        mine = user.shared / "kernel.squashfs"
        hosts.same_file(request.getfixturevalue("with_kernel"), mine)
        mine.chmod(0o644)
    shutil.rmtree(user.shared / "stage", ignore_errors=True)
    shutil.rmtree(user.shared / f"export-{target}", ignore_errors=True)
    out = shared_export(target, user, image=mine, umask=0o077)
    places = [out, *filter(Path.exists, [user.shared / "stage"])]
    hidden = user.run("find", *places, "!", "-readable", "-o", "-type", "d", "!", "-executable")
    assert (hidden.returncode, hidden.stdout, hidden.stderr) == (0, "", "")
    for file in filter(Path.is_file, out.rglob("*")):
        for named in re.findall(r"(?<![\w/.$}])(/[\w./-]+)", file.read_text()):
            assert named.startswith(("/opt/app", "/proc", "/dev")) or not audience.closed(named), (
                f"{file}: {named}"
            )


def test_enroot_export_made_by_root_proves_the_launch_of_a_user(user: User) -> None:
    out = shared_export("enroot", user)
    own = user.home / ".config/enroot"
    done = user.run(
        "sh", "-c", f"mkdir -p {own} && cp -r {out}/environ.d {out}/mounts.d {out}/hooks.d {own}"
    )
    assert done.returncode == 0, done.stderr
    proved_by(
        user.run(
            *words_of(engine_of("enroot", user)),
            user.shared / "mpich/bin/mpiexec",
            "-n",
            "2",
            "enroot",
            "start",
            user.image,
            "/opt/python/bin/python3",
            "-m",
            "fairlead.prove",
        )
    )


def test_environment_of_the_container_engine_made_by_root_proves_the_launch_of_a_user(
    user: User,
) -> None:
    out = shared_export("ce", user)
    [edf] = out.glob("*.toml")
    # The engine has one user namespace a node, the stand-in one a rank: no rank reads another's memory there.
    apart = {"MPIR_CVAR_CH4_CMA_ENABLE": "0"}
    proved_by(
        user.run(
            *words_of(engine_of("srun", user) | apart),
            "srun",
            "-n",
            "2",
            f"--environment={edf}",
            "/opt/python/bin/python3",
            "-m",
            "fairlead.prove",
        )
    )


def test_apptainer_export_made_by_root_proves_the_launch_of_a_user(user: User) -> None:
    """Each of the user's ranks is in a namespace of its own, and none of root's is."""
    out = shared_export("apptainer", user)
    apptainer = user.shared / "fairlead/apptainer/current/bin/apptainer"
    done = user.run(
        "/bin/sh", "-euc",
        f". {out}/environment.sh; {user.shared}/mpich/bin/mpiexec -n 2 {apptainer} --quiet exec "
        f"{user.image} python3 -m fairlead.prove",
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "proved on 2 ranks" in done.stdout and "/opt/fairlead/mpi/lib/" in done.stdout


@pytest.mark.parametrize("target", ["lmod", "reframe"])
def test_export_names_nothing_that_only_its_maker_can_read_and_works_for_a_user(
    target: str, user: User, image: Path, tmp_path: Path
) -> None:
    closed = tmp_path / "closed"  # pytest's own folder is for its user alone
    closed.mkdir(mode=0o700)
    mine = closed / "mine.squashfs"
    hosts.same_file(image, mine)
    refused = hosts.fairlead(
        "site", "export", "--for", target, "--mpi", hosts.mpich(), "--image", mine, "-o", tmp_path / "x",
    )  # fmt: skip
    assert refused.returncode == 121 and "export-private" in refused.stderr, refused.stderr
    assert "others may not enter" in refused.stderr and "--private" in refused.stderr
    assert not (tmp_path / "x").exists()
    more = ("--program", "/opt/app/allreduce") if target == "lmod" else ()
    out = shared_export(target, user, *more)
    text = "".join(file.read_text() for file in out.rglob("*") if file.is_file())
    assert str(Path.home()) not in text and str(hosts.KEPT) not in text
    for named in re.findall(r"(?<![\w/.])(/[\w./-]+)", text):
        if Path(named).exists() and not named.startswith("/opt/app"):
            assert not audience.closed(named), named
    # Where the maker's own fairlead is closed, `fairlead` is what the user's PATH has.
    path = with_fairlead(user)
    if target == "lmod":
        [line] = re.findall(
            r'^set_shell_function\("allreduce", \[=\[(.*?)\]=\]', text, re.MULTILINE
        )
        done = user.run("env", path, "FAIRLEAD_RANKS=2", "bash", "-c", line)
        assert done.returncode == 0, done.stdout + done.stderr
        assert set(hosts.ranks_of(done.stdout)) == {0, 1}
        return
    # The copy of the packages leaves out what begins with `pip`, as ReFrame's pipeline does.
    own = user.shared / "reframe"
    shutil.copytree(Path(sysconfig.get_path("purelib"), "reframe"), own / "reframe")
    code = user.shared / "code"
    done = user.run(
        "env", path, f"PYTHONPATH={own}:{code}:{code}/packages", "sh", "-c",
        f"cd {out} && exec {PYTHON} -c 'from reframe.frontend.cli import main; main()' -C config.py -c swap_test.py -r --nocolor --prefix $HOME/rfm "
        "--report-file $HOME/report.json",
    )  # fmt: skip
    assert re.search(r"PASSED.* 1/1 test case", done.stdout), done.stdout + done.stderr
