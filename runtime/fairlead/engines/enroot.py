"""enroot: a squashfs or a folder, without root; pyxis is its face in Slurm.

It passes on only the variables of the caller's environment that are named, so a shell around it names the
variables that the launcher has set. What the image sets of itself goes by ``--env`` too: enroot reads
/etc/environment of an image, and an image that enroot has not made has none.
Source: NVIDIA/enroot, doc/cmd/start.md, doc/image-format.md, conf/hooks/extra/50-slurm-pmi.sh.
"""

from __future__ import annotations

from fairlead.base.system import View
from fairlead.engines.model import Call, Driver, Engine, Takes, Words, need_squashfs, unfit_bind

# $0 is enroot, $1 a pattern of further names; the rank's variables come before its other words.
_START = (
    "p=$1; shift; "
    'for v in $(env | sed -nE "s/^((PMI|PMIX|PALS|SLURM|OMPI|MPI|HYDI)_[A-Za-z0-9_]*|$p)=.*/\\1/p"); '
    'do set -- --env "$v" "$@"; done; exec "$0" start "$@"'
)


class Enroot(Driver):
    kind = "enroot"
    title = "enroot"
    programs = ("enroot",)
    variable = "FAIRLEAD_ENROOT"
    version_arguments = ("version",)
    processes = ("enroot", "unshare", "nsenter")
    takes = Takes.SQUASHFS
    userns_per_rank = True
    srun_option = ("--container-image", "pyxis")
    config_files = ("/etc/enroot/enroot.conf",)
    config_keys = (
        "ENROOT_RUNTIME_PATH", "ENROOT_CACHE_PATH", "ENROOT_DATA_PATH", "ENROOT_SQUASH_OPTIONS",
        "ENROOT_MOUNT_HOME", "ENROOT_RESTRICT_DEV", "ENROOT_ROOTFS_WRITABLE",
    )  # fmt: skip
    bind_limit = (r"[\s:$]", "blanks, `:` and `$` mean something in --mount")

    def words(self, engine: Engine, call: Call) -> Words:
        """``enroot start``.

        Raises:
            FairleadError: exit code 121; the image is not a squashfs, or a path has a letter that ends a field.
        """
        why = "it opens a squashfs by its path, and folders by their names in its store"
        need_squashfs(self.title, call.image, why)
        words = []
        for source, target, read_only in self.binds_of(call):
            flags = "x-create=auto,rbind" + (",ro" if read_only else "")
            words += ["--mount", f"{source}:{target}:none:{flags}"]
        for name, value in {**call.image_env, **call.env, **call.literal}.items():
            if "\n" in value:
                why = "its value has a line break, which ends a variable"
                raise unfit_bind(self.title, name, why)
            words += ["--env", f"{name}={value}"]
        command = call.command
        if call.workdir:
            command = ("/bin/sh", "-c", 'cd -- "$0" && exec "$@"', call.workdir, *command)
        inner = (*engine.options, *words, *call.extra, call.image, *command)
        return Words(
            ("/bin/sh", "-c", _START, engine.path, "|".join(call.passes) or "-", *inner), {}
        )

    def settings(self, view: View, path: str, text: str) -> dict[str, str]:
        pairs = (line.strip().partition(" ") for line in text.splitlines())
        values = {key: value.strip() for key, _, value in pairs if key in self.config_keys}
        hooks = view.listdir("/etc/enroot/hooks.d")
        return {**values, "hooks": ", ".join(hooks)} if hooks else values


ENGINE = Enroot()
