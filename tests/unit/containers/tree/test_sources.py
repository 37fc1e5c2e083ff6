"""What a source of a recipe is rebuilt for, and how its results' keys say so."""

from __future__ import annotations

from fairlead_build.recipe.load import load_recipe
from fairlead_build.recipe.lock import Lock, load_lock
from fairlead_build.tree import sources
from fairlead_build.tree.wheel import runtime_requirements


def _operation_key(change: str) -> str:
    """The key of TensorFlow's operation when one wheel of the lock has other content."""
    loaded = load_recipe("tensorflow")
    lock, _ = load_lock(loaded, runtime_requirements())
    changed = [
        w.model_copy(update={"sha256": "0" * 64}) if w.name == change else w for w in lock.wheel
    ]
    assert not change or changed != list(lock.wheel)
    lock = Lock.model_validate(lock.model_copy(update={"wheel": tuple(changed)}))
    own = sources.compiled_bundled(loaded, lock)
    assert own and sources.over_tree(own)
    (key,) = sources.keys(loaded, lock, own)
    return key


def test_operation_is_compiled_anew_for_another_tensorflow_and_for_no_other_wheel() -> None:
    usual = _operation_key("")
    assert _operation_key("tensorflow_cpu") != usual
    assert _operation_key("numpy") == _operation_key("keras") == usual


def test_sources_of_a_recipe_are_built_in_a_tree_of_their_own() -> None:
    assert not sources.over_tree(load_recipe("mpi-base").sources)
