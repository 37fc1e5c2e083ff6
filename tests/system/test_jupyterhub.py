"""A real JupyterHub with batchspawner on a real Slurm, configured by the export: servers are jobs, kernels have ranks."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from tests.system import hosts, notebooks, slurm
from tests.system.slurm import waited

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a Slurm here"),
    pytest.mark.skipif(shutil.which("npm") is None, reason="npm brings the proxy of JupyterHub"),
]
_HUB = """
c = get_config()
load_subconfig({export!r})
c.JupyterHub.bind_url = "http://127.0.0.1:{port}"
c.JupyterHub.hub_bind_url = "http://127.0.0.1:{hub}"
c.ConfigurableHTTPProxy.command = [{proxy!r}]
c.ConfigurableHTTPProxy.api_url = "http://127.0.0.1:{api}"
c.JupyterHub.authenticator_class = "dummy"
c.Authenticator.allow_all = True
c.JupyterHub.services = [{{"name": "tests", "api_token": {token!r}}}]
c.JupyterHub.load_roles = [
    {{"name": "tests", "services": ["tests"], "scopes": ["admin:users", "admin:servers", "access:servers"]}}
]
# One account: that of these tests.
c.SlurmSpawner.exec_prefix = ""
c.SlurmSpawner.batch_script = c.SlurmSpawner.batch_script.replace("{{{{homedir}}}}", {home!r})
# No name service knows the nodes.
c.SlurmSpawner.state_exechost_exp = "127.0.0.1"
c.Spawner.args = ["--allow-root"]
c.Spawner.environment["XDG_STATE_HOME"] = {home!r}
c.Spawner.environment["XDG_CACHE_HOME"] = {cache!r}
c.Spawner.env_keep = {kept!r}
"""


def _proxy() -> str:
    """JupyterHub's own proxy, which npm has."""
    folder = hosts.KEPT / "configurable-http-proxy"
    program = folder / "node_modules/.bin/configurable-http-proxy"
    if not program.exists():
        words = ["npm", "install", "--silent", "--prefix", folder, "configurable-http-proxy@5"]
        subprocess.run([*map(str, words)], check=True, timeout=300)
    return str(program)


def _free() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_servers_are_jobs_and_their_kernels_have_a_rank_on_each_node(tmp_path: Path) -> None:
    token, port = secrets.token_hex(16), _free()
    with slurm.slurm(names=("n1", "n2"), cpus=4) as cluster:
        export = tmp_path / "export"
        done = cluster.fairlead(
            "site",
            "export",
            "--for",
            "jupyterhub",
            "--private",
            "--image",
            hosts.image(),
            "--name",
            "ranks",
            "-o",
            export,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        config = tmp_path / "jupyterhub_config.py"
        kept = [
            "PATH",
            "HOME",
            *(n for n in cluster.environ if n.startswith(("SLURM", "FAIRLEAD"))),
        ]
        config.write_text(
            _HUB.format(
                export=str(export / "fairlead_hub.py"), port=port, hub=_free(), api=_free(), proxy=_proxy(), token=token,
                home=str(tmp_path), cache=os.environ.get("XDG_CACHE_HOME", str(Path.home() / ".cache")), kept=kept,
            )
        )  # fmt: skip
        with (tmp_path / "hub.log").open("wb") as log:
            hub = subprocess.Popen(
                [sys.executable, "-m", "jupyterhub", "-f", str(config)],
                env=cluster.environ, cwd=tmp_path, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
            )  # fmt: skip
        try:
            _used(f"http://127.0.0.1:{port}", token, cluster, tmp_path)
        finally:
            hub.terminate()
            hub.wait(60)
        cluster.run("scancel", "--user=root")
        waited(cluster.empty, 60, "a job is left")
        waited(lambda: not cluster.processes(), 60, "a process is left on a node")


def _used(base: str, token: str, cluster: slurm.Cluster, folder: Path) -> None:
    def ask(path: str, data: object = None) -> object:
        body = None if data is None else json.dumps(data).encode()
        headers = {"Authorization": f"token {token}", "Content-Type": "application/json"}
        request = urllib.request.Request(base + path, body, headers)
        try:
            with urllib.request.urlopen(request, timeout=30) as stream:
                return json.loads(stream.read() or b"null")
        except urllib.error.HTTPError as exc:
            return {"refused": exc.code}
        except OSError:
            return None

    def logs() -> str:
        texts = [
            p.read_text(errors="replace")[-3000:]
            for p in (folder / "hub.log", *folder.glob(".jupyterhub-*.log"))
        ]
        return "\n".join(texts)

    try:
        waited(lambda: "version" in (ask("/hub/api/") or {}), 60, "the hub does not answer")
    except AssertionError:
        raise AssertionError(logs()) from None
    made = ask("/hub/api/users/root", {})
    assert made and "name" in made, (made, logs())
    ask("/hub/api/users/root/server", {"nodes": "2", "ranks_per_node": "1", "runtime": "10:00"})
    try:
        waited(
            lambda: "version" in (ask("/user/root/api") or {}), 120, "the server does not answer"
        )
    except AssertionError:
        raise AssertionError(logs()) from None
    assert cluster.said("squeue", "--noheader", "-o", "%j %D").split() == ["jupyterhub", "2"]
    made = ask("/user/root/api/kernels", {"name": "ranks"})
    assert isinstance(made, dict) and "id" in made, (made, logs())
    text = notebooks.over_http(
        f"{base}/user/root",
        token,
        made["id"],
        "%%ranks\nimport socket; socket.gethostname(), comm.allreduce(1)",
    )
    assert text.splitlines() == ["Out[0]: ('n1', 2)", "Out[1]: ('n2', 2)"], text + logs()
