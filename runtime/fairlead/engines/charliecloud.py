"""Charliecloud: ``ch-run``, which needs no privilege and parts nothing but files.

It becomes the command that it starts, so descriptors, signals and exit codes are the command's own.
Whatever it binds must have a place in the image already: :mod:`fairlead.launch.unpack` makes them.

Source: ch-run(1) of Charliecloud 0.31, and the program itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fairlead.base.system import View
from fairlead.engines.model import Call, Driver, Engine, Takes, Words
from fairlead.engines.rank_shell import BASH, KEEPER, PLACES, variables

# It would bind TMPDIR as /tmp, and will not start without USER.
_RANK = (
    r"""
p=$1 root=$2 w=$3
shift 3
[ "$USER" ] || USER=$(id -un 2>/dev/null) || USER=$EUID
export USER
"""
    + PLACES.strip()
    + r"""
o=(--env-no-expand)
for f in "${places[@]}"; do
  [ "$f" != /tmp ] && [ -d "$root$f" ] && o+=(--bind "$f:$f")
done
[ "$TMPDIR" ] && o+=(--set-env="TMPDIR='$TMPDIR'")
unset TMPDIR
[ "$w" ] || { [ -d "$root$PWD" ] && w=$PWD; } || case $PWD in /tmp/*) w=$PWD ;; esac
exec "$p" "${o[@]}" --cd "${w:-/}" "$@"
"""
)
_JOIN = (
    KEEPER.strip() + "\nshift\n" + _RANK.replace("o=(", 'o=(--join-pid="$fairlead_engine" ').strip()
)
_REASONS = (
    ("--bind HOME, the working folder, /var/tmp", "seen under their own names, as Apptainer does"),
    ("--set-env", "what the image sets, and the plan; the launcher's variables come by themselves"),
    (
        "IMAGE as a folder",
        "the image, laid out once, read-only: every place that is bound over must be there before",
    ),
)


class Charliecloud(Driver):
    kind = "charliecloud"
    title = "Charliecloud"
    programs = ("ch-run",)
    processes = ("ch-run", "fairlead-")
    takes = Takes.FOLDER
    makes_places = False
    own_binds = ("/dev/", "/proc/", "/sys/", "/etc/passwd", "/etc/group")
    shows = ()
    reads = ("TMPDIR",)
    userns_per_rank = True
    reasons = _REASONS
    inside_variables = ("CH_RUNNING",)

    def words(self, engine: Engine, call: Call) -> Words:
        """A shell of the rank's own that becomes ``ch-run``, which becomes the command."""
        return self._words(engine, call, (_RANK.strip(), "fairlead-ch-run"))

    def can_join(self, engine: Engine, extra: Sequence[str], environ: Mapping[str, str]) -> bool:
        return not any(word.startswith("--join") for word in (*engine.options, *extra))

    def kept(self, engine: Engine, call: Call, run: str) -> Words:
        return self.words(engine, call)

    def joining(self, engine: Engine, call: Call, run: str) -> Words:
        """As :meth:`words`; ch-run itself leaves the binds to the container that it joins."""
        return self._words(engine, call, (_JOIN, "fairlead-ch-run", run))

    def _words(self, engine: Engine, call: Call, shell: Sequence[str]) -> Words:
        words = list(engine.options)
        for source, target, _ in call.binds:  # it knows no read-only binds
            words += ["--bind", f"{source}:{target}"]
        # It takes one pair of quotes off a value that has one around it.
        words += [f"--set-env={name}='{value}'" for name, value in variables(call).items()]
        rank = (*BASH, *shell, engine.path, call.image, call.workdir)
        return Words((*rank, *words, *call.extra, call.image, "--", *call.command), {})

    def version_command(self, view: View, path: str) -> tuple[str, ...]:
        # It wants to know its user even to print its version.
        user = () if view.environ.get("USER") else ("env", f"USER={view.user}")
        return (*user, path, *self.version_arguments)


ENGINE = Charliecloud()
