"""What the wrappings of an image say, and what they refuse; no image is made here."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from fairlead.base.errors import ExitCode, FairleadError
from fairlead.base.progress import Silent
from fairlead.cli.declare import OUTPUT
from fairlead.elf.mpi_standard import edition_of, standard_floor
from fairlead.image.packages import frameworks
from fairlead_build.formats import registry, sandbox
from fairlead_build.formats.shifter import meta
from fairlead_build.formats.wrapping import Wrapping
from fairlead_build.tools import tool_tree

WRAPPING = Wrapping(
    name="mpi-base",
    summary="",
    version="0.1.0",
    architecture="amd64",
    epoch=1783764997,
    env={"PATH": "/opt/python/bin:/usr/bin", "A": "b: c=#d 'e' \"f\"", "EMPTY": ""},
    labels={},
    python="opt/python",
    site="opt/python/lib/python3.11/site-packages",
    added=("opt", "srv", "usr/local", "usr/share/mine"),
    digests={},
)


def parsed(text: str) -> dict[str, list[str]]:
    """``.meta`` as Shifter reads it (NERSC/shifter, src/utility.c, shifter_parseConfig)."""
    found: dict[str, list[str]] = {}
    value, joined = "", False
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        if not joined:
            key, colon, line = line.partition(":")
            if not colon:
                continue
            key, value = key.strip(), ""
        line = line.strip()
        joined = line.endswith("\\")
        value = f"{value} {line.removesuffix(chr(92)).strip()}".strip()
        if not joined:
            found.setdefault(key, []).append(value)
    return found


def test_shifter_meta_read_back_has_every_variable_and_the_command() -> None:
    shown = parsed(meta(WRAPPING))
    assert shown["FORMAT"] == ["squashfs"]
    assert dict(line.split("=", 1) for line in shown["ENV"]) == dict(WRAPPING.env)
    assert ast.literal_eval(shown["CMD"][0]) == ["/bin/bash"] and '"' not in shown["CMD"][0]
    assert shown["WORKDIR"] == ["/"] and "ENTRY" not in shown


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"env": {"A": "two\nlines"}}, "a line break in the value ends the line"),
        ({"env": {"A": "path\\"}}, "a trailing backslash joins the next line"),
        ({"env": {"A": "padded \t"}}, "Shifter strips trailing spaces"),
        ({"command": ("echo", "it's")}, "a quote always ends a word"),
    ],
)
def test_shifter_value_that_meta_cannot_hold_is_refused(
    change: dict[str, object], why: str
) -> None:
    with pytest.raises(FairleadError) as caught:
        meta(replace(WRAPPING, **change))  # type: ignore[arg-type]
    (finding,) = caught.value.findings
    assert finding.check == "shifter-value" and why in finding.why
    assert "mpi-base" in finding.where


@pytest.mark.parametrize(
    ("path", "part"),
    [
        (".", 0),
        ("usr", 0),
        ("usr/bin/perl", 0),
        ("etc/ld.so.conf.d/x86_64-linux-gnu.conf", 0),
        ("etc/ld.so.conf.d/fairlead-mpi.conf", 1),
        ("etc/ld.so.cache", 1),
        ("opt", 1),
        ("optional", 0),
        ("opt/mpich/lib/libmpi.so.12", 1),
        ("usr/share/mine/data", 1),
        ("opt/python/lib/python3.11/site-packages/numpy/__init__.py", 1),
        ("opt/python/lib/python3.11/site-packages/fairlead/__init__.py", 2),
        ("opt/python/lib/python3.11/site-packages/fairlead_build", 2),
        ("opt/python/lib/python3.11/site-packages/fairlead-0.1.0.dist-info/METADATA", 2),
        ("opt/python/lib/python3.11/site-packages/fairlead_extras/x.py", 1),
        ("opt/python/bin/fairlead", 2),
        ("opt/python/bin/python3", 1),
        (".fairlead/image.json", 2),
        (".singularity.d", 2),
    ],
)
def test_part_of_an_image_follows_from_the_path(path: str, part: int) -> None:
    assert WRAPPING.part(path) == part


def test_formats_are_each_taken_once_and_unknown_ones_refused(tmp_path: Path) -> None:
    for output in (None, tmp_path):
        selected = registry.chosen(["oci", "sif", "oci"], output)
        assert [form.name for form in selected] == ["oci", "sif"]
    with pytest.raises(FairleadError, match="no image format `ocl`") as caught:
        registry.chosen(["ocl"], None)
    assert caught.value.code == ExitCode.USAGE and "oci" in caught.value.findings[0].why
    with pytest.raises(FairleadError, match="2 formats cannot be written to one file"):
        registry.chosen(["oci", "sif"], tmp_path / "one.sif")


def test_output_that_ends_in_a_slash_is_a_folder(tmp_path: Path) -> None:
    """As in the verb's own example, in a folder that has no `images` yet."""
    for _ in range(2):
        folder = OUTPUT.convert(f"{tmp_path}/new ones/images/", None, None)
        assert folder == tmp_path / "new ones/images" and folder.is_dir()
    assert not OUTPUT.convert(f"{tmp_path}/image", None, None).exists()


@pytest.mark.parametrize(
    ("function", "edition"),
    [
        ("MPI_Send", "2.2"),
        ("MPI_Send_init", "2.2"),
        ("mpi_bcast_", "2.2"),
        ("MPI_Comm_c2f", "2.2"),
        ("PMPI_Ibcast", "3.0"),
        ("MPI_Win_allocate_shared", "3.0"),
        ("MPI_Aint_add", "3.1"),
        ("MPI_Bcast_init", "4.0"),
        ("mpi_reduce_scatter_block_init_", "4.0"),
        ("MPI_Send_c", "4.0"),
        ("MPI_Session_init", "4.0"),
        ("MPI_Comm_attach_buffer_c", "4.1"),
        ("MPI_Get_hw_resource_info", "4.1"),
        ("MPI_Abi_get_version", "5.0"),
        ("MPI_Comm_toint", "5.0"),
    ],
)
def test_edition_of_a_function_is_that_of_the_standard(function: str, edition: str) -> None:
    assert edition_of(function) == edition


def test_standard_floor_is_the_newest_edition_called() -> None:
    assert standard_floor(["MPI_Send", "MPI_Mprobe", "MPI_Aint_diff"]) == "3.1"
    assert standard_floor([]) == ""


def test_frameworks_are_known_by_their_common_names() -> None:
    wheels = {"tensorflow_cpu": "2.21.0", "Keras": "3.13.1", "numpy": "2.4.1"}
    assert frameworks(wheels) == {"keras": "3.13.1", "tensorflow": "2.21.0"}


def test_sandbox_that_does_not_fit_names_the_folder_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the cache nor TMPDIR is full."""

    @contextmanager
    def as_it_is(image: Path) -> Iterator[Path]:
        yield image

    full = ["sh", "-c", "echo No space left on device >&2; exit 1"]
    monkeypatch.setattr(sandbox, "bare_squashfs", as_it_is)
    monkeypatch.setattr(tool_tree, "command", lambda name: full)
    work = tmp_path / "images/.work"
    work.mkdir(parents=True)
    with pytest.raises(FairleadError) as caught:
        sandbox.unpack(tmp_path / "image.squashfs", work / "new", Silent())
    assert caught.value.findings[0].check == "no-space"
    assert caught.value.findings[0].where == str(tmp_path / "images")
