"""Speculators that read layers of the target are made alike."""

from __future__ import annotations

import inspect

import pytest
from tests.fake_draft_context import LAYERS, FakeDraftContext

from headstart.speculators import SPECULATORS
from headstart.speculators.base_states import StateSpeculator


@pytest.mark.parametrize("name", ["dflash", "dspark", "eagle3"])
def test_who_knows_one_constructor_knows_the_others(name: str) -> None:
    kind = SPECULATORS[name]
    assert list(inspect.signature(kind).parameters) == ["context", "layers", "options"]
    speculator = kind(FakeDraftContext(name), LAYERS)  # type: ignore[call-arg]
    assert isinstance(speculator, StateSpeculator)
    assert speculator.state_layers == frozenset(LAYERS)
    assert speculator.options == StateSpeculator.Options()
    assert speculator.needs_draft_model
