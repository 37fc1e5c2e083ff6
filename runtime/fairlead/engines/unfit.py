"""What an engine cannot be told: an image of a kind that it does not open, a path that its words end at."""

from __future__ import annotations

from fairlead.base.errors import ExitCode, FairleadError, fail


def unfit_image(engine: str, image: str, why: str, remedy: str) -> FairleadError:
    return fail(
        f"{engine} cannot open this image",
        where=image,
        why=why,
        remedy=remedy,
        check="engine-image",
        code=ExitCode.PREFLIGHT_REFUSED,
    )


def unfit_bind(engine: str, path: str, why: str) -> FairleadError:
    return fail(
        f"{engine} cannot show this path in a container",
        where=path,
        why=why,
        remedy="give it another name, or set XDG_CACHE_HOME to a folder with a plain one",
        check="engine-bind",
        code=ExitCode.PREFLIGHT_REFUSED,
    )
