"""All pure modules of a site-packages folder in one mapped file: ``import_pack.py pack FOLDER FILE`` writes it, and
``import_pack.py run FILE CODE`` runs CODE with it in front of the folders. An experiment of ``benchmarks/bars/job_start.py``."""

import importlib.machinery
import importlib.util
import json
import marshal
import mmap
import struct
import sys
from pathlib import Path


def pack(folder, target):
    index, parts, at = {}, [], 0
    root = Path(folder)
    for source in sorted(root.rglob("*.py")):
        cached = Path(importlib.util.cache_from_source(str(source)))
        names = list(source.relative_to(root).with_suffix("").parts)
        if not cached.is_file() or not all(map(str.isidentifier, names)):
            continue
        package = names[-1] == "__init__"
        code = cached.read_bytes()[16:]
        index[".".join(names[:-1] if package else names)] = (
            at,
            len(code),
            package,
            str(source.relative_to(root)),
        )
        parts.append(code)
        at += len(code)
    head = json.dumps({"root": str(root), "modules": index}).encode()
    Path(target).write_bytes(struct.pack("<Q", len(head)) + head + b"".join(parts))


class Pack:
    """A finder and loader (importlib.abc)."""

    def __init__(self, path):
        with open(path, "rb") as stream:
            self._data = memoryview(mmap.mmap(stream.fileno(), 0, prot=mmap.PROT_READ))
        (size,) = struct.unpack_from("<Q", self._data)
        head = json.loads(bytes(self._data[8 : 8 + size]))
        self._root, self._modules, self._begin = Path(head["root"]), head["modules"], 8 + size

    def find_spec(self, name, path=None, target=None):
        found = self._modules.get(name)
        if found is None:
            return None
        file = str(self._root / found[3])
        spec = importlib.machinery.ModuleSpec(name, self, origin=file, is_package=found[2])
        spec.has_location = True
        if found[2]:
            spec.submodule_search_locations = [str(Path(file).parent)]
        return spec

    def create_module(self, spec):
        return None

    def exec_module(self, module):
        at, size, *_ = self._modules[module.__name__]
        at += self._begin
        exec(marshal.loads(self._data[at : at + size]), module.__dict__)


if sys.argv[1] == "pack":
    pack(*sys.argv[2:])
else:
    sys.meta_path.insert(0, Pack(sys.argv[2]))
    exec(sys.argv[3])
