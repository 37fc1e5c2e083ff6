"""LL128 on GH200 over Slingshot: wrong sums, silently. Source: NVIDIA/nccl#2001."""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.base.errors import Finding, error
from fairlead.nccl.checks.model import Case, Check
from fairlead.nccl.decide import LL128_OFF, PROTO, ll128_is_broken

# Without eager messages the fault does not occur.
_EAGER = ("FI_CXI_RDZV_THRESHOLD", "FI_CXI_RDZV_GET_MIN")


class Ll128(Check):
    about = "NCCL 2.27 and newer does not use LL128 on GH200 over Slingshot"

    def look(self, case: Case) -> Iterator[Finding]:
        if not case.across or not ll128_is_broken(case.library, case.ask):
            return
        value = case.env.get(PROTO, "")
        if allows_ll128(value) and not all(case.env.get(name) == "0" for name in _EAGER):
            shown = f"{PROTO}={value}" if value else f"{PROTO} is not set"
            yield error("nccl-ll128", library=case.library, shown=shown, remedy_value=LL128_OFF)


def allows_ll128(value: str) -> bool:
    """Whether a value of NCCL_PROTO leaves LL128 among the protocols.

    >>> [allows_ll128(v) for v in ("", "^LL128", "^LL", "LL,Simple", "LL,LL128")]
    [True, False, True, False, True]
    """
    excluded = value.startswith("^")
    names = {name.strip().upper() for name in value.removeprefix("^").split(",")} - {""}
    return ("LL128" not in names) if excluded or not names else "LL128" in names


CHECK = Ll128()
