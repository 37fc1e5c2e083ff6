"""Installs the locked wheels into a tree that has only Debian packages yet.

Runs inside the tree, under Debian's Python, without network. Reads ``STAGE/plan.json``:
``{"python": PREFIX, "mpi": PREFIX or ""}``, and ``STAGE/{python,mpi,installer}/``, each with its
wheels and a ``requirements.txt`` of hashes. Tells how far it is on stderr.
"""

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

STAGE = Path("/.fairlead-stage")


def say(words: str) -> None:
    print(f"fairlead-{words}", file=sys.stderr, flush=True)


def main() -> None:
    say("wheels 0")
    plan = json.loads((STAGE / "plan.json").read_text())
    prefix = Path(plan["python"])
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", prefix], check=True)
    for script in (*(prefix / "bin").glob("activate*"), *(prefix / "bin").glob("Activate*")):
        script.unlink()
    python = prefix / "bin" / "python3"
    install(python, "python", prefix, [])
    if plan["mpi"]:
        install(python, "mpi", Path(plan["mpi"]), ["--prefix", plan["mpi"], "--ignore-installed"])
        use_mpi(Path(plan["mpi"]))
    compile_all(prefix, plan["mpi"])


def install(python: Path, role: str, prefix: Path, options: list[str]) -> None:
    """pip, run from its own wheel: it is needed here and nowhere else."""
    installer = next((STAGE / "installer").glob("pip-*.whl"))
    argv: list[str | Path] = [
        python, "-I", installer / "pip", "install", "--no-index", "--find-links", STAGE / role,
        "--no-deps", "--no-compile", "--no-cache-dir", "--require-hashes", "--quiet",
        "--root-user-action=ignore", "--disable-pip-version-check",
        "-r", STAGE / role / "requirements.txt", *options,
    ]  # fmt: skip
    done = threading.Event()

    def watch() -> None:
        seen = 0
        while True:
            over = done.wait(0.5)
            now = len(list(prefix.glob("lib/python3*/site-packages/*.dist-info")))
            if now != seen:
                say(f"wheels {now - seen}")
                seen = now
            if over:
                return

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        subprocess.run(argv, check=True, env={**os.environ, "HOME": "/nonexistent"})
    finally:
        done.set()
        thread.join()


def use_mpi(prefix: Path) -> None:
    """Puts the MPI on the loader's default path, behind whatever LD_LIBRARY_PATH names."""
    conf = Path("/etc/ld.so.conf.d/fairlead-mpi.conf")
    conf.write_text(f"{prefix}/lib\n")
    conf.chmod(0o644)
    subprocess.run(["ldconfig"], check=True)


def compile_all(prefix: Path, mpi: str) -> None:
    """All .pyc anew: Debian's own hold time stamps and were made in no fixed order."""
    folders = [
        f"/usr/lib/python{sys.version_info.major}.{sys.version_info.minor}",
        "/usr/lib/python3",
        str(prefix),
    ]
    if mpi:
        folders.append(mpi)
    for folder in folders:
        for cache in Path(folder).rglob("__pycache__"):
            shutil.rmtree(cache)
    say("compiling")
    subprocess.run(
        [sys.executable, "-I", Path(__file__).with_name("bytecode.py"), *folders], check=True
    )


main()
