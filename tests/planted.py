"""What a test plants: decodes that fail, and notes of what is called."""

from __future__ import annotations

import threading
from collections.abc import Callable, Container
from itertools import count
from typing import Any, TypeVar

import pytest

from headstart.testing import FakeEngine
from headstart.types import Batch
from headstart.types.errors import EngineError

T = TypeVar("T")


def fail_at(engine: FakeEngine, numbers: Container[int], error: Exception | None = None) -> None:
    """Let decodes of these numbers fail; the next one has 0."""
    decodes = count()

    def fail(batch: Batch) -> None:
        if next(decodes) in numbers:
            raise error or EngineError("broken")

    engine.fail = fail


def noted(patch: pytest.MonkeyPatch, owner: object, name: str) -> list[tuple[Any, ...]]:
    """Arguments of every call of this function from now on."""
    return _noted(patch, owner, name, lambda *given: given)


def threads_of(patch: pytest.MonkeyPatch, owner: object, name: str) -> list[str]:
    """Names of the threads that call this function from now on."""
    return _noted(patch, owner, name, lambda *_: threading.current_thread().name)


def _noted(patch: pytest.MonkeyPatch, owner: object, name: str, note: Callable[..., T]) -> list[T]:
    function, notes = getattr(owner, name), list[T]()

    def noting(*given: Any, **named: Any) -> Any:
        notes.append(note(*given))
        return function(*given, **named)

    patch.setattr(owner, name, noting)
    return notes
