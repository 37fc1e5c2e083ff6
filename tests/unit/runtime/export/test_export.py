"""Exports from recorded facts: each trap of each format, and what every export keeps to."""

from __future__ import annotations

import ast
import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from tests import grammars
from tests.support import recorded
from tests.support.json_schema import mistakes, validates
from tests.unit.runtime.detect.test_capture import taken
from traitlets.config import Config

import fairlead
from fairlead.base.errors import ExitCode, FairleadError
from fairlead.cli.main import main
from fairlead.detect import capture
from fairlead.detect.model import EngineFact
from fairlead.elf.facts import Elf
from fairlead.engines.registry import ENGINES
from fairlead.export import TARGETS, audience, export, gather, podman_hpc, shifter, write
from fairlead.export.lmod import lua
from fairlead.export.model import ExportFile, Facts
from fairlead.export.staged import moved, staged
from fairlead.image.open import Image
from fairlead.image.packages import Installed, Package
from fairlead.site.model import Environment, Gpu, MpiHere
from fairlead.site.resolved_paths import Here

IMAGE = Image(
    "mpi-base", "/images/mpi-base.squashfs", "squashfs", 1, "", False, recorded.image(),
    {"env": {"PATH": "/opt/python/bin:/usr/bin"}, "packages": {"wheel": {"ipykernel": "7.0"}}},
)  # fmt: skip
FACTS = Facts(
    site=recorded.SITE, node="login1", host=recorded.host(), image=IMAGE, programs=("python3",)
)
ARIES = Here(binds=("/var/opt/cray/alps", "/etc/opt/cray/wlm_detect"), absent=("/opt/cray/none*",))


def made(target: str, facts: Facts = FACTS) -> dict[str, ExportFile]:
    return {file.path: file for file in export(target, facts)}


def refusal(target: str, facts: Facts, check: str = "export-value") -> str:
    with pytest.raises(FairleadError) as caught:
        export(target, facts)
    (finding,) = caught.value.findings
    assert finding.check == check and finding.remedy
    return f"{finding.what}; {finding.why}"


def with_variables(**values: str) -> Facts:
    return replace(FACTS, site=replace(FACTS.site, environment=Environment(set=values)))


@pytest.mark.parametrize("target", TARGETS.names())
@pytest.mark.parametrize("host", recorded.HOSTS)
def test_every_target_is_a_pure_function_of_facts(target: str, host: str) -> None:
    facts = replace(FACTS, host=recorded.host(host))
    try:
        first = export(target, facts)
    except FairleadError as exc:  # this image cannot run on every MPI
        assert exc.code in (ExitCode.PREFLIGHT_REFUSED, ExitCode.USAGE)
        return
    assert export(target, facts) == first
    for file in first:
        path = PurePosixPath(file.path)
        assert not path.is_absolute() and ".." not in path.parts and file.goes
        assert file.text.endswith("\n") and "@" not in re.sub(r"\S*@\S*|\"\$@\"", "", file.text)
        assert bool(file.mode & 0o111) == file.text.startswith("#!")


@pytest.mark.parametrize("target", ["shifter", "podman-hpc", "sarus", "enroot", "apptainer", "ce"])
def test_without_an_image_an_export_serves_every_image(target: str) -> None:
    files = made(target, replace(FACTS, image=None))
    assert "libmpi.so.12" in files["stage.sh"].text


@pytest.mark.parametrize("target", ["lmod", "jupyter", "reframe"])
def test_target_for_the_programs_of_an_image_asks_for_one(target: str) -> None:
    refusal(target, replace(FACTS, image=None), "export-image")


@pytest.mark.parametrize("target", ["shifter", "podman-hpc", "sarus", "enroot", "apptainer", "ce"])
def test_machine_without_an_mpi_has_nothing_to_export(target: str) -> None:
    refusal(target, replace(FACTS, host=None), "host-mpi")


def test_machine_that_is_not_of_the_site_exports_no_mpi_of_its_own_for_it() -> None:
    shown = refusal("shifter", replace(FACTS, against=("srun is not on PATH",)), "export-site")
    assert "srun is not on PATH" in shown
    # What needs no MPI of the site can be made anywhere.
    assert made("jupyter", replace(FACTS, against=("srun is not on PATH",)))


def test_staged_folder_elsewhere_has_another_name_and_its_own_search_path() -> None:
    plain = staged(replace(FACTS, host=recorded.host("openmpi-5.0.11"), image=None), "apptainer")
    there = moved(plain.staging, "/elsewhere")
    assert there.key != plain.staging.key
    assert [f.source for f in there.files] == [f.source for f in plain.staging.files]
    assert "/opt/fairlead" not in "".join(f.rpath for f in there.files)


@pytest.mark.parametrize("folder", ["/a b", "/a'b", "/a$b", "/a;b", "/a\nb"])
def test_folder_that_needs_quotes_is_refused(folder: str) -> None:
    with pytest.raises(FairleadError) as caught:
        export("apptainer", replace(FACTS, stage_root=folder))
    assert caught.value.findings[0].check == "export-value"


# Shifter


def as_shifter_reads(text: str) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """Keys and modules, by the rules of its parser, written down here once more."""
    keys: dict[str, str] = {}
    modules: dict[str, dict[str, str]] = {}
    for line in text.splitlines():
        if line.startswith("#") or "=" not in line:
            continue
        key, _, value = line.partition("=")
        assert not value.endswith("\\") and value.strip()
        if key.startswith("module_"):
            _, name, part, *_ = [word for word in key.split("_") if word]
            modules.setdefault(name, {})[part] = value.strip()
        else:
            keys[key.strip()] = value.strip()
    return keys, modules


