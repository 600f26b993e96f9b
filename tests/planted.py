"""What a test plants: decodes that fail, and notes of what is called."""

from __future__ import annotations

import threading
from collections.abc import Callable, Container
from itertools import count
from typing import Any

import pytest

from headstart.testing import FakeEngine
from headstart.types import Batch
from headstart.types.errors import EngineError


def fail_at(engine: FakeEngine, numbers: Container[int], error: Exception | None = None) -> None:
    """Let decodes of these numbers fail; the next one has 0."""
    decodes = count()

    def fail(batch: Batch) -> None:
        if next(decodes) in numbers:
            raise error or EngineError("broken")

    engine.fail = fail


def noted(
    patch: pytest.MonkeyPatch,
    owner: object,
    name: str,
    *,
    note: Callable[..., Any] = lambda *given: given,
) -> list[Any]:
    """What is noted of every call of this function from now on, by default its arguments."""
    function, notes = getattr(owner, name), list[Any]()

    def noting(*given: Any, **named: Any) -> Any:
        notes.append(note(*given))
        return function(*given, **named)

    patch.setattr(owner, name, noting)
    return notes


def threads_of(patch: pytest.MonkeyPatch, owner: object, name: str) -> list[str]:
    """Names of the threads that call this function from now on."""
    return noted(patch, owner, name, note=lambda *_: threading.current_thread().name)
