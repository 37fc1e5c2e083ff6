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


class Packed(importlib.machinery.SourceFileLoader):
    """Of a module whose code is in the file; its other files stay where they are."""

    code = b""

    def get_code(self, fullname):
        return marshal.loads(self.code)


class Pack:
    """A finder (importlib.abc)."""

    def __init__(self, path):
        with open(path, "rb") as stream:
            self._data = memoryview(mmap.mmap(stream.fileno(), 0, prot=mmap.PROT_READ))
        (size,) = struct.unpack_from("<Q", self._data)
        head = json.loads(bytes(self._data[8 : 8 + size]))
        self._root, self._modules, self._begin = head["root"], head["modules"], 8 + size

    def find_spec(self, name, path=None, target=None):
        found = self._modules.get(name)
        if found is None:
            return None
        at, size, package, file = found
        file = f"{self._root}/{file}"
        loader = Packed(name, file)
        loader.code = self._data[self._begin + at : self._begin + at + size]
        folders = [file.rpartition("/")[0]] if package else None
        return importlib.util.spec_from_file_location(
            name, file, loader=loader, submodule_search_locations=folders
        )


if sys.argv[1] == "pack":
    pack(*sys.argv[2:])
else:
    sys.meta_path.insert(0, Pack(sys.argv[2]))
    exec(sys.argv[3])