def test_shifter_module_is_read_as_it_is_meant() -> None:
    files = made("shifter", replace(FACTS, here=ARIES))
    _, modules = as_shifter_reads(files["module.conf"].text)
    module = modules.pop("mpich-5.0.2")
    assert not modules
    # By letter: `copypath`, as in Shifter's own example, would be ignored.
    assert set(module) == {"copyPath", "siteFs", "siteEnvPrepend", "siteEnv"}
    assert module["copyPath"].startswith("/opt/fairlead/stage/mpich-5.0.2-")
    name, _, path = module["siteEnvPrepend"].partition("=")
    assert name == "LD_LIBRARY_PATH" and path.startswith("/opt/udiImage/modules/mpich-5.0.2/lib")
    assert all(re.fullmatch(r"[A-Z_0-9]+=\S+", word) for word in module["siteEnv"].split(" "))
    assert (
        "FAIRLEAD_EXPECTS=/opt/udiImage/modules/mpich-5.0.2/lib/libmpi.so.12" in module["siteEnv"]
    )
    assert module["siteFs"] == (
        "/var/opt/cray/alps:/var/opt/cray/alps:rec;"
        "/etc/opt/cray/wlm_detect:/etc/opt/cray/wlm_detect:rec"
    )
    assert (
        "# Not on login1, though its profile names it: /opt/cray/none*" in files["module.conf"].text
    )


def test_shifter_makes_deep_folders_by_a_hook_that_is_a_script() -> None:
    files = made("shifter", replace(FACTS, here=ARIES))
    keys, _ = as_shifter_reads(files["udiRoot.conf"].text)
    assert keys["sitePreMountHook"] == "/etc/shifter/premount.sh"
    hook = files["premount.sh"].text
    assert "mkdir -p 'var/opt/cray/alps'\n" in hook and "mkdir -p '/" not in hook
    assert (
        "premount.sh" not in made("shifter")
        and "PreMount" not in made("shifter")["udiRoot.conf"].text
    )


def test_shifter_bind_form_needs_no_hook_and_no_copy() -> None:
    _, modules = as_shifter_reads(made("shifter", replace(FACTS, form="bind"))["module.conf"].text)
    module = modules["mpich-5.0.2"]
    assert "copyPath" not in module
    source, target = module["siteFs"].split(":")
    assert target == "/fairlead" and target.count("/") == 1, "Shifter makes one level"
    assert module["siteEnvPrepend"] == "LD_LIBRARY_PATH=/fairlead/lib:/fairlead/lib/mpich"
    copied = made("shifter")["module.conf"].text
    assert source not in copied, "its copies search another place"


def test_shifters_whole_file_has_what_it_requires_and_nothing_that_it_does_not_know() -> None:
    tools = {name: f"/usr/bin/{name}" for name in ("cp", "mv", "chmod", "dd", "true")}
    text = made("shifter", replace(FACTS, tools=tools))["udiRoot.conf"].text
    keys, modules = as_shifter_reads(text)
    required = (
        "udiMount loopMount imagePath udiRootPath etcPath modprobePath insmodPath cpPath mvPath "
        "chmodPath ddPath rootfsType"
    )
    assert set(required.split()) <= set(keys) <= shifter.KEYS
    assert keys["rootfsType"] == "tmpfs" and keys["defaultModules"] in modules
    # It asks whether they exist before it starts.
    assert keys["modprobePath"] == "/usr/bin/true" and keys["cpPath"] == "/usr/bin/cp"


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("modulePath", "/opt", "an unknown key ends every Shifter"),
        ("udimount", "/var", "an unknown key ends every Shifter"),
        ("kmodBasePath", "/lib", "an unknown key ends every Shifter"),
        ("module_my_mpich_copyPath", "/opt", "ends at the first `_`"),
        ("module_mpich_copypath", "/opt", "anything else is ignored"),
        ("module_mpich", "/opt", "ends at the first `_`"),
        ("module_mpich_siteEnv", "A=1 two words", "would be one of its own"),
        ("siteEnvPrepend", "A=1 b", "would be one of its own"),
        ("siteFs", "/a b:/c", "without blanks"),
        ("siteFs", "/a", "FROM:TO"),
        ("siteFs", "/a:b", "absolute"),
        ("siteFs", "/a:/b;/c", "FROM:TO"),
        ("module_mpich_copyPath", "/a b", "blanks"),
        ("imagePath", "", "not empty"),
        ("imagePath", "/a\nsystem=b", "one line"),
        ("imagePath", "/a\\", "joins the next line"),
        ("imagePath", " /a", "taken away"),
    ],
)
def test_shifter_line_that_would_be_misread_is_refused(key: str, value: str, why: str) -> None:
    with pytest.raises(FairleadError) as caught:
        shifter.conf([(key, value)])
    assert why in caught.value.findings[0].why


def test_shifter_module_cannot_have_an_underscore_or_a_variable_with_a_blank() -> None:
    assert "first `_`" in refusal("shifter", replace(FACTS, name="my_mpich"))
    shown = refusal("shifter", with_variables(GREETING="good morning"))
    assert "GREETING=good morning" in shown and "blank" in shown


