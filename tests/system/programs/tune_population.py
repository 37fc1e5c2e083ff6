"""Ten steps of descent from where the source has left off; the rate decides how far they lead."""

import argparse
import json

from fairlead import tune

parser = argparse.ArgumentParser()
parser.add_argument("--rate", type=float)
rate = parser.parse_args().rate
source, folder = tune.source(), tune.folder()
state = json.loads((source / "state.json").read_text()) if source else {"x": 5.0, "steps": 0}
for _ in range(10):
    state["x"] -= rate * 2 * state["x"]
    state["steps"] += 1
    tune.report(state["steps"], state["x"] ** 2)
(folder / "state.json").write_text(json.dumps(state))
