"""Ranks look through a data set together, and read it: ``data_ranks.py FOLDER`` prints what rank 0 gathered."""

import json
import sys
from pathlib import Path

from fairlead import comm
from fairlead.ml.data.manifest import read_manifest
from fairlead.ml.data.prefetch import prefetch
from fairlead.ml.data.shards import Rows

ranks = comm.init()
manifest = read_manifest(Path(sys.argv[1]), "train", skip_damaged=True, verify=True, together=ranks)
rows = Rows(manifest, "train", ranks.rank, ranks.size)
sums = [float(step.batch.inputs.sum(dtype="f8")) for step in prefetch(rows.steps(4, 1, epochs=1))]
mine = {
    "damaged": [damage.path.name for damage in manifest.damaged],
    "total": manifest.total,
    "rows": len(rows),
    "steps": len(sums),
    "sum": sum(sums),
}
every = ranks.gather(mine)
comm.finalize()
if every is not None:
    print("FOUND", json.dumps(every), flush=True)