def test_shifter_module_cannot_bring_a_newer_glibc() -> None:
    newer = replace(FACTS, host=recorded.host("debian-sid-mpich-5.0.2"))
    with pytest.raises(FairleadError) as caught:
        export("shifter", newer)
    assert caught.value.code is ExitCode.PREFLIGHT_REFUSED
    assert caught.value.findings[0].check == "export-glibc"
    # An engine that shows single files can.
    assert "libc.so.6" in made("apptainer", newer)["environment.sh"].text


# podman-hpc


def test_podman_hpc_module_is_yaml_of_keys_that_it_reads_and_arguments_of_one_word() -> None:
    (path, file), _ = made("podman-hpc", replace(FACTS, here=ARIES)).items()
    assert path == "modules.d/fairlead-mpich-5-0-2.yaml"
    module = yaml.safe_load(file.text)
    assert set(module) <= podman_hpc.KEYS
    assert module["name"] == module["cli_arg"] == "fairlead-mpich-5-0-2"
    assert re.fullmatch(r"[A-Z0-9_]+", module["env"])
    assert module["shared_run"] is False and "mpich" in module["conflicts"]
    assert all(re.fullmatch(r"--[a-z]+=\S+", word) for word in module["additional_args"])
    # What a module's own `bind` names is shown by a hook that podman-hpc does not install by itself.
    assert not {"bind", "copy", "annotation"} & set(module)
    volumes = [w.split("=", 1)[1] for w in module["additional_args"] if w.startswith("--volume=")]
    for volume in volumes:
        source, target, *flags = volume.split(":")
        assert source.startswith("/") and target.startswith("/") and not target.endswith("/")
        assert flags in ([], ["ro"])
    assert volumes[0].endswith(":/opt/fairlead/mpi:ro")
    assert "/var/opt/cray/alps:/var/opt/cray/alps" in volumes
    card = replace(FACTS, here=Here(devices=("/dev/cxi0",)))
    _, (file, _) = None, tuple(made("podman-hpc", card).values())
    assert "--device=/dev/cxi0" in yaml.safe_load(file.text)["additional_args"]


def test_podman_hpc_shares_a_container_where_slurm_gives_ranks_their_place() -> None:
    slurm = replace(FACTS.site, scheduler=replace(FACTS.site.scheduler, kind="slurm"))
    (_, file), _ = made("podman-hpc", replace(FACTS, site=slurm)).items()
    assert yaml.safe_load(file.text)["shared_run"] is True


def test_podman_hpc_refuses_what_would_become_another_option_or_rule() -> None:
    assert "small letters" in refusal("podman-hpc", replace(FACTS, name="My_MPI"))
    refusal("podman-hpc", replace(FACTS, here=Here(binds=("/data:rw",))))


def with_gpus() -> Facts:
    elf = Elf("/opt/cray/gtl/lib/libmpi_gtl_cuda.so.0", recorded.host().library.elf.machine)
    elf = replace(elf, soname="libmpi_gtl_cuda.so.0")
    host = replace(recorded.host(), gpu_transport=(elf,))
    gpus = Gpu(vendor="nvidia", set={"MPICH_GPU_SUPPORT_ENABLED": "1"})
    return replace(FACTS, host=host, site=replace(FACTS.site, gpu=gpus))


def test_site_with_gpus_has_a_second_module_that_preloads_its_transport() -> None:
    """Without that library an MPI that is told to send from GPU to GPU dies in MPI_Init."""
    files = made("shifter", with_gpus())
    _, modules = as_shifter_reads(files["module.conf"].text)
    assert set(modules) == {"mpich-5.0.2", "mpich-5.0.2-gpu"}
    assert set(modules["mpich-5.0.2-gpu"]) == {"siteEnv"}
    assert modules["mpich-5.0.2-gpu"]["siteEnv"].split(" ") == [
        "LD_PRELOAD=/opt/udiImage/modules/mpich-5.0.2/lib/libmpi_gtl_cuda.so.0",
        "MPICH_GPU_SUPPORT_ENABLED=1",
    ]
    assert (
        "GPU_SUPPORT" not in modules["mpich-5.0.2"]["siteEnv"]
        and "PRELOAD" not in modules["mpich-5.0.2"]["siteEnv"]
    )
    assert "lib/libmpi_gtl_cuda.so.0" in files["stage.sh"].text
    plain, gpu, _ = made("podman-hpc", with_gpus()).values()
    module = yaml.safe_load(gpu.text)
    assert module["name"] == "fairlead-mpich-5-0-2-gpu" and module["depends_on"] == [
        "fairlead-mpich-5-0-2"
    ]
    assert (
        "--env=LD_PRELOAD=/opt/fairlead/mpi/lib/libmpi_gtl_cuda.so.0" in module["additional_args"]
    )
    assert set(module) <= podman_hpc.KEYS and "PRELOAD" not in plain.text
    # Nobody's GPUs, or another vendor's: no such module.
    others = replace(with_gpus(), site=replace(FACTS.site, gpu=Gpu(vendor="intel")))
    assert "gpu" not in made("shifter", others)["module.conf"].text


# Sarus

# oci-hooks(5), schema 1.0.0.
HOOK = {
    "type": "object",
    "additionalProperties": False,
    "required": ["version", "hook", "when", "stages"],
    "properties": {
        "version": {"const": "1.0.0"},
        "hook": {
            "type": "object",
            "additionalProperties": False,
            "required": ["path"],
            "properties": {
                "path": {"type": "string", "pattern": "^/"},
                "args": {"type": "array", "items": {"type": "string"}},
                "env": {"type": "array", "items": {"type": "string", "pattern": "^[A-Z_]+=."}},
                "timeout": {"type": "integer", "minimum": 1},
            },
        },
        "when": {
            "type": "object",
            "additionalProperties": False,
            "minProperties": 1,
            "properties": {
                "always": {"type": "boolean"},
                "annotations": {"type": "object", "additionalProperties": {"type": "string"}},
                "commands": {"type": "array", "items": {"type": "string"}},
                "hasBindMounts": {"type": "boolean"},
            },
        },
        "stages": {"type": "array", "items": {"const": "createContainer"}, "minItems": 1},
    },
}


