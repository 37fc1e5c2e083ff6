"""What reading takes of memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np

from fairlead.ml.data.example import encode
from fairlead.ml.data.tfrecord import Compression, Writer


def test_compressed_record_is_in_memory_once(tmp_path: Path) -> None:
    voxels = np.zeros((200, 200, 200, 4), "<i2")  # 64 MB
    path = tmp_path / "train.tfrecord.gz"
    with path.open("wb") as stream, Writer(stream, Compression.GZIP) as out:
        out.write(encode({"x": voxels.tobytes(), "y": np.zeros(4, np.float32)}))
    program = f"""
import re
from pathlib import Path
from fairlead.ml.data.manifest import read_manifest
peak = lambda: int(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1]) << 10
before = peak()
read_manifest(Path({str(tmp_path)!r}), "train", verify=True)
print(peak() - before)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 1.3 * voxels.nbytes
