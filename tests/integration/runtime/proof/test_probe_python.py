"""By which Python, and by which MPI, the probe job looks for the cause of a failure."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.compiled import image_tree
from tests.support.recorded import OPENMPI, host, planned

from fairlead.elf.facts import AbiFamily
from fairlead.image.scan import scan_tree
from fairlead.proof.probe_job import _python, _via


@pytest.mark.parametrize(
    ("command", "python", "via"),
    [
        (("/venv/bin/python3", "x.py"), "/venv/bin/python3", "dlopen"),
        (("/usr/bin/python3", "x.py"), "/usr/bin/python3", "mpi4py"),
        (("/opt/app/bundle",), "python3", "mpi4py"),
        (("/opt/app/c",), "python3", "dlopen"),
    ],
)
def test_probe_has_the_commands_python_and_the_mpi4py_of_that(
    command: tuple[str, ...], python: str, via: str, tmp_path: Path
) -> None:
    tree = image_tree(tmp_path / "root")
    (tree / "opt/app/bundle").write_bytes((tree / "usr/bin/dash").read_bytes())
    (tree / "opt/app/bundle").chmod(0o755)
    plan = planned(
        scan_tree(tree),
        host("openmpi-5.0.11"),
        launcher=OPENMPI,
        family=AbiFamily.OPENMPI,
        command=command,
    )
    assert (_python(plan), _via(plan, python, "")) == (python, via)


def test_probe_needs_no_mpi4py_where_only_a_bundle_has_it(tmp_path: Path) -> None:
    tree = image_tree(tmp_path / "root")
    bundle = tree / "opt/bundle/_internal/mpi4py"
    bundle.parent.mkdir(parents=True)
    (tree / "usr/lib/python3/dist-packages/mpi4py").rename(bundle)
    (bundle.parent.parent / "app").write_bytes((tree / "usr/bin/dash").read_bytes())
    (bundle.parent.parent / "app").chmod(0o755)
    facts = scan_tree(tree)
    plan = planned(
        facts,
        host("openmpi-5.0.11"),
        launcher=OPENMPI,
        family=AbiFamily.OPENMPI,
        command=("/opt/bundle/app",),
    )
    assert any("/mpi4py/MPI." in elf.path for elf in plan.consumers)
    assert _via(plan, "python3", "") == "dlopen"
