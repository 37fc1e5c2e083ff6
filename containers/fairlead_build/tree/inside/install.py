"""Installs the locked wheels into a tree that has only Debian packages yet.

Runs inside the tree, under Debian's Python, without network. Reads ``STAGE/plan.json``:
``{"python": PREFIX, "mpi": PREFIX or "", "bytes": of all files}``, and
``STAGE/{python,mpi,build,installer}/``, each with its wheels and a ``requirements.txt`` of hashes.
Tells how far it is on stderr. With a folder as argument, it installs the wheels there and no other.
"""

import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

STAGE = Path("/.fairlead-stage")


def say(*words: object) -> None:
    print("fairlead-", "\t".join(map(str, words)), sep="", file=sys.stderr, flush=True)


def main() -> None:
    plan = json.loads((STAGE / "plan.json").read_text("utf-8"))
    prefix = Path(plan["python"])
    python = prefix / "bin" / "python3"
    if len(sys.argv) > 1:
        names = [wheel.name.split("-")[:2] for wheel in Path(sys.argv[1]).glob("*.whl")]
        install(python, Path(sys.argv[1]), [f"{name}=={version}" for name, version in names])
        return
    say("stage", "install wheels", plan["bytes"], "B")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", prefix], check=True)
    for script in (*(prefix / "bin").glob("activate*"), *(prefix / "bin").glob("Activate*")):
        script.unlink()
    for role in ("python", "build"):
        install(python, STAGE / role, locked(role))
    if plan["mpi"]:
        options = ["--prefix", plan["mpi"], "--ignore-installed"]
        install(python, STAGE / "mpi", locked("mpi") + options)
        use_mpi(Path(plan["mpi"]))
    compile_all(prefix, plan["mpi"])


def locked(role: str) -> list[str]:
    """pip's options for the wheels of a role, each with its hash."""
    pins = STAGE / role / "requirements.txt"
    return ["--require-hashes", "-r", str(pins)] if pins.read_text("utf-8").strip() else []


def install(python: Path, folder: Path, what: list[str]) -> None:
    """pip, run from its own wheel: it is needed here and nowhere else."""
    if not what:
        return
    installer = next((STAGE / "installer").glob("pip-*.whl"))
    argv: list[str | Path] = [
        python, "-I", installer / "pip", "install", "--no-index", "--find-links", folder,
        "--no-deps", "--no-compile", "--no-cache-dir", "--quiet", "--root-user-action=ignore",
        "--disable-pip-version-check", *what,
    ]  # fmt: skip
    process = subprocess.Popen(argv, env={**os.environ, "HOME": "/nonexistent"})
    reported = 0
    while True:
        with suppress(subprocess.TimeoutExpired):
            code = process.wait(0.3)
            if code:
                sys.exit(code)
            return
        # What pip has written so far: it says nothing of its own while it unpacks a large wheel.
        with suppress(OSError, ValueError, IndexError):
            counters = Path("/proc", str(process.pid), "io").read_text("utf-8").split("wchar:")[1]
            written = int(counters.split()[0])
            say("advance", written - reported)
            reported = written


def use_mpi(prefix: Path) -> None:
    """Puts the MPI on the loader's default path, behind whatever LD_LIBRARY_PATH names."""
    conf = Path("/etc/ld.so.conf.d/fairlead-mpi.conf")
    conf.write_text(f"{prefix}/lib\n", "utf-8")
    conf.chmod(0o644)
    subprocess.run(["ldconfig"], check=True)


def compile_all(prefix: Path, mpi: str) -> None:
    """All .pyc of the wheels; Debian's own were compiled with its packages."""
    say("stage", "compile Python modules", 0, "")
    script = Path(__file__).with_name("bytecode.py")
    folders = [str(prefix), *([mpi] if mpi else [])]
    subprocess.run([sys.executable, "-I", script, *folders], check=True)


main()
