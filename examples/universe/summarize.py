"""What each round came to, as one table: `summary.csv`, for Snakemake's report.

$ fairlead run tensorflow -- python3 examples/universe/summarize.py -o summary.csv used/0.json used/1.json
"""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

from whole import whole

output, *files = map(Path, sys.argv[2:])
rows = []
for number, path in enumerate(files):
    summary = json.loads(path.read_text())["summary"]
    for name, error in summary["error"].items():
        seconds = summary["seconds"].get(name, 0.0)
        figures = {key: round(value, 4) for key, value in error.items()}
        rows.append({"round": number, "by": name, "seconds": round(seconds, 4), **figures})
with whole(output) as stream:
    writer = csv.DictWriter(stream, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
