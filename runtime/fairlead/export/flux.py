"""Flux: a command that submits a launch in an image as a batch job, for workflows of ``flux submit`` and the like.

Within the job's own instance, ``fairlead run`` starts ranks by ``flux run``.
Source: flux-core, docs: flux-batch(1) (``--wrap``), flux-run(1); flux-python 0.88, flux/cli/batch.py.
"""

from __future__ import annotations

import shlex

from fairlead import __version__
from fairlead.export.model import ExportFile, Facts, Target

_SUBMIT = """\
#!/bin/sh
# Submits a launch in an image to Flux, and prints the job. Written by fairlead {version} for {site}.
#
#     job=$(./fairlead-submit -N 2 -n 8 tensorflow python3 train.py)
#     ./fairlead-submit --dependency=afterok:"$job" -n 4 tensorflow python3 use.py
#
# Options before the image, each with its value in the same word, are flux batch's.
nodes= ranks=1 options=
while [ $# -gt 0 ]; do
    case $1 in
    -N) nodes=$2; shift 2 ;;
    -n) ranks=$2; shift 2 ;;
    --) shift; break ;;
    -*) options="$options $1"; shift ;;
    *) break ;;
    esac
done
if [ $# -lt 2 ]; then
    echo "error: this job has no image, or no command" >&2
    echo "where: fairlead-submit $*" >&2
    echo "why:   a launch is fairlead-submit [-N NODES] [-n RANKS] IMAGE COMMAND" >&2
    echo "next:  name an image that \\`fairlead images list\\` shows, or the path of one" >&2
    exit 2
fi
image=$1
shift
# The words of a wrapped command are joined by blanks, and a shell reads them again.
line=
for word in {start} --launcher flux ${{nodes:+-N "$nodes"}} -n "$ranks" "$image" -- "$@"; do
    line="$line '$(printf '%s' "$word" | sed "s/'/'\\\\\\\\''/g")'"
done
exec flux batch --job-name="${{image##*/}}" $options ${{nodes:+-N "$nodes"}} -n "$ranks" --wrap "$line"
"""


def files(facts: Facts) -> tuple[ExportFile, ...]:
    """``fairlead-submit``."""
    start = [*facts.fairlead, "run", *facts.options]
    text = _SUBMIT.format(
        version=__version__,
        site=facts.site.name,
        start=shlex.join(start),
    )
    return (ExportFile("fairlead-submit", text, "a folder of PATH", 0o755),)


EXPORT = Target("a command that submits launches in images, for Flux", files)
