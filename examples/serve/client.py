"""Starts a run of `fairlead serve start`, prints its output as it comes, and ends with its exit code.

$ FAIRLEAD_TOKEN=... python3 client.py http://127.0.0.1:8642 ring greeting=hello
"""

import json
import os
import sys
from urllib.error import HTTPError
from urllib.request import Request, urlopen

url, run, *pairs = sys.argv[1:]
headers = {
    "Authorization": f"Bearer {os.environ['FAIRLEAD_TOKEN']}",
    "Content-Type": "application/json",
}


def ask(path, body=None):
    try:
        return urlopen(Request(f"{url}/api/{path}", body, headers), timeout=60)
    except HTTPError as error:
        sys.exit(
            "\n".join(
                f"{f['what']}; {f['why']}; {f['remedy']}" for f in json.load(error)["findings"]
            )
        )


given = (pair.partition("=") for pair in pairs)
parameters = {name: int(text) if text.isdigit() else text for name, _, text in given}
id = json.load(ask("runs", json.dumps({"run": run, "parameters": parameters}).encode()))["id"]
start, state = "0", "queued"
while state in ("queued", "running"):
    part = ask(f"runs/{id}/log?start={start}&wait=20")
    print(part.read().decode(), end="", flush=True)
    start, state = part.headers["X-Next-Start"], part.headers["X-State"]
print(f"run {id}: {state}")
sys.exit(json.load(ask(f"runs/{id}"))["exit_code"] or state != "done")
