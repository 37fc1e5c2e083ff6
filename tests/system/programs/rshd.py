"""The init of a simulated host, and its rshd(8): each line from the network is run as a command.

What the command prints goes back, and one more byte: its exit code, which ssh(1) passes on as well.
It ends with its standard input, and all that runs on the host ends with it.
"""

import os
import select
import signal
import socket
import subprocess
import sys


def run(link: socket.socket) -> None:
    line = b""
    while not line.endswith(b"\n"):
        line += link.recv(65536)
    code = subprocess.call(["sh", "-c", line], stdin=link, stdout=link, stderr=link)
    link.sendall(bytes([code if code >= 0 else 128 - code]))


with socket.create_server(("", int(sys.argv[1]))) as server:
    print("ready", flush=True)
    # So that the kernel buries whom init inherits.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while server in select.select([server, 0], [], [])[0]:
        link, _ = server.accept()
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            run(link)
            os._exit(0)
        link.close()
