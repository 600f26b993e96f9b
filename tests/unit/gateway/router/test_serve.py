from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from tests.unit.gateway.router.fakes import FakeStore, preset

from headstart.config import Config, RouterConfig
from headstart.gateway.router.serve import serve
from headstart.types.errors import ConfigError


@pytest.fixture(autouse=True)
def _log_of_the_process_stays() -> Iterator[None]:
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    yield
    root.handlers[:], root.level = before, level


def test_more_models_at_the_start_than_may_be_loaded_stop_the_start() -> None:
    presets = [preset(name, loads_on_startup=True) for name in ("a", "b", "c")]
    config = Config(router=RouterConfig(models_max=2))
    with pytest.raises(ConfigError, match="3 models have load-on-startup"):
        serve(config, lambda: presets, FakeStore())


def test_memory_that_is_no_number_stops_the_start() -> None:
    config = Config(router=RouterConfig(models_memory="lots"))
    with pytest.raises(ConfigError, match="--models-memory has 'lots'"):
        serve(config, list, FakeStore())
