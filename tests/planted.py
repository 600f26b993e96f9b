"""What a test plants: decodes that fail, and notes of what is called."""

from __future__ import annotations

from collections.abc import Container
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


def noted(patch: pytest.MonkeyPatch, owner: object, name: str) -> list[tuple[Any, ...]]:
    """Arguments of every call of this function from now on."""
    function, calls = getattr(owner, name), list[tuple[Any, ...]]()

    def noting(*given: Any, **named: Any) -> Any:
        calls.append(given)
        return function(*given, **named)

    patch.setattr(owner, name, noting)
    return calls
