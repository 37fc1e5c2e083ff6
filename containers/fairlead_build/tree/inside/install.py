"""Installs the locked wheels into a tree that has only Debian packages yet.

Runs inside the tree, under Debian's Python, without network. Reads ``STAGE/plan.json``:
``{"python": PREFIX, "mpi": PREFIX or "", "bytes": of all files}``, and
``STAGE/{python,mpi,build,installer}/``, each with its wheels and a ``requirements.txt`` of hashes.
Tells how far it is on stderr. With a folder as argument, it installs the wheels there and no other.
"""

import json
import os
import re
import subprocess
import sys
import zipfile
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
        what = [f"{name}=={version}" for name, version in names]
        install(python, [["--find-links", sys.argv[1], *what]])
        return
    say("stage", "install wheels", plan["bytes"], "B")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", prefix], check=True)
    for script in (*(prefix / "bin").glob("activate*"), *(prefix / "bin").glob("Activate*")):
        script.unlink()
    own = ["--prefix", plan["mpi"], "--ignore-installed"] if plan["mpi"] else []
    mpi = [[*words, *own] for words in locked("mpi")] if own else []
    install(python, locked("python") + mpi)
    install(python, locked("build"))
    if plan["mpi"]:
        use_mpi(Path(plan["mpi"]))
    compile_all(prefix, plan["mpi"])


def locked(role: str) -> list[list[str]]:
    """pip's options for the wheels of a role, each with its hash; a list for each pip.

    A large wheel is unpacked next to the others: inflating it is the work of one core for most of the time.
    """
    folder = STAGE / role
    pins = (folder / "requirements.txt").read_text("utf-8").splitlines()
    if not pins:
        return []
    alone = largest(list(folder.glob("*.whl")))
    split: tuple[list[str], list[str]] = ([], [])
    for pin in pins:
        split[normal(pin.split("==")[0]) == alone].append(pin)
    options = []
    for number, part in enumerate(filter(None, split)):
        file = Path(f"/tmp/requirements-{role}-{number}.txt")
        file.write_text("".join(f"{pin}\n" for pin in part), "utf-8")
        options.append(["--find-links", str(folder), "--require-hashes", "-r", str(file)])
    return options


def largest(wheels: list[Path]) -> str:
    """The package of the largest wheel, if none of the others has a file of its; else "" ."""
    *others, last = sorted(wheels, key=lambda wheel: wheel.stat().st_size)
    names = set(zipfile.ZipFile(last).namelist())
    if any(names & set(zipfile.ZipFile(other).namelist()) for other in others):
        return ""
    return normal(last.name.split("-")[0])


def normal(name: str) -> str:
    """Source: PEP 503."""
    return re.sub(r"[-_.]+", "-", name).lower()


def install(python: Path, parts: list[list[str]]) -> None:
    """pip, run from its own wheel: it is needed here and nowhere else. Once for each of ``parts``, at once."""
    installer = next((STAGE / "installer").glob("pip-*.whl"))
    argv: list[str | Path] = [
        python, "-I", installer / "pip", "install", "--no-index", "--no-deps", "--no-compile",
        "--no-cache-dir", "--quiet", "--root-user-action=ignore", "--disable-pip-version-check",
    ]  # fmt: skip
    environ = {**os.environ, "HOME": "/nonexistent"}
    running = [subprocess.Popen([*argv, *part], env=environ) for part in parts]
    reported = {process.pid: 0 for process in running}
    codes = []
    while running:
        with suppress(subprocess.TimeoutExpired):
            codes.append(running[0].wait(0.3))
            running.pop(0)
        for process in running:
            # What pip has written so far: it says nothing of its own while it unpacks a large wheel.
            with suppress(OSError, ValueError, IndexError):
                counters = Path("/proc", str(process.pid), "io").read_text("utf-8")
                written = int(counters.split("wchar:")[1].split()[0])
                say("advance", written - reported[process.pid])
                reported[process.pid] = written
    if any(codes):
        sys.exit(next(filter(None, codes)))


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
