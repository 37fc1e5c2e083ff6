"""OpenStack Swift with its S3 interface: proxy, account, container and object server in one process tree on a folder.

Run by the Python that Swift is installed in: ``python swift_server.py FOLDER ADDRESS PORT``. ``users.conf`` in FOLDER has the lines
of tempauth, one a user. Bytes on disk are below ``FOLDER/devices``.
"""

import ctypes
import os
import signal
import socket
import sys
from pathlib import Path

PIPELINE = (
    "catch_errors gatekeeper healthcheck cache listing_formats bulk tempurl s3api tempauth slo dlo"
    " versioned_writes symlink proxy-server"
)
COMMON = """
[DEFAULT]
bind_ip = {address}
bind_port = {port}
workers = 0
user = {user}
swift_dir = {top}
devices = {top}/devices
mount_check = false
log_address = {top}/no-syslog
log_level = ERROR
"""
PROXY = """
[pipeline:main]
pipeline = {pipeline}
[app:proxy-server]
use = egg:swift#proxy
allow_account_management = true
account_autocreate = true
[filter:s3api]
use = egg:swift#s3api
[filter:slo]
use = egg:swift#slo
[filter:versioned_writes]
use = egg:swift#versioned_writes
allow_object_versioning = true
[filter:cache]
use = egg:swift#memcache
memcache_servers = 127.0.0.1:1
[filter:tempauth]
use = egg:swift#tempauth
{users}
"""
FILTERS = "catch_errors gatekeeper healthcheck listing_formats bulk tempurl dlo symlink"


def main() -> None:
    top, address, port = Path(sys.argv[1]).absolute(), sys.argv[2], int(sys.argv[3])
    (top / "swift.conf").write_text(
        "[swift-hash]\nswift_hash_path_suffix = s\nswift_hash_path_prefix = p\n"
        "[storage-policy:0]\nname = one\ndefault = yes\n[swift-constraints]\nmax_file_size = 5368709122\n"
    )
    (top / "devices" / "d1").mkdir(parents=True, exist_ok=True)
    sockets = {kind: free_socket() for kind in ("account", "container", "object")}
    ports = {kind: sock.getsockname()[1] for kind, sock in sockets.items()}
    for kind, used in ports.items():
        ring(top, kind, used)
    configurations = {
        kind: f"[pipeline:main]\npipeline = {kind}-server\n"
        f"[app:{kind}-server]\nuse = egg:swift#{kind}\n"
        for kind in ports
    }
    configurations["proxy"] = PROXY.format(
        pipeline=PIPELINE, users=(top / "users.conf").read_text()
    ) + "".join(f"[filter:{name}]\nuse = egg:swift#{name}\n" for name in FILTERS.split())
    ports["proxy"] = port
    for sock in sockets.values():
        sock.close()
    for kind, text in configurations.items():
        at = address if kind == "proxy" else "127.0.0.1"
        whole = COMMON.format(address=at, port=ports[kind], user=user(), top=top) + text
        (top / f"{kind}.conf").write_text(whole)
        if not os.fork():
            served(top, kind)
    os.wait()  # none of them ends by itself
    sys.exit(1)


def free_socket() -> socket.socket:
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    return sock


def user() -> str:
    import pwd

    return pwd.getpwuid(os.geteuid()).pw_name


def ring(top: Path, kind: str, port: int) -> None:
    from swift.common.ring import RingBuilder

    builder = RingBuilder(4, 1, 1)
    builder.add_dev(
        {
            "region": 1, "zone": 1, "ip": "127.0.0.1", "port": port, "device": "d1", "weight": 1,
            "replication_ip": "127.0.0.1", "replication_port": port,
        }
    )  # fmt: skip
    builder.rebalance()
    builder.get_ring().save(str(top / f"{kind}.ring.gz"))


def served(top: Path, kind: str) -> None:
    parent = os.getppid()
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG: it ends with its parent
    if os.getppid() != parent:
        os._exit(1)
    from swift.common.wsgi import run_wsgi

    code = run_wsgi(str(top / f"{kind}.conf"), f"{kind}-server")
    os._exit(code or 0)


main()
