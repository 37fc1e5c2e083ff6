"""Can this user make a user namespace? Builds and launches need one."""

from __future__ import annotations

from collections.abc import Iterator

from fairlead.doctor.diagnosis import Check, Diagnosis, Topic, ill, well
from fairlead.doctor.world import World

# Switch, the value that forbids, the remedy.
_SWITCHES = (
    ("kernel/unprivileged_userns_clone", "0", "sudo sysctl -w kernel.unprivileged_userns_clone=1"),
    ("user/max_user_namespaces", "0", "sudo sysctl -w user.max_user_namespaces=15000"),
    (
        "kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "sudo sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
    ),
)


def examine(world: World) -> Iterator[Diagnosis]:
    ran = world.run(("unshare", "--user", "--map-root-user", "true"))
    if ran.returncode == 0:
        yield well(f"{world.user} can make user namespaces", "tested with `unshare --user`")
        return
    for switch, forbids, remedy in _SWITCHES:
        if (world.read(f"/proc/sys/{switch}") or "").strip() == forbids:
            yield ill(
                "user-namespaces-denied-by-switch",
                user=world.user,
                switch=switch,
                forbids=forbids,
                ran=ran,
                remedy=remedy,
            )
            return
    words = " ".join(ran.argv)
    yield ill("user-namespaces-denied", user=world.user, words=words, ran=ran, output=ran.tail)


CHECK = Check(
    "user-namespaces", "permission to make user namespaces", examine, Topic.MACHINE, order=40
)
