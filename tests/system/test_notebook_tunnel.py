"""The tunnel's line that a notebook prints: a real ssh, from a third host, to a job's node behind the login host."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.system import hosts, notebooks, slurm
from tests.system.netns import Host, switched

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can part hosts"),
]
# Debian's sshd wants a folder in /run and a user: it has them alone.
_SSHD = """\
mount -t tmpfs tmpfs /run && mkdir /run/sshd && mount --bind "$1" /etc/passwd && shift && exec "$@"
"""
_NAMED = 'mount --bind "$1" /etc/hosts && shift && exec "$@"'
# What a browser does: a page, a kernel, a cell.
_BROWSER = """\
import json, sys, urllib.request
from tests.system.notebooks import over_http
url, token = sys.argv[1:]
def ask(path, data=None):
    headers = {"Authorization": f"token {token}"}
    with urllib.request.urlopen(urllib.request.Request(url + path, data, headers), timeout=60) as answer:
        return answer.read().decode()
assert "JupyterLab" in ask("/lab")
kernel = json.loads(ask("/api/kernels", json.dumps({"name": "fairlead"}).encode()))["id"]
print(over_http(url, token, kernel, "%ranks import socket; print(rank, size, socket.gethostname())"))
"""


@contextmanager
def sshd(host: Host, folder: Path) -> Iterator[None]:
    """Debian's ssh server at a host's usual port, which takes the key of ``folder``."""
    tree = hosts.debian_files("bookworm", "openssh-server", "libwrap0")
    (folder / "passwd").write_text(
        Path("/etc/passwd").read_text() + "sshd:x:64999:65534::/run/sshd:/usr/sbin/nologin\n"
    )
    settings = {
        "ListenAddress": "0.0.0.0", "HostKey": folder / "host", "AuthorizedKeysFile": folder / "key.pub",
        "PidFile": "none", "UsePAM": "no", "StrictModes": "no", "PermitRootLogin": "prohibit-password",
        "PasswordAuthentication": "no",
    }  # fmt: skip
    conf = folder / "sshd_config"
    conf.write_text("".join(f"{key} {value}\n" for key, value in settings.items()))
    words = host.words(
        "unshare", "--mount", "sh", "-c", _SSHD, "sh", folder / "passwd",
        tree / "usr/sbin/sshd", "-D", "-e", "-f", conf,
    )  # fmt: skip
    libraries = {"LD_LIBRARY_PATH": str(tree / "usr/lib/x86_64-linux-gnu")}
    log = folder / f"sshd-{host.name}"
    with (
        log.open("wb") as stream,
        subprocess.Popen(words, stderr=stream, env={**os.environ, **libraries}) as process,
    ):
        try:
            notebooks.waited(lambda: "listening" in log.read_text(), "no sshd", 20)
            yield
        finally:
            process.terminate()


def test_printed_line_leads_through_the_login_host_to_the_lab_of_a_job(tmp_path: Path) -> None:
    with notebooks.notebook("wheels", "--lab", "none", state=tmp_path):
        pass  # a node has no network to get the kernel's packages by
    with ExitStack() as stack:
        laptop, login, node = stack.enter_context(switched(3))
        address = {
            host.name: f"10.77.0.{number}" for number, host in enumerate((laptop, login, node), 1)
        }
        known = login.folder / "hosts"
        inside = ("nsenter", "--target", str(node.init), "--net", "--")
        cluster = stack.enter_context(
            slurm.slurm(
                control=tuple(login.words()), address=address[login.name], names=(node.name,),
                where={node.name: (address[node.name], (*inside, "unshare", "--mount", "sh", "-c", _NAMED, "sh", str(known)))},
            )
        )  # fmt: skip
        for name in ("key", "host"):
            words = ("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / name)
            subprocess.run(words, check=True)
        for host in (login, node):
            stack.enter_context(sshd(host, tmp_path))
        # The laptop comes to the login host alone.
        subprocess.run(
            laptop.words("ip", "route", "add", "unreachable", f"{address[node.name]}/32"),
            check=True,
        )
        printed = tmp_path / "printed"
        line = [
            sys.executable,
            "-m",
            "fairlead",
            "notebook",
            "-n",
            "2",
            "--with-kernel",
            hosts.image(),
        ]
        environ = f"XDG_STATE_HOME={tmp_path}/state"
        cluster.said(
            "sbatch",
            "--ntasks=2",
            f"--output={printed}",
            f"--wrap=env {environ} {shlex.join(map(str, line))}",
        )
        until = time.monotonic() + 200
        while "ssh -N" not in (text := printed.read_text() if printed.exists() else ""):
            assert time.monotonic() < until, text + cluster.said("scontrol", "show", "job")
            time.sleep(0.2)
        tunnel = re.search(r"ssh -N .*", text)
        lab = re.search(r"(http://127[.]0[.]0[.]1:[0-9]+)/lab[?]token=([0-9a-f]+)", text)
        assert tunnel and lab, text
        assert tunnel[0].endswith(f"-J root@{login.name} root@{node.name}"), tunnel[0]
        config = tmp_path / "config"
        public = (tmp_path / "host.pub").read_text()
        (tmp_path / "known").write_text(f"{login.name},{node.name} {public}")
        config.write_text(
            f"Host *\n IdentityFile {tmp_path}/key\n UserKnownHostsFile {tmp_path}/known\n BatchMode yes\n"
        )
        program, *rest = shlex.split(tunnel[0])
        direct = laptop.words(program, "-F", config, f"root@{node.name}", "true")
        assert subprocess.run(direct, check=False, timeout=30).returncode == 255
        ssh = subprocess.Popen(laptop.words(program, "-F", config, *rest))
        try:
            url, token = lab.groups()
            port = url.rpartition(":")[2]
            notebooks.waited(
                lambda: f":{port} " in subprocess.run(laptop.words("ss", "-ltn"), capture_output=True, text=True, check=True).stdout,
                "the tunnel does not come up", 60,
            )  # fmt: skip
            seen = subprocess.run(
                laptop.words(sys.executable, "-c", _BROWSER, url, token),
                check=False, capture_output=True, text=True, timeout=200, env={**os.environ, "PYTHONPATH": str(hosts.ROOT)},
            )  # fmt: skip
            assert seen.returncode == 0, seen.stderr + printed.read_text()
            for rank in (0, 1):
                assert f"{rank} 2 {node.name}" in seen.stdout, seen.stdout
        finally:
            ssh.terminate()
            ssh.wait(20)
        cluster.run("scancel", "--user=root")
        notebooks.waited(cluster.empty, "the job goes on")
