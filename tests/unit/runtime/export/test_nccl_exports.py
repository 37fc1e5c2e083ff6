"""Exports that carry NCCL's network plugin: golden files, the formats that they are read by, and the staging script."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from tests.support import nccl as compiled_nccl
from tests.support import recorded
from tests.support.compiled import compiled
from tests.support.json_schema import mistakes, validates
from tests.unit.runtime.cli.test_cli import call
from tests.unit.runtime.detect.test_capture import taken
from tools import site_reference

from fairlead import __version__
from fairlead.base.errors import ExitCode, FairleadError
from fairlead.cli.main import main
from fairlead.detect import capture
from fairlead.elf import reader
from fairlead.elf.facts import Elf, NcclLibrary, NetPlugin
from fairlead.elf.patchelf import find_patchelf
from fairlead.export import TARGETS, export, podman_hpc
from fairlead.export.model import ExportFile, Facts
from fairlead.export.plugin import carried
from fairlead.image.open import Image
from fairlead.nccl.model import HostNccl, HostNetwork
from fairlead.site.resolved_paths import Here

GOLDEN = Path(__file__).parents[3] / "golden/export-nccl"
SITES = site_reference.bundled_sites()
ABLE = ("apptainer", "cdi", "ce", "enroot", "podman-hpc", "sarus-suite")


def network(
    machine: str = "x64", name: str = "libnccl-net.so", release: str = "1.9.1"
) -> HostNetwork:
    """aws-ofi-nccl as on a machine with Slingshot: it needs libfabric and hwloc, and opens libcuda without a version."""
    folder = "/soft/libraries/aws-ofi-nccl/v1.9.1-aws/lib"
    elf = Elf(f"{folder}/{name}", machine, name, ("libfabric.so.1", "libhwloc.so.15"))
    behind = (
        Elf("/opt/cray/libfabric/1.22.0/lib64/libfabric.so.1.26.0", machine, "libfabric.so.1"),
        Elf("/usr/lib64/libcxi.so.1.5.0", machine, "libcxi.so.1"),
        Elf("/soft/libraries/hwloc/lib/libhwloc.so.15.6.0", machine, "libhwloc.so.15"),
        Elf("/usr/lib64/libstdc++.so.6.0.30", machine, "libstdc++.so.6"),
    )
    plugin = NetPlugin(
        elf.path, name, {"net": (5, 6, 7, 8)}, "AWS Libfabric", release, "", ("libcuda.so",), elf
    )
    return HostNetwork(plugin, behind, providers=("cxi",), found_by="the profile says so")


def facts(site: str = "polaris", **more: object) -> Facts:
    host = HostNccl((network(),), devices=("/dev/cxi0", "/dev/cxi1"))
    made = Facts(site=SITES[site], node="x3001", host=None, carries="nccl", nccl=host)
    return replace(made, **more)  # type: ignore[arg-type]


def made(target: str, given: Facts | None = None) -> dict[str, ExportFile]:
    return {file.path: file for file in export(target, given or facts())}


def refusal(target: str, given: Facts) -> str:
    with pytest.raises(FairleadError) as caught:
        export(target, given)
    [finding] = caught.value.findings
    assert finding.remedy and finding.where
    return f"{finding.check}: {finding.what}; {finding.why}; {finding.remedy}"


CASES = {
    **{target: (target, facts()) for target in ABLE},
    "ce-alps": ("ce", facts("alps")),
    "podman-hpc-perlmutter": ("podman-hpc", facts("perlmutter")),
    "apptainer-frontier": (
        "apptainer",
        facts("frontier", nccl=HostNccl((network(name="librccl-net.so", release="1.19.2"),))),
    ),
    "cdi-aws": (
        "cdi",
        facts("aws", nccl=HostNccl((network(),), devices=("/dev/infiniband/uverbs0",))),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_export_is_the_recorded_one(name: str, request: pytest.FixtureRequest) -> None:
    files = made(*CASES[name])
    assert made(*CASES[name]) == files, "a pure function of facts"
    folder = GOLDEN / name
    texts = {p: f.text.replace(__version__, "VERSION") for p, f in files.items() if p != "stage.sh"}
    if request.config.getoption("--update"):
        shutil.rmtree(folder, ignore_errors=True)
        for path, text in texts.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
    kept = {str(p.relative_to(folder)): p.read_text() for p in folder.rglob("*") if p.is_file()}
    assert kept == texts, "look at it, and write it with --update"
    for file in files.values():
        assert file.text.endswith("\n") and file.goes
        assert bool(file.mode & 0o111) == file.text.startswith("#!")


def test_targets_that_carry_the_plugin_are_those_that_say_so() -> None:
    assert tuple(name for name in TARGETS.names() if TARGETS.get(name).nccl) == ABLE
    for name in set(TARGETS.names()) - set(ABLE):
        said = refusal(name, facts())
        assert said.startswith("export-nccl") and "apptainer, cdi, ce" in said


def test_folder_holds_the_plugin_under_each_name_and_its_libraries_apart() -> None:
    kept = carried(facts())
    targets = {f.target: f for f in kept.staging.files}
    assert set(targets) == {
        "lib/libnccl-net.so", "dep/libfabric.so.1", "dep/libcxi.so.1", "dep/libhwloc.so.15",
    }  # fmt: skip
    # A process has the image's C++ library already: a second one would be mapped by name only.
    assert all("stdc++" not in f.source for f in kept.staging.files)
    assert all(f.rpath == "/opt/fairlead/nccl/dep" for f in kept.staging.files)
    links = dict(kept.staging.aliases)
    assert (
        links["lib/libnccl-net-ofi.so"] == links["lib/libnccl-net-fairlead.so"] == "libnccl-net.so"
    )
    assert [s.target for s in kept.staging.stubs] == ["dep/libcuda.so"]
    assert kept.folder.startswith("/opt/fairlead/stage/nccl-aws-ofi-nccl-1.9.1-")


@pytest.mark.parametrize("target", ABLE)
def test_miss_is_an_error_on_several_nodes_and_one_node_is_left_alone(target: str) -> None:
    """HPE: with NCCL_NET on one node NCCL asks for a network that a job on one node does not have."""
    kept = carried(facts())
    assert kept.nodes == {"NCCL_NET": "AWS Libfabric"} and "NCCL_NET" not in kept.env
    # Whatever the image selects, as NGC's do, is undone.
    assert kept.env["NCCL_NET_PLUGIN"] == "fairlead"
    assert kept.env["LD_LIBRARY_PATH"] == "/opt/fairlead/nccl/lib"
    assert all("AWS Libfabric" not in f.text for p, f in made(target).items() if p == "stage.sh")
    always = carried(facts("alps"))
    assert not always.nodes and always.env["NCCL_NET"] == "AWS Libfabric"


def test_option_that_the_job_needs_is_named_in_each_format() -> None:
    for target in ABLE:
        files = made(target, facts("olivia")).values()
        texts = "".join(f.text + f.goes for f in files)
        assert "--network=disable_rdzv_get" in texts, target


def test_variables_of_the_site_are_all_there() -> None:
    for name in ("polaris", "perlmutter", "olivia", "isambard-ai", "alps", "aws"):
        site = SITES[name]
        kept = carried(facts(name))
        assert {**kept.env, **kept.nodes}.items() >= site.nccl.env.items(), name


def test_ll128_is_off_on_gh200_whatever_the_profile_says() -> None:
    arm = HostNccl((network("AArch64"),), devices=("/dev/cxi0",))
    assert carried(facts("olivia", nccl=arm)).env["NCCL_PROTO"] == "^LL128"
    assert "NCCL_PROTO" not in carried(facts("olivia")).env


def test_image_of_a_release_that_takes_a_path_gets_one_and_keeps_its_search_path() -> None:
    elf = Elf("/usr/lib/libnccl.so.2", "x64", "libnccl.so.2")
    library = NcclLibrary(elf.path, elf.soname, "nccl", "2.27.5", "cuda12.8", elf)
    own = {"LD_LIBRARY_PATH": "/opt/own/lib"}
    image = Image(
        "train", "/images/train.squashfs", "squashfs", 1, "", False,
        replace(recorded.image(), nccl=(library,)), {"env": own},
    )  # fmt: skip
    kept = carried(facts(image=image))
    assert kept.env["NCCL_NET_PLUGIN"] == "/opt/fairlead/nccl/lib/libnccl-net.so"
    old = replace(image, facts=replace(image.facts, nccl=(replace(library, version="2.19.3"),)))
    assert carried(facts(image=old)).env["LD_LIBRARY_PATH"] == "/opt/fairlead/nccl/lib:/opt/own/lib"


def test_image_without_nccl_has_nothing_to_carry_a_plugin_for() -> None:
    image = Image("x", "/x.squashfs", "squashfs", 1, "", False, recorded.image(), {})
    said = refusal("cdi", facts(image=image))
    assert said.startswith("export-nccl") and "neither NCCL nor RCCL" in said


def test_machine_without_a_plugin_names_the_profiles_folders_or_the_module_to_load() -> None:
    none = HostNccl()
    assert "name its folder in [nccl]" in refusal("apptainer", facts(nccl=none))
    assert "module load rccl-net-plugin" in refusal("apptainer", facts("frontier", nccl=none))


def test_plugin_that_lacks_a_library_is_refused_with_its_name() -> None:
    lacks = replace(network(), missing=(("libhwloc.so.15", "/x/libnccl-net.so"),))
    said = refusal("podman-hpc", facts(nccl=HostNccl((lacks,))))
    assert "libhwloc.so.15 (needed by /x/libnccl-net.so)" in said and "TCP" in said


def test_capture_of_an_older_version_is_not_enough() -> None:
    assert "fairlead site capture" in refusal("cdi", facts(nccl=None))


def test_plugin_that_does_not_serve_the_image_is_refused_as_a_launch_would_be() -> None:
    elf = Elf("/usr/lib/libnccl.so.2", "x64", "libnccl.so.2")
    library = NcclLibrary(elf.path, elf.soname, "nccl", "2.8.4", "cuda11.2", elf)
    inside = replace(recorded.image(), nccl=(library,))
    image = Image("old", "/old.squashfs", "squashfs", 1, "", False, inside, {})
    with pytest.raises(FairleadError) as caught:
        export("cdi", facts(image=image))
    assert caught.value.code is ExitCode.PREFLIGHT_REFUSED
    assert any("interface" in f"{f.what} {f.why}" for f in caught.value.findings)


# What reads the files

ENV = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*")
TEXT = {"type": "string", "minLength": 1}
PATH = {"type": "string", "pattern": "^/"}
# The CDI's SPEC.md, 0.5.0: its parser ends on unknown fields, which its published schema lets pass.
CDI = {
    "type": "object",
    "additionalProperties": False,
    "required": ["cdiVersion", "kind", "devices"],
    "properties": {
        "cdiVersion": {"const": "0.5.0"},
        "kind": {"type": "string", "pattern": "^[A-Za-z][A-Za-z0-9_.-]*[A-Za-z0-9]/[A-Za-z][A-Za-z0-9_.-]*[A-Za-z0-9]$"},
        "devices": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "additionalProperties": False,
                "required": ["name", "containerEdits"],
                "properties": {
                    "name": {"type": "string", "pattern": "^[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?$"},
                    "containerEdits": {
                        "type": "object",
                        "additionalProperties": False,
                        "minProperties": 1,
                        "properties": {
                            "env": {"type": "array", "items": {"type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_]*="}},
                            "mounts": {
                                "type": "array",
                                "items": {
                                    "type": "object",
                                    "additionalProperties": False,
                                    "required": ["hostPath", "containerPath"],
                                    "properties": {
                                        "hostPath": PATH, "containerPath": PATH,
                                        "options": {"type": "array", "items": TEXT},
                                    },
                                },
                            },
                            "deviceNodes": {
                                "type": "array",
                                "items": {
                                    "type": "object",
                                    "additionalProperties": False,
                                    "required": ["path"],
                                    "properties": {"path": PATH},
                                },
                            },
                        },
                    },
                },
            },
        },
    },
}  # fmt: skip


@validates
@pytest.mark.parametrize("carries", ["nccl", "mpi"])
def test_cdi_specification_is_one(carries: str) -> None:
    given = replace(
        facts(),
        carries=carries,
        host=recorded.host(),
        here=Here(("/var/spool/slurmd",), ("/dev/cxi0",)),
    )
    [name] = [p for p in made("cdi", given) if p.endswith(".json")]
    document = json.loads(made("cdi", given)[name].text)
    assert mistakes(CDI, document) == []
    assert document["kind"] == f"fairlead/{carries}" and name == f"fairlead-{carries}.json"
    for device in document["devices"]:
        edits = device["containerEdits"]
        assert {"path": "/dev/cxi0"} in edits["deviceNodes"]
        assert "ro" in edits["mounts"][0]["options"]
        assert edits["mounts"][0]["hostPath"].startswith("/opt/fairlead/stage/")


def test_cdi_has_a_device_for_each_number_of_nodes() -> None:
    one, several = json.loads(made("cdi")["fairlead-nccl.json"].text)["devices"]
    assert (one["name"], several["name"]) == ("plugin", "plugin-nodes")
    assert set(several["containerEdits"]["env"]) - set(one["containerEdits"]["env"]) == {
        "NCCL_NET=AWS Libfabric"
    }


def test_cdi_refuses_a_name_that_its_parser_refuses() -> None:
    assert refusal("cdi", facts(name="-x")).startswith("export-value")


@validates
@pytest.mark.parametrize("carries", ["nccl", "mpi"])
def test_hook_of_sarus_suite_has_arguments_that_it_knows(carries: str) -> None:
    files = made("sarus-suite", replace(facts(), carries=carries, host=recorded.host()))
    [path] = [p for p in files if p.startswith("hooks.d/")]
    document = json.loads(files[path].text)
    assert (document["version"], document["stages"]) == ("1.0.0", ["precreate"])
    program, *words = document["hook"]["args"]
    assert program == Path(document["hook"]["path"]).name == "pc_injection_hook"
    known = {"ldconfig", "lib", "dependency-lib", "env", "mount"}
    options = [re.fullmatch(r"--([a-z-]+)=(.+)", word) for word in words]
    assert all(match and match[1] in known for match in options)
    by_name: dict[str, list[str]] = {}
    for match in filter(None, options):
        by_name.setdefault(match[1], []).append(match[2])
    libraries = [*by_name.get("lib", []), *by_name.get("dependency-lib", [])]
    assert libraries and all(p.startswith("/opt/fairlead/stage/") for p in libraries)
    # A primary library needs a major version in its name, unless an option allows others.
    assert all(re.search(r"\.so\.\d+$", p) for p in by_name.get("lib", []))
    assert all(ENV.fullmatch(e) for e in by_name["env"])
    # The hook sets it for what it injects.
    assert not any(e.startswith("LD_LIBRARY_PATH=") for e in by_name["env"])
    for mount in by_name["mount"]:
        source, target, given = mount.split(":")
        assert source.startswith("/") and target.startswith("/")
        assert set(given.split(",")) <= {
            "bind", "rbind", "ro", "rw", "nosuid", "nodev", "dev", "noexec", "private",
        }  # fmt: skip
    # It mounts regular files and folders only.
    assert not any(mount.startswith("/dev/") for mount in by_name["mount"])
    assert len(by_name["ldconfig"]) == 1
    [edf] = [p for p in files if p.endswith(".toml") and not p.endswith("-nodes.toml")]
    said = tomllib.loads(files[edf].text)
    annotations = said["annotations"]
    assert said.get("devices", []) == (["/dev/cxi0", "/dev/cxi1"] if carries == "nccl" else [])
    [(pattern, wanted)] = document["when"]["annotations"].items()

    def flat(table: dict[str, object], at: str = "") -> dict[str, str]:
        found: dict[str, str] = {}
        for key, value in table.items():
            inner = f"{at}.{key}" if at else key
            found |= flat(value, inner) if isinstance(value, dict) else {inner: str(value)}
        return found

    assert [
        re.fullmatch(wanted, v) is not None
        for k, v in flat(annotations).items()
        if re.fullmatch(pattern, k)
    ] == [True]


def test_site_with_a_hook_of_its_own_is_asked_by_its_annotations() -> None:
    for target in ("ce", "sarus-suite"):
        files = made(target, facts("alps", nccl=None))
        assert set(files) == {"fairlead-nccl-alps.toml"}
        said = tomllib.loads(files["fairlead-nccl-alps.toml"].text)
        assert said["annotations"]["com"]["hooks"] == {
            "cxi": {"enabled": "true"},
            "aws_ofi_nccl": {"enabled": "true", "variant": "cuda-dl"},
        }
        assert said["env"]["NCCL_NET"] == "AWS Libfabric" and "mounts" not in said


def test_edf_without_such_a_hook_mounts_the_folder() -> None:
    files = made("ce")
    said = tomllib.loads(files["fairlead-nccl-polaris.toml"].text)
    assert said["mounts"][0].endswith(":/opt/fairlead/nccl:ro")
    more = tomllib.loads(files["fairlead-nccl-polaris-nodes.toml"].text)
    assert more == {
        "base_environment": ["fairlead-nccl-polaris"],
        "env": {"NCCL_NET": "AWS Libfabric"},
    }


def test_podman_hpc_module_is_one_that_it_reads() -> None:
    files = made("podman-hpc")
    module = yaml.safe_load(files["modules.d/fairlead-nccl.yaml"].text)
    more = yaml.safe_load(files["modules.d/fairlead-nccl-nodes.yaml"].text)
    assert set(module) | set(more) <= podman_hpc.KEYS
    assert more["depends_on"] == [module["name"]] and "nccl" in module["conflicts"]
    assert more["additional_args"] == ["--env=NCCL_NET=AWS Libfabric"]
    assert all(
        re.match(r"--[a-z]+=\S", w) or w.endswith("=host") for w in module["additional_args"]
    )


def run(text: str, environ: dict[str, str], folder: Path, shell: str = "sh") -> dict[str, str]:
    """What a file leaves in the environment when it is sourced."""
    script = folder / "environment.sh"
    script.write_text(text)
    done = subprocess.run(
        [shell, "-euc", f". {script}; env -0"],
        env={"PATH": os.environ["PATH"], **environ}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return dict(word.split("=", 1) for word in done.stdout.split("\0") if word)


@pytest.mark.parametrize(
    ("environ", "several"),
    [
        ({}, False),
        ({"SLURM_JOB_NUM_NODES": "1"}, False),
        ({"SLURM_JOB_NUM_NODES": "2"}, True),
        ({"PBS_NODEFILE": "one"}, False),
        ({"PBS_NODEFILE": "two"}, True),
        ({"PBS_NODEFILE": "gone"}, False),
    ],
)
def test_apptainer_file_asks_for_the_network_where_there_are_several_nodes(
    environ: dict[str, str], several: bool, tmp_path: Path
) -> None:
    (tmp_path / "one").write_text("a\na\n")
    (tmp_path / "two").write_text("a\nb\na\n")
    if "PBS_NODEFILE" in environ:
        environ = {"PBS_NODEFILE": str(tmp_path / environ["PBS_NODEFILE"])}
    text = made("apptainer")["environment.sh"].text
    found = run(text, {**environ, "APPTAINER_BINDPATH": "/own"}, tmp_path)
    assert found.get("APPTAINERENV_NCCL_NET") == ("AWS Libfabric" if several else None)
    assert found["APPTAINERENV_NCCL_NET_PLUGIN"] == "fairlead"
    own, bind = found["APPTAINER_BINDPATH"].split(",")
    assert own == "/own" and bind.endswith(":/opt/fairlead/nccl:ro")
    assert "fairlead_nodes" not in found
    # After the file for the MPI: its folders follow.
    after = run(
        text, {**environ, "APPTAINERENV_LD_LIBRARY_PATH": "/opt/fairlead/mpi/lib"}, tmp_path
    )
    path = "/opt/fairlead/nccl/lib:/opt/fairlead/mpi/lib"
    assert after["APPTAINERENV_LD_LIBRARY_PATH"] == path


@pytest.mark.parametrize(("nodes", "several"), [("1", False), ("4", True), ("", False)])
def test_enroot_hook_asks_for_the_network_where_there_are_several_nodes(
    nodes: str, several: bool, tmp_path: Path
) -> None:
    hook = tmp_path / "hook.sh"
    hook.write_text(made("enroot")["hooks.d/51-fairlead-nccl-nodes.sh"].text)
    environ = {"PATH": os.environ["PATH"], "ENROOT_ENVIRON": str(tmp_path / "environ")}
    environ |= {"SLURM_JOB_NUM_NODES": nodes} if nodes else {}
    (tmp_path / "environ").touch()
    subprocess.run(["bash", str(hook)], env=environ, check=True)
    written = (tmp_path / "environ").read_text()
    assert written == ("NCCL_NET=AWS Libfabric\n" if several else "")


def test_real_plugin_is_exported_staged_and_loads_its_libraries_from_its_own_folder(
    tmp_path: Path,
) -> None:
    """A plugin by gcc: found by the profile, laid out by stage.sh, opened by name as NCCL opens it."""
    libraries, folder = tmp_path / "dependency", tmp_path / "plugin"
    needed = compiled(libraries / "libofi-of-test.so.1", "int of_test(void) { return 7; }")
    compiled_nccl.plugin(
        folder / "libnccl-net.so",
        release="1.9.1",
        does=compiled_nccl.Does(opens=("libcuda.so",)),
        more="int of_test(void); int tried(void) { return of_test(); }\n",
        words=[str(needed)],
    )
    profile = tmp_path / "mine.toml"
    profile.write_text(f"""[site]
