"""Which nodes have failed in this user's runs, and how often?"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator

from fairlead.base.paths import cache_dir
from fairlead.doctor.diagnosis import Check, Diagnosis, Topic, ill, note, well
from fairlead.doctor.world import World
from fairlead.launch import node_history

OFTEN = 3  # failures of one node; one may be any node's, and two a coincidence


def examine(world: World) -> Iterator[Diagnosis]:
    file = cache_dir(world.environ) / node_history.FILE
    known = node_history.read(world.read(str(file)) or "")
    lost = Counter(failure.host for failure in known if failure.check == "node-lost")
    for host, count in Counter(failure.host for failure in known).most_common(10):
        last = max((f for f in known if f.host == host), key=lambda failure: failure.time)
        often = lost[host] >= OFTEN
        yield (ill if often else note)(
            "node-history-often" if often else "node-history",
            host=host, count=count, s="s" if count > 1 else "", lost=lost[host], file=file, what=last.what,
            day=time.strftime("%Y-%m-%d", time.localtime(last.time)),
        )  # fmt: skip
    if not known:
        yield well("no run has named a node that failed", str(file))


CHECK = Check("node-history", "nodes that failed in earlier runs", examine, Topic.NETWORK, order=90)