def variables(hook: str) -> dict[str, str]:
    document = json.loads(hook)
    assert not mistakes(HOOK, document)
    return dict(word.split("=", 1) for word in document["hook"]["env"])


@validates
def test_sarus_hooks_are_oci_hooks_with_lists_of_absolute_paths() -> None:
    files = made("sarus", replace(FACTS, here=ARIES, isolate=False))
    mpi = variables(files["hooks.d/05-mpi-hook.json"].text)
    assert set(mpi) == {
        "LDCONFIG_PATH", "MPI_LIBS", "MPI_DEPENDENCY_LIBS", "BIND_MOUNTS", "MPI_COMPATIBILITY_TYPE",
    }  # fmt: skip
    assert mpi["MPI_COMPATIBILITY_TYPE"] in ("major", "full", "strict")
    for key in ("MPI_LIBS", "MPI_DEPENDENCY_LIBS", "BIND_MOUNTS"):
        assert all(path.startswith("/") for path in mpi[key].split(":"))
    newer = replace(FACTS, host=recorded.host("debian-sid-mpich-5.0.2"))
    glibc = variables(made("sarus", newer)["hooks.d/01-glibc-hook.json"].text)
    assert set(glibc) == {"GLIBC_LIBS", "LDCONFIG_PATH", "LDD_PATH", "READELF_PATH"}
    assert any(path.endswith("/libc.so.6") for path in glibc["GLIBC_LIBS"].split(":"))


@validates
def test_sarus_pairs_libraries_by_name_and_version_so_both_are_in_the_name() -> None:
    """A Cray's library is called libmpi_gnu_123.so.12: no image has one of that name."""
    host = recorded.host()
    elf = replace(host.library.elf, path="/opt/cray/lib/libmpi_gnu_123.so.12.0.0")
    cray = replace(host, library=replace(host.library, elf=elf))
    facts = replace(FACTS, host=cray, isolate=False)
    mpi = variables(made("sarus", facts)["hooks.d/05-mpi-hook.json"].text)
    names = [PurePosixPath(path).name for path in mpi["MPI_LIBS"].split(":")]
    assert names[0] == "libmpi.so.12"
    assert all(re.fullmatch(r"libmpi(fort|cxx)?\.so\.12", name) for name in names)
    # Modules are opened by their folder; in /usr/lib another program would find them.
    modules = {PurePosixPath(p).name for plugins in host.plugins for p in plugins.files}
    assert modules and not modules & {
        PurePosixPath(path).name for path in mpi["MPI_DEPENDENCY_LIBS"].split(":")
    }


@validates
def test_sarus_is_given_the_modules_folder_where_the_hook_shows_it() -> None:
    files = made("sarus")
    part = json.loads(files["sarus.part.json"].text)
    bound = variables(files["hooks.d/05-mpi-hook.json"].text)["BIND_MOUNTS"].split(":")
    assert part["environment"]["set"]["UCX_MODULE_DIR"].startswith(f"{bound[0]}/lib/")
    refusal("sarus", replace(FACTS, here=Here(binds=("/a:b",))))


@pytest.mark.parametrize("target", ["sarus", "sarus-suite"])
def test_copies_that_a_hook_shows_in_the_images_folder_find_each_other_in_their_own(
    target: str,
) -> None:
    """The image's MPI may have a libfabric of another version next to it, where a relative path leads."""
    files = made(target, replace(FACTS, image=None))
    [hook] = [
        file for path, file in files.items() if path.endswith(("mpi-hook.json", "5.0.2.json"))
    ]
    place = "/opt/fairlead/mpi" if target == "sarus-suite" else "/opt/fairlead/stage/mpich-5.0.2-"
    script = files["stage.sh"].text
    paths = re.findall(r'^    "\$1" \S+ lib/\S+ (\S+)$', script, re.MULTILINE)
    assert paths and all(path.startswith(place) for text in paths for path in text.split(":"))
    # And they are kept from the image's programs.
    assert "libfabric.so" not in hook.text and "libmpi.so.12" in hook.text


@pytest.mark.parametrize(
    "target",
    ["flux", "jupyter", "jupyterhub", "lmod", "nextflow", "parsl", "reframe", "snakemake"],
)
def test_launches_of_an_export_are_on_the_mpi_that_it_was_made_with(target: str) -> None:
    """Those who use it have another environment than the one who makes it, and may prefer another MPI."""

    def texts(mpi: str) -> str:
        return "".join(file.text for file in made(target, replace(FACTS, mpi=mpi)).values())

    assert "/opt/other" not in texts("") and "--mpi" in texts("/opt/other")
    assert re.search(r"--mpi\W+/opt/other\b", texts("/opt/other"))
    closed = replace(FACTS, mpi="/opt/other", closed={"/opt/other": "mode 0700"})
    assert "0700" in refusal(target, closed, "export-private")