name = "mine"
summary = "of a test"
extends = "laptop"
[nccl]
source = "guess"
folders = ["{folder}"]
libraries = ["{libraries}"]
env = {{ NCCL_CROSS_NIC = "1" }}
""")
    env = {f"XDG_{n}_HOME": str(tmp_path / n) for n in ("CACHE", "CONFIG", "DATA")}
    out, stage = tmp_path / "out", tmp_path / "stage"
    words = [
        "--for",
        "apptainer",
        "--nccl",
        "--site",
        str(profile),
        "--stage",
        str(stage),
        "--private",
    ]
    done = CliRunner().invoke(main, ["site", "export", *words, "-o", str(out)], env=env)
    assert done.exit_code == 0, done.output
    environ = {**os.environ, "PATH": f"{Path(find_patchelf()).parent}:{os.environ['PATH']}"}
    script = subprocess.run([out / "stage.sh"], capture_output=True, text=True, env=environ)
    assert script.returncode == 0, script.stderr
    staged = Path(script.stdout.strip())
    assert f"{staged}:/opt/fairlead/nccl:ro" in (out / "environment.sh").read_text()
    assert {p.name for p in (staged / "lib").iterdir()} == {
        "libnccl-net.so", "libnccl-net-ofi.so", "libnccl-net-fairlead.so",
    }  # fmt: skip
    copied = reader.read(staged / "lib/libnccl-net-fairlead.so")
    assert copied.rpath == ("/opt/fairlead/nccl/dep",) and needed.name in copied.needed
    made_up = reader.read(staged / "dep/libcuda.so")
    assert (made_up.soname, made_up.needed) == ("libcuda.so", ("libcuda.so.1",))
    # A second run leaves a whole folder as it is.
    before = (staged / ".state").stat().st_mtime_ns
    assert subprocess.run([out / "stage.sh"], env=environ, capture_output=True).returncode == 0
    assert (staged / ".state").stat().st_mtime_ns == before
    # Where the folder is not at its place, the loader gets the folder of its libraries; it finds the plugin by its name.
    opened = "import ctypes; print(ctypes.CDLL('libnccl-net-fairlead.so').tried())"
    search = {**os.environ, "LD_LIBRARY_PATH": f"{staged}/lib:{staged}/dep"}
    loaded = subprocess.run(["python3", "-c", opened], env=search, capture_output=True, text=True)
    assert loaded.stdout == "7\n", loaded.stderr


def test_machine_that_is_not_of_the_site_exports_no_plugin_of_its_own_for_it(
    tmp_path: Path,
) -> None:
    env = {f"XDG_{n}_HOME": str(tmp_path / n) for n in ("CACHE", "CONFIG", "DATA")}
    code, out, err = call("site", "export", "--for", "cdi", "--nccl", "--site", "olivia", env=env)
    assert code == ExitCode.USAGE and not out
    assert err.startswith("error[export-site]") and "the network plugin of olivia" in err


def test_plugin_of_another_machine_comes_from_its_capture(tmp_path: Path) -> None:
    path = tmp_path / "x3001.json"
    host = HostNccl((network(),), devices=("/dev/cxi0", "/dev/cxi1"))
    captured = taken(site=SITES["polaris"], node="x3001", nccl=host)
    capture.write(captured, path)
    words = ["site", "export", "--for", "cdi", "--nccl", "--site", str(path), "--dry-run", "--json"]
    done = CliRunner().invoke(main, words, env={"XDG_CACHE_HOME": str(tmp_path)})
    assert done.exit_code == 0, done.output
    [made_of_it, script] = json.loads(done.stdout)["files"]
    assert made_of_it["text"] == made("cdi")["fairlead-nccl.json"].text
    assert "/soft/libraries/aws-ofi-nccl/v1.9.1-aws/lib/libnccl-net.so" in script["text"]
