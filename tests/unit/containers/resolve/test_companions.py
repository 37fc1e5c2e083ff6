"""Wheels compiled against another variant of what they require are found by the libraries they need."""

from __future__ import annotations

import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest

from fairlead_build.resolve.companions import _SYSTEM, without_their_libraries


def wheel(folder: Path, name: str, requires: str = "", **members: bytes) -> Path:
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(
            f"{name}-1.0.dist-info/METADATA", f"Name: {name}\nVersion: 1.0\n{requires}\n"
        )
        for member, content in members.items():
            archive.writestr(f"{name}/{member}.so", content)
    return path


@pytest.mark.skipif(shutil.which("gcc") is None, reason="compiles a library")
def test_wheel_compiled_for_another_variant_is_named_with_its_libraries(tmp_path: Path) -> None:
    empty = tmp_path / "x.c"
    empty.write_text("int x;\n")

    def library(name: str, *needs: Path) -> Path:
        made = tmp_path / f"{name}.so"
        argv = ["gcc", "-shared", "-Wl,--no-as-needed", f"-Wl,-soname,{name}.so", "-o", made, empty]
        subprocess.run([*argv, *needs], check=True)
        return made

    base, cuda = library("libtorch_cpu"), library("libtorch_cuda")
    module = library("_C", base, cuda).read_bytes()
    files = {
        "torch": wheel(tmp_path, "torch", libtorch_cpu=base.read_bytes()),
        "torchvision": wheel(tmp_path, "torchvision", "Requires-Dist: torch==2.0", _C=module),
        "other": wheel(tmp_path, "other", "Requires-Dist: torch; extra == 'x'", _C=module),
        "damaged": tmp_path / "none.whl",
    }
    assert without_their_libraries(files, {"torch"}) == {"torchvision": ("libtorch_cuda.so",)}
    assert without_their_libraries(files, {"torch", "torchvision"}) == {}
    files["torch"] = wheel(
        tmp_path, "torch", libtorch_cpu=base.read_bytes(), libtorch_cuda=cuda.read_bytes()
    )
    assert without_their_libraries(files, {"torch"}) == {}


@pytest.mark.parametrize(
    ("name", "system"),
    [
        ("libc.so.6", True),
        ("ld-linux-x86-64.so.2", True),
        ("libstdc++.so.6", True),
        ("libcuda.so.1", True),
        ("libpython3.11.so.1.0", True),
        ("libcudart.so.12", False),
        ("libc10_cuda.so", False),
        ("libmpi.so.12", False),
    ],
)
def test_library_of_the_system_is_not_that_of_a_wheel(name: str, system: bool) -> None:
    assert bool(_SYSTEM.match(name)) is system
