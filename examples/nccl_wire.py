"""Moves messages through NCCL's network plugin between two hosts, without NCCL and without a GPU.

Shows plugin, provider, network devices and rate, and whether what arrives is what was sent. On the hosts of a job that
share this folder; without hosts, between two processes of this one:

    $ python3 examples/nccl_wire.py build/libnccl-net.so
    python3 examples/nccl_wire.py /opt/cray/aws-ofi-nccl/lib/libnccl-net.so nid001 nid002

Ends with 122 if the plugin does not work, and says why.
"""

import sys
from pathlib import Path

from fairlead.proof.wire import Settings, wire

plugin, *hosts = sys.argv[1:]
starts = [("ssh", host) for host in hosts] or [(), ()]
done = wire(plugin, Settings(count=200), starts, folder=Path.cwd() if hosts else None)
print(done.line if done.holds else f"not proved: {plugin}")
for finding in done.findings():
    print(
        f"error: {finding.what}\nwhere: {finding.where}\nwhy:   {finding.why}\nnext:  {finding.remedy}"
    )
sys.exit(0 if done.holds else 122)
