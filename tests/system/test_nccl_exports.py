"""Exports of NCCL's network plugin, made by root and taken by another user's Podman: the plugin is found by its name and
finds its libraries.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from tests.support import nccl
from tests.support.compiled import compiled
from tests.system import hosts
from tests.system.podman import rootless, specified
from tests.system.test_user import processes_of

from fairlead.elf.patchelf import find_patchelf

# The program of sarus-suite/performance-extensions, built from its sources.
SARUS_HOOK = os.environ.get("FAIRLEAD_TEST_SARUS_HOOK", "")
# What NCCL does first: it opens the plugin by the name that NCCL_NET_PLUGIN asks for.
OPENS = r"""
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#define OR(x, y) ((x) ? (x) : (y))
int main(void) {
    char name[200];
    snprintf(name, sizeof name, "libnccl-net-%s.so", OR(getenv("NCCL_NET_PLUGIN"), "none"));
    void *plugin = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!plugin) { puts(dlerror()); return 1; }
    int (*tried)(void) = (int (*)(void))dlsym(plugin, "tried");
    printf("%d %s %s\n", tried(), OR(getenv("NCCL_NET"), "unset"), OR(getenv("NCCL_CROSS_NIC"), "unset"));
    return 0;
}
"""
PROFILE = """[site]
name = "mine"
summary = "of a test"
extends = "laptop"
[nccl]
source = "guess"
folders = ["{folder}"]
libraries = ["{libraries}"]
env = {{ NCCL_CROSS_NIC = "1" }}
[devices]
source = "guess"
paths = ["/dev/null"]
"""


@dataclass(frozen=True)
class Machine:
    """A site with a plugin, an image without one, and a user.

    Attributes:
        root: the image: one program and its C library.
    """

    folder: Path
    site: Path
    root: Path
    uid: int
    home: Path

    def export(self, target: str) -> Path:
        """The folder of an export by root, whose staging script has run."""
        out = self.folder / target
        before = os.umask(0o077)
        try:
            done = hosts.fairlead(
                "site", "export", "--for", target, "--nccl", "--site", self.site,
                "--stage", self.folder / "stage", "-o", out,
            )  # fmt: skip
            assert done.returncode == 0, done.stdout + done.stderr
            done = hosts.program(out / "stage.sh", env={"PATCHELF": find_patchelf()})
            assert done.returncode == 0, done.stdout + done.stderr
        finally:
            os.umask(before)
        return out


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    shared = Path(tempfile.mkdtemp(prefix="fairlead-nccl-"))
    shared.chmod(0o755)
    try:
        with hosts.account("nccl", shared) as (name, home):
            site, root = plugin_and_image(shared)
            subprocess.run(["chown", "-R", f"{name}:", root], check=True)
            uid = home.stat().st_uid
            yield Machine(shared, site, root, uid, home)
            for pid in processes_of(uid):
                os.kill(pid, signal.SIGKILL)
    finally:
        shutil.rmtree(shared)


def plugin_and_image(tmp_path: Path) -> tuple[Path, Path]:
    """The profile of a site with a plugin, and the folder of an image without one."""
    libraries, folder = tmp_path / "dependency", tmp_path / "plugin"
    needed = compiled(libraries / "libwire-of-test.so.1", "int wire(void) { return 7; }")
    nccl.plugin(
        folder / "libnccl-net.so",
        release="1.9.1",
        more="int wire(void); int tried(void) { return wire(); }\n",
        words=[str(needed)],
    )
    site = tmp_path / "mine.toml"
    site.write_text(PROFILE.format(folder=folder, libraries=libraries))
    root = tmp_path / "root"
    program = compiled(root / "bin/opens", OPENS)
    for place in ("proc", "sys", "dev", "etc", "run", "tmp"):
        (root / place).mkdir(parents=True)
    listed = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    for word in listed.split():
        if word.startswith("/"):
            target = root / word.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(word, target)
    return site, root


def test_podman_takes_the_plugin_as_a_device(machine: Machine) -> None:
    file = machine.export("cdi") / "fairlead-nccl.json"
    with specified(file), rootless(machine.uid, machine.home) as run:
        words = ("run", "--rm", "--network=none", "--rootfs", machine.root, "/bin/opens")

        def opened(*options: str) -> str:
            return run(*words[:3], *options, *words[3:])

        assert opened("--device=fairlead/nccl=plugin") == "7 unset 1\n"
        assert opened("--device=fairlead/nccl=plugin-nodes") == "7 AWS Libfabric 1\n"
        run(*words, fails=True)  # without the device there is no plugin
        assert "unresolvable" in run(
            *words[:3], "--device=fairlead/nccl=none", *words[3:], fails=True
        )


def test_podman_hpcs_module_has_options_that_podman_takes(machine: Machine) -> None:
    modules = sorted((machine.export("podman-hpc") / "modules.d").glob("*.yaml"))
    options = [yaml.safe_load(m.read_text())["additional_args"] for m in modules]
    nodes, one = options  # `fairlead-nccl-nodes.yaml` comes first
    with rootless(machine.uid, machine.home) as run:
        for given, said in ((one, "unset"), (one + nodes, "AWS Libfabric")):
            # A container of its own network, as this machine's kernel may lack what the host's needs.
            own = [w for w in given if w != "--network=host"]
            shown = run(
                "run", "--rm", "--network=none", *own, "--rootfs", machine.root, "/bin/opens"
            )
            assert shown == f"7 {said} 1\n"


def test_every_export_names_the_same_folder(machine: Machine) -> None:
    folders = set()
    for target in ("apptainer", "cdi", "ce", "enroot", "podman-hpc", "sarus-suite"):
        out = machine.export(target)
        script = subprocess.run(
            ["sh", out / "stage.sh"], capture_output=True, text=True, check=True
        )
        folders.add(script.stdout.strip())
        texts = "".join(p.read_text() for p in out.rglob("*") if p.is_file())
        assert script.stdout.strip() in texts
    assert len(folders) == 1
    state = Path(folders.pop(), ".state").read_text()
    assert "lib/libnccl-net-fairlead.so -> libnccl-net.so" in state
    document = json.loads((machine.folder / "cdi/fairlead-nccl.json").read_text())
    assert document["devices"][0]["containerEdits"]["deviceNodes"] == [{"path": "/dev/null"}]


@pytest.mark.full
@pytest.mark.skipif(not SARUS_HOOK, reason="FAIRLEAD_TEST_SARUS_HOOK names no pc_injection_hook")
def test_real_hook_of_sarus_suite_brings_the_plugin(machine: Machine) -> None:
    """For a user, in a user namespace; its configuration of a container is carried out by mount(8): its Podman's runtime,
    crun, takes no hybrid cgroups.
    """
    out = machine.export("sarus-suite")
    [file] = (out / "hooks.d").glob("*.json")
    hook = json.loads(file.read_text())["hook"]
    subprocess.run(["ldconfig", "-r", machine.root], check=True)
    given = {"root": {"path": str(machine.root)}, "process": {"env": ["PATH=/bin"]}, "mounts": []}

    def by_the_user(*words: str, given: str = "") -> subprocess.CompletedProcess[str]:
        line = hosts.as_user(machine.uid, machine.home, {"PATH": os.environ["PATH"]}, *words)
        return subprocess.run(line, input=given, capture_output=True, text=True, check=False)

    done = by_the_user(SARUS_HOOK, *hook["args"][1:], given=json.dumps(given))
    assert done.returncode == 0, done.stderr
    config = json.loads(done.stdout)
    script = "".join(
        f"t={machine.root}{m['destination']}; if [ -d {m['source']} ]; then mkdir -p $t; else [ -e $t ] || touch $t; fi\n"
        f"mount --bind {m['source']} $t\n"
        for m in config["mounts"]
    )
    script += f"exec env -i {' '.join(config['process']['env'])} {shutil.which('chroot')} {machine.root} /bin/opens"
    run = by_the_user("unshare", "--map-root-user", "--mount", "sh", "-ec", script)
    assert run.stdout == "7 unset 1\n", run.stdout + run.stderr
