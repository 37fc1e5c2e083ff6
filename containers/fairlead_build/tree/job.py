"""What a tree is made from, passed from step to step."""

from __future__ import annotations

from dataclasses import dataclass

from fairlead.base.progress import Progress
from fairlead_build.cache.store import Cache
from fairlead_build.recipe.load import LoadedRecipe
from fairlead_build.recipe.lock import Lock


@dataclass(frozen=True)
class TreeJob:
    """A recipe with its lock, the cache to build in, and where progress is shown."""

    loaded: LoadedRecipe
    lock: Lock
    cache: Cache
    progress: Progress

    @property
    def again(self) -> str:
        """The command that runs this build once more, for remedies."""
        return f"fairlead build {self.loaded.given}"

    @property
    def relock(self) -> str:
        """The command that resolves the recipe again."""
        return f"fairlead recipe lock {self.loaded.given}"
