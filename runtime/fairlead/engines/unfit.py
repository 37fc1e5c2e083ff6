"""Errors for what an engine cannot do: open this kind of image, or bind a path that its options cannot express."""

from __future__ import annotations

from fairlead.base.errors import FairleadError, fail


def unfit_image(engine: str, image: str, why: str, remedy: str) -> FairleadError:
    return fail("engine-image", engine=engine, image=image, why=why, remedy=remedy)


def unfit_bind(engine: str, path: str, why: str) -> FairleadError:
    return fail("engine-bind", engine=engine, path=path, why=why)
