"""NCCLs and net plugins that gcc compiles for a test, as far as fairlead and a loader look at them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.compiled import compiled

LIBRARY = """
#include <stdio.h>
int ncclGetVersion(int *v) {{ *v = {number}; return 0; }}
int ncclCommInitRank(void **c, int n, int r) {{ puts("{text}"); return 0; }}
"""
_NET = """
struct net ncclNetPlugin_v{version} = {{ "{name}", init, devices }};
"""
PLUGIN = """
#include <stdlib.h>
#include <dlfcn.h>
struct net { const char *name; int (*init)(void *); int (*devices)(int *); };
const char *release = RELEASE;
static const char *const opened[] = { OPENS };
static int init(void *log) {
    for (int i = 0; opened[i]; i++) if (!dlopen(opened[i], RTLD_NOW)) return 2;
    return FAILS;
}
static int devices(int *n) { *n = DEVICES; return 0; }
"""
ABORTS = "#include <stdlib.h>\n__attribute__((constructor)) static void broken(void) { abort(); }\n"


def nccl(path: Path, version: str = "2.21.5+cuda12.4", words: Sequence[str] = ()) -> Path:
    """An NCCL of a version, with a SONAME that is its file's name."""
    major, minor, patch = version.partition("+")[0].split(".")
    number = int(major) * 10000 + int(minor) * 100 + int(patch)
    code = LIBRARY.format(number=number, text=f"NCCL version {version}")
    return compiled(path, code, *words)


@dataclass(frozen=True)
class Does:
    """What a plugin does when it is used.

    Attributes:
        opens: names that its ``init`` passes to dlopen.
        fails: what ``init`` returns.
    """

    opens: Sequence[str] = ()
    fails: int = 0
    devices: int = 1


def plugin(
    path: Path,
    versions: Sequence[int] = (6, 7, 8),
    *,
    name: str = "Libfabric",
    release: str = "",
    does: Does = Does(),
    more: str = "",
    words: Sequence[str] = (),
) -> Path:
    """A net plugin that exports these versions of the interface.

    Args:
        release: of aws-ofi-nccl.
        more: C code of further symbols.
    """
    text = f'"Initializing aws-ofi-nccl {release}"' if release else '""'
    code = PLUGIN.replace("RELEASE", text).replace("FAILS", str(does.fails))
    code = code.replace("OPENS", "".join(f'"{one}", ' for one in does.opens) + "0")
    code = code.replace("DEVICES", str(does.devices)) + more
    code += "".join(_NET.format(version=version, name=name) for version in versions)
    return compiled(path, code, *words)
