"""What an engine cannot be told: an image of a kind that it does not open, a path that its words end at."""

from __future__ import annotations

from fairlead.base.errors import FairleadError, fail


def unfit_image(engine: str, image: str, why: str, remedy: str) -> FairleadError:
    return fail("engine-image", engine=engine, image=image, why=why, remedy=remedy)


def unfit_bind(engine: str, path: str, why: str) -> FairleadError:
    return fail("engine-bind", engine=engine, path=path, why=why)
