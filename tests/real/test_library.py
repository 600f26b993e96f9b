"""What of libllama is loaded, and how often."""

from __future__ import annotations

from pathlib import Path

import pytest

from headstart.config import DraftEngineConfig, EngineConfig
from headstart.engine import devices
from headstart.engine.devices import Device
from headstart.engine.library import api

MAPS = Path("/proc/self/maps")


@pytest.mark.skipif(not MAPS.exists(), reason="reads what is mapped from /proc")
@pytest.mark.parametrize("name", ["libggml.so", "libggml-base.so"])
def test_the_library_asked_for_devices_is_the_one_that_computes(name: str) -> None:
    """A second copy has devices and buffer types of its own, which libllama does not know."""
    api.ggml("libggml"), api.ggml("libggml-base")
    files = {line.split()[-1] for line in MAPS.read_text().splitlines() if "/" + name in line}
    assert len(files) == 1


def test_draft_model_stays_here_unless_a_remote_device_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each of its steps would take a round trip."""
    rows = [
        Device("CPU", "", "CPU", 1, 1, 11),
        Device("GPU0", "", "GPU", 1, 1, 12),
        Device("RPC0", "", "GPU", 1, 1, 13, is_remote=True),
    ]
    monkeypatch.setattr(devices, "list_devices", lambda: rows)
    draft = DraftEngineConfig().applied_to(EngineConfig(rpc="a:1"), 1)
    array = devices.device_array(draft.device, can_be_remote=draft.rpc is not None)
    assert list(array) == [12, None]
    named = DraftEngineConfig(draft_device="RPC0").applied_to(EngineConfig(rpc="a:1"), 1)
    assert list(devices.device_array(named.device, can_be_remote=False)) == [13, None]
    assert devices.device_array(None, can_be_remote=True) is None
    rows.pop()
    assert devices.device_array(None, can_be_remote=False) is None  # as ever without workers