@pytest.mark.parametrize("target", ["cdi", "sarus-suite", "enroot", "podman-hpc"])
def test_ranks_in_separate_user_namespaces_do_not_read_each_others_memory(target: str) -> None:
    files = made(target, replace(FACTS, image=None))
    texts = "".join(file.text for file in files.values())
    assert "MPIR_CVAR_CH4_CMA_ENABLE=0" in texts


# The Container Engine


def test_edf_has_known_keys_mounts_of_three_parts_and_text_values() -> None:
    files = made("ce", replace(FACTS, here=ARIES, name="train"))
    edf = tomllib.loads(files["train.toml"].text)
    assert set(edf) == {"image", "mounts", "env", "annotations"}
    assert edf["image"] == "/images/mpi-base.squashfs"
    assert all(re.fullmatch(r"/[^:]+:/[^:]+(:[a-z+]+)?", mount) for mount in edf["mounts"])
    assert all(isinstance(value, str) and value for value in edf["env"].values())
    assert edf["annotations"]["com"]["hooks"]["cxi"]["enabled"] == "false"
    assert "base_environment" not in edf


def test_edf_without_an_image_is_an_environment_to_build_on() -> None:
    edf = tomllib.loads(made("ce", replace(FACTS, image=None, name="base"))["base.toml"].text)
    assert "image" not in edf and edf["env"]["LD_LIBRARY_PATH"].startswith("/opt/fairlead/mpi/lib")


def test_edf_of_a_site_that_exchanges_libfabric_leaves_it_to_its_hook() -> None:
    site = replace(FACTS.site, mpi=MpiHere(replaces="libfabric"))
    files = made("ce", replace(FACTS, site=site, name="alps"))
    edf = tomllib.loads(files.pop("alps.toml").text)
    assert not files and "mounts" not in edf
    assert edf["annotations"]["com"]["hooks"]["cxi"]["enabled"] == "true"


def test_edf_values_are_not_expanded_and_an_empty_one_would_take_the_variable_away() -> None:
    edf = tomllib.loads(made("ce", replace(with_variables(A="$HOME/x"), name="x"))["x.toml"].text)
    assert edf["env"]["A"] == "$$HOME/x"
    assert "takes the variable away" in refusal("ce", with_variables(A=""), "engine-bind")
    refusal("ce", replace(FACTS, name="a/b"))


def test_edf_names_an_image_as_enroot_does_and_no_sif() -> None:
    reference = replace(IMAGE, name="docker://reg.example.org:5000/ml/train:1", path="/cache/x.sif")
    edf = tomllib.loads(made("ce", replace(FACTS, image=reference, name="x"))["x.toml"].text)
    assert edf["image"] == "reg.example.org:5000#ml/train:1"
    shown = refusal("ce", replace(FACTS, image=replace(IMAGE, path="/images/x.sif")))
    assert "--format squashfs" in shown


# enroot


def test_enroot_files_are_plain_variables_and_whole_fstab_lines() -> None:
    files = made("enroot", replace(FACTS, here=ARIES))
    env = files["environ.d/50-fairlead-mpich-5.0.2.env"].text.splitlines()
    assert all(re.fullmatch(r"[A-Z_0-9]+=[^'\"$]+", line) for line in env)
    lines = files["mounts.d/50-fairlead-mpich-5.0.2.fstab"].text.splitlines()
    mounts = [line.split() for line in lines if not line.startswith("#")]
    assert all(len(fields) == 6 for fields in mounts)
    source, target, kind, options, *_ = mounts[0]
    assert (
        target == "/opt/fairlead/mpi"
        and kind == "none"
        and source.startswith("/opt/fairlead/stage")
    )
    assert options.split(",")[:3] == ["x-create=dir", "rbind", "ro"]
    refusal("enroot", with_variables(A="${HOME}"))
    refusal("enroot", replace(FACTS, here=Here(binds=("/a b",))))


def test_enroot_hook_hands_on_what_the_launcher_says_and_nothing_else(tmp_path: Path) -> None:
    hook = tmp_path / "hook.sh"
    hook.write_text(made("enroot")["hooks.d/50-fairlead-mpich-5.0.2-launcher.sh"].text)
    shown, mounts = tmp_path / "environ", tmp_path / "mounts"
    shown.write_text("PATH=/usr/bin\n")
    environ = {
        "PATH": os.environ["PATH"], "ENROOT_ENVIRON": str(shown), "ENROOT_MOUNTS": str(mounts),
        "PMI_RANK": "1", "SLURM_JOB_NAME": "two words", "PMIX_SERVER_TMPDIR": "/run/pmix/1",
        "SLURM_MANY": "a\nLD_PRELOAD=b", "HOME": "/home/u", "XPMI_RANK": "no",
    }  # fmt: skip
    subprocess.run(["bash", hook], env=environ, check=True)
    lines = shown.read_text().splitlines()
    assert lines[0] == "PATH=/usr/bin"
    assert sorted(lines[1:]) == [
        "PMIX_SERVER_TMPDIR=/run/pmix/1", "PMI_RANK=1", "SLURM_JOB_NAME=two words",
    ]  # fmt: skip
    assert mounts.read_text().startswith("/run/pmix/1 x-create=dir,bind,")
    subprocess.run(
        ["bash", hook], env={"PATH": os.environ["PATH"]} | {"ENROOT_ENVIRON": "/x"}, check=True
    )


# Apptainer, Lmod


def test_apptainers_lists_have_no_comma_in_an_entry() -> None:
    assert "separate" in refusal("apptainer", replace(FACTS, here=Here(binds=("/a,b",))))


