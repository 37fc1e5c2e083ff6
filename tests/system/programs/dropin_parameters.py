"""``dropin_parameters.py RECORD FRONT...``: what each front of the drop-in does not take as Horovod's does, as JSON."""

import importlib
import inspect
import json
import sys
from typing import Any

from fairlead.base.errors import FairleadError
from fairlead.comm import dropin


def differs(function: Any, expected: list[str]) -> str:
    """What an old script would find, who passes all by place, each by name, or one that does not exist."""
    try:
        signature = inspect.signature(function)
        values = {name: object() for name in expected}
        assert dict(signature.bind(*values.values()).arguments) == values, "order"
        signature.bind(**values)
    except (TypeError, AssertionError) as exc:
        return f"{exc}: {signature}"
    kinds = {parameter.kind for parameter in signature.parameters.values()}
    return f"takes anything: {signature}" if inspect.Parameter.VAR_KEYWORD in kinds else ""


record, *fronts = sys.argv[1:]
dropin.install(["horovod"])
with open(record) as stream:
    table = json.load(stream)
unlike: dict[str, str] = {}
for front in fronts:
    module = importlib.import_module(front)
    for name, expected in table[front].items():
        try:
            reason = differs(getattr(module, name), expected)
        except FairleadError as exc:
            reason = exc.findings[0].what
        except AttributeError as exc:
            reason = str(exc)
        if reason:
            unlike[f"{front}.{name}"] = reason
print(json.dumps(unlike, indent=1))