def test_apptainer_file_adds_to_what_the_user_binds(tmp_path: Path) -> None:
    text = made("apptainer", with_variables(A="it's $HOME"))["environment.sh"].text
    file = tmp_path / "environment.sh"
    file.write_text(text)
    shown = subprocess.run(
        ["sh", "-euc", f'. {file}; printf "%s\\n" "$APPTAINER_BINDPATH" "$APPTAINERENV_A"'],
        env={"APPTAINER_BINDPATH": "/data", "PATH": os.environ["PATH"]},
        capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    assert shown[0].startswith("/data,/opt/fairlead/stage/mpich-5.0.2-")
    assert shown[1] == "it's $HOME"


@given(st.text(st.characters(codec="utf-8"), max_size=40))
def test_lua_text_is_one_string_of_the_same_bytes(value: str) -> None:
    written = lua(value)
    assert written.isascii() and written.isprintable()
    if written.startswith("[=["):
        inner = written[3:-3]
        assert inner == value and (inner + "]=]").index("]=]") == len(inner)
        return
    body = written[1:-1]
    assert not re.search(r'(?<!\\)"', body)
    read = re.sub(rb"\\(\d{3})", lambda m: bytes([int(m[1])]), body.encode())
    assert read == value.encode()


def test_lmod_needs_commands_that_a_shell_can_have() -> None:
    assert "name them: --program" in refusal("lmod", replace(FACTS, programs=()))
    assert "shell function" in refusal("lmod", replace(FACTS, programs=("/opt/a b",)))
    refusal("lmod", replace(FACTS, name="a b"))


# Jupyter, ReFrame


def test_kernelspec_starts_a_kernel_and_takes_interrupts_as_messages() -> None:
    (file,) = made("jupyter").values()
    spec = json.loads(file.text)
    assert spec["argv"].count("{connection_file}") == 1 and spec["interrupt_mode"] == "message"
    assert spec["argv"][0] == "fairlead" and spec["language"] == "python"
    assert re.fullmatch(r"[A-Za-z0-9._-]+/kernel\.json", file.path)
    without = replace(IMAGE, facts=replace(IMAGE.facts, python=""))
    refusal("jupyter", replace(FACTS, image=without))


def test_reframe_files_are_python_and_name_the_site_as_it_allows() -> None:
    site = replace(FACTS.site, name="piz.daint mc")
    files = made("reframe", replace(FACTS, site=site))
    for file in files.values():
        ast.parse(file.text)
    space: dict[str, object] = {}
    exec(files["config.py"].text, space)
    configuration = space["site_configuration"]
    assert isinstance(configuration, dict)
    (system,) = configuration["systems"]
    assert (
        system["name"] == "piz-daint-mc"
        and f"valid_systems = ['{system['name']}']" in files["swap_test.py"].text
    )


# The verb


def captured(tmp_path: Path) -> Path:
    path = tmp_path / "login1.json"
    capture.write(taken(), path)
    return path


def test_export_for_a_machine_elsewhere_comes_from_its_capture(tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = [
        "site",
        "export",
        "--for",
        "shifter",
        "--site",
        str(captured(tmp_path)),
        "-o",
        str(out),
    ]
    done = CliRunner().invoke(main, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert {p.name for p in out.iterdir()} == {"module.conf", "stage.sh", "udiRoot.conf"}
    assert (out / "stage.sh").stat().st_mode & 0o777 == 0o755
    assert (out / "module.conf").stat().st_mode & 0o777 == 0o644
    assert (
        "MPICH" in (out / "module.conf").read_text() and "login1" in (out / "stage.sh").read_text()
    )


def test_dry_run_shows_the_files_and_writes_none(tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ["site", "export", "--for", "enroot", "--site", str(captured(tmp_path)), "-o", str(out)]
    done = CliRunner().invoke(main, [*words, "--dry-run", "--json"], catch_exceptions=False)
    shown = json.loads(done.stdout)
    assert shown["schema"] == "fairlead/site-export" and shown["dry_run"] is True
    assert all(file["text"] and file["goes"] and file["mode"] for file in shown["files"])
    assert not out.exists()


def test_writer_replaces_a_file_whole_and_says_where_it_cannot(tmp_path: Path) -> None:
    file = ExportFile("a/b.sh", "new\n", "there", 0o755)
    (tmp_path / "a").mkdir()
    (tmp_path / "a/b.sh").write_text("old and longer\n")
    assert write([file], tmp_path) == (tmp_path / "a/b.sh",)
    assert (tmp_path / "a/b.sh").read_text() == "new\n"
    assert [p.name for p in (tmp_path / "a").iterdir()] == ["b.sh"]
    (tmp_path / "c").write_text("a file")
    with pytest.raises(FairleadError) as caught:
        write([replace(file, path="c/d")], tmp_path)
    assert caught.value.findings[0].check == "output-unwritable"


def test_staging_script_quotes_what_needs_it() -> None:
    odd = recorded.host()
    elf = replace(odd.library.elf, path="/opt/it's here/libmpi.so.12")
    text = made(
        "apptainer", replace(FACTS, host=replace(odd, library=replace(odd.library, elf=elf)))
    )["stage.sh"].text
    assert f'"$1" {shlex.quote(elf.path)} lib/libmpi.so.12' in text
    done = subprocess.run(["sh", "-n"], input=text, text=True, check=False, capture_output=True)
    assert done.returncode == 0, done.stderr


# For the people who use them.


@pytest.mark.parametrize("target", ["shifter", "podman-hpc", "sarus", "enroot", "apptainer"])
def test_exports_of_two_mpis_do_not_take_each_others_place(target: str) -> None:
    """They go into one folder or file of the machine; a user may load either."""

    def names(host: str) -> set[str]:
        files = made(target, replace(FACTS, host=recorded.host(host), image=None))
        if target == "shifter":
            text = files["module.conf"].text
            return set(re.findall(r"^module_([^_]+)_", text, re.MULTILINE))
        if target == "sarus":  # one hook for all MPIs; its type decides
            return {json.loads(files["sarus.part.json"].text)["defaultMPIType"]}
        return {path for path in files if path != "stage.sh" and path != "environment.sh"}

    hosts = ("mpich-5.0.2", "impi-2021.18.1", "debian13-mpich-4.2.1")
    found = [names(host) for host in hosts]
    for one, other in itertools.combinations(found, 2):
        assert one and not one & other


def test_label_of_an_mpi_whose_library_has_no_version_is_its_launchers_or_its_place() -> None:
    host = recorded.host("openmpi-5.0.11")
    plain = replace(FACTS, host=host, launcher=None)
    known = replace(plain, launcher=recorded.OPENMPI)
    assert known.label == "open-mpi-5.0.11"
    assert re.fullmatch(r"open-mpi-(\d[\d.]*|[0-9a-f]{6})", plain.label)


def test_export_of_root_for_apptainer_is_made_for_ordinary_users(tmp_path: Path) -> None:
    """Each of their ranks has a user namespace, which root's have not."""
    theirs = replace(FACTS, engine=recorded.USER_ENGINE)
    text = made("apptainer", theirs)["environment.sh"].text
    assert "APPTAINERENV_MPIR_CVAR_CH4_CMA_ENABLE=0" in text and "APPTAINER_USERNS=1" in text
    program = tmp_path / "bin/apptainer"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    environ = {"PATH": str(program.parent), "APPTAINER_FAKEROOT": "1"}
    ordinary = ENGINES.get("apptainer").ordinary(environ)
    assert ordinary and ordinary.userns_per_rank and "--drop-caps" not in ordinary.options
    options = replace(recorded.ROOT_ENGINE, options=("--drop-caps", "X"))
    setuid = EngineFact("apptainer", "1.4", "/opt/apptainer", True, {}, "", "")
    for found in (setuid, replace(setuid, setuid=False)):
        facts = replace(taken().facts, uid=0, engines=(found,))
        asked = gather._theirs(replace(taken(), engine=options, facts=facts))
        assert asked and not asked.options and asked.userns_per_rank is not found.setuid


@pytest.mark.parametrize("target", ["enroot", "podman-hpc"])
def test_export_for_an_engine_that_is_not_the_exporters_knows_its_namespaces(target: str) -> None:
    files = made(target, replace(FACTS, engine=recorded.ROOT_ENGINE)).values()
    assert any("MPIR_CVAR_CH4_CMA_ENABLE=0" in file.text for file in files)


@pytest.mark.parametrize("target", ["lmod", "jupyter", "reframe", "ce"])
def test_export_that_names_what_others_cannot_read_is_refused_unless_it_is_private(
    target: str,
) -> None:
    closed = replace(FACTS, closed={IMAGE.path: "others may not enter /images (mode 0700)"})
    shown = refusal(target, closed, "export-private")
    assert "others may not enter /images" in shown
    assert made(target, replace(closed, private=True))
    assert made(target, replace(FACTS, closed={"/images/mpi-base": "another path"}))


def test_closed_is_what_another_user_cannot_open() -> None:
    base = Path(tempfile.mkdtemp(dir="/tmp"))
    base.chmod(0o755)
    try:
        inner, file = base / "inner", base / "inner/file"
        inner.mkdir(0o755)
        file.touch(0o644)
        assert audience.closed(str(file)) == "" == audience.closed(str(inner / "not/yet"))
        file.chmod(0o600)
        assert str(file) in audience.closed(str(file))
        file.chmod(0o644)
        inner.chmod(0o711)
        assert audience.closed(str(file)) == "" and str(inner) in audience.closed(str(inner))
        inner.chmod(0o700)
        link = base / "link"
        link.symlink_to(file)
        for path in (file, link, inner / "not/yet"):
            assert "others may not enter" in audience.closed(str(path))
    finally:
        shutil.rmtree(base)


def test_fairlead_whose_code_is_closed_to_others_is_named_without_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its program may be open: a virtual environment of a closed checkout."""
    program, code = tmp_path / "fairlead", tmp_path / "checkout/__init__.py"
    code.parent.mkdir()
    program.touch()
    code.touch()
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr(fairlead, "__file__", str(code))
    monkeypatch.setattr(gather, "closed", lambda path: "closed" if "checkout" in path else "")
    assert gather._fairlead(private=False) == "fairlead"
    monkeypatch.setattr(gather, "closed", lambda path: "")
    assert gather._fairlead(private=False) == str(program) == gather._fairlead(private=True)


def test_jupyter_refuses_an_image_without_ipykernel() -> None:
    for packages, word in (
        ({"wheel": {"numpy": "2"}, "deb": {}}, "has no ipykernel"),
        ({}, "not known whether"),
    ):
        without = replace(IMAGE, record={"env": {}, "packages": packages})
        assert word in refusal("jupyter", replace(FACTS, image=without), "export-kernel")
    older = replace(IMAGE, record={"packages": {"wheel": {"numpy": "2"}, "deb": {}}})
    added = Installed(packages=(Package("wheel", "ipykernel", "7.0"),))
    assert made("jupyter", replace(FACTS, image=replace(older, installed=added)))
    debian = replace(IMAGE, record={"packages": {"deb": {"python3-ipykernel": "6"}, "wheel": {}}})
    assert made("jupyter", replace(FACTS, image=debian))


def test_jupyterhubs_configuration_runs_and_takes_only_what_its_form_allows() -> None:
    site = replace(FACTS.site, scheduler=replace(FACTS.site.scheduler, kind="slurm"))
    files, config = made("jupyterhub", replace(FACTS, site=site)), Config()
    exec(files["fairlead_hub.py"].text, {"get_config": lambda: config})
    from_form = config.Spawner.options_from_form
    assert from_form({"nodes": ["2"], "runtime": ["30:00"]})["nodes"] == "2"
    assert "--nodes={{nodes or 1}}" in config.SlurmSpawner.batch_script
    for name in ("nodes", "runtime", "partition"):
        with pytest.raises(ValueError, match="is not allowed"):
            from_form({name: ["1\n#SBATCH --uid=0"]})
    spec = next(file.text for path, file in files.items() if path.endswith("/kernel.json"))
    assert json.loads(spec)["metadata"]["kernel_provisioner"]["provisioner_name"] == "fairlead"


@pytest.mark.parametrize(
    ("kind", "launcher", "own", "size"),
    [
        ("slurm", "srun", "--chdir --export", {"nodes": 2, "time": "0:30:00"}),
        ("pbs", "mpiexec", "-v", {}),
        ("lsf", "mpiexec", "none", {"n": 8, "W": "0:30"}),
        ("lsf", "jsrun", "none", {"nnodes": 2, "W": "0:30"}),
        ("flux", "flux", "none", {"nodes": 2, "nslots": 8, "time_limit": "1800s"}),
    ],
)
def test_jupyterhubs_job_script_is_in_the_schedulers_grammar(
    kind: str, launcher: str, own: str, size: dict[str, object]
) -> None:
    """As batchspawner renders it, with what the form gives; ``own`` are options that no other script of fairlead has."""
    from batchspawner.batchspawner import format_template  # type: ignore[import-untyped]

    config, spawner = _hub_of(kind, launcher)
    given = {
        "nodes": "2",
        "ranks_per_node": "4",
        "runtime": "0:30:00",
        "account": "a1",
        "partition": "long",
    }
    ours = {"homedir": "/home/u", "keepvars": "PATH,HOME", "prologue": "", "cmd": "server"}
    sentinel = grammars.SENTINELS[kind]
    for answers in (given, {}):
        script = format_template(config[spawner].batch_script, **answers, **ours)
        kept = [
            line
            for line in script.splitlines()
            if not line.removeprefix(sentinel).lstrip().startswith(tuple(own.split()))
        ]
        found = vars(grammars.directives(kind, "\n".join(kept)))
        assert ("a1" in found.values()) is ("long" in found.values()) is bool(answers)
        assert script.splitlines()[-1] == "server"
        assert not answers or found.items() >= size.items()
    for asked, minutes in (("75:00", "1:15"), ("1:59:01", "2:00")):
        script = format_template(config[spawner].batch_script, runtime=asked, **ours)
        assert kind != "lsf" or f"#BSUB -W {minutes}\n" in script


def _hub_of(kind: str, launcher: str) -> tuple[Config, str]:
    """The hub's configuration on a site of that scheduler and launcher, and its spawner's class."""
    site = FACTS.site
    scheduler, launchers = (
        replace(site.scheduler, kind=kind),
        replace(site.launcher, kinds=(launcher,)),
    )
    facts = replace(FACTS, site=replace(site, scheduler=scheduler, launcher=launchers))
    files, config = made("jupyterhub", facts), Config()
    exec(files["fairlead_hub.py"].text, {"get_config": lambda: config})
    return config, config.JupyterHub.spawner_class.rpartition(".")[2]


def test_jupyterhub_follows_a_job_of_flux() -> None:
    """As batchspawner asks and reads; the answers are of flux-jobs(1)."""
    from batchspawner import BatchSpawnerRegexStates  # type: ignore[import-untyped]
    from batchspawner.batchspawner import format_template

    config, spawner = _hub_of("flux", "flux")
    job = BatchSpawnerRegexStates(config=config)
    assert spawner == "BatchSpawnerRegexStates" and job.parse_job_id("f2oi7") == "f2oi7"
    asked = format_template(job.batch_query_cmd, job_id="f2oi7")
    assert asked == 'flux jobs -n -o "{state} {nodelist}" f2oi7'
    assert format_template(job.batch_cancel_cmd, job_id="f2oi7") == "flux cancel f2oi7"
    job.job_status = "SCHED "
    assert job.state_ispending() and not job.state_isrunning()
    for nodes, first in (("tioga12", "tioga12"), ("nid[001-003,7]", "nid001"), ("a.b-1", "a.b-1")):
        job.job_status = f"RUN {nodes}"
        assert job.state_isrunning() and not job.state_ispending()
        assert job.state_gethost() == first
    job.job_status = "INACTIVE nid[001-003]"
    assert not job.state_isrunning() and not job.state_ispending()


def test_jupyterhub_refuses_a_scheduler_whose_job_script_it_does_not_know() -> None:
    site = replace(FACTS.site, scheduler=replace(FACTS.site.scheduler, kind="cobalt"))
    assert "cobalt" in refusal("jupyterhub", replace(FACTS, site=site))
