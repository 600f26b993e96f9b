"""For all tests: nothing learned is kept, examples have no time limit, Ctrl-C reaches what they
start, and libllama's threads sleep instead of spinning.

Two OpenMP threads that spin starve each other as soon as anything else uses the machine's cores: a
step of the demo model then takes a hundred times as long.
"""

from __future__ import annotations

import gc
import os
import signal
import tempfile
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    from tests.server.server_process import Server

settings.register_profile("busy", deadline=None)  # other programs may have the machine
settings.load_profile("busy")

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ["HEADSTART_CACHE"] = tempfile.mkdtemp(prefix="headstart-test-")

# a shell that starts the tests in the background has them, and all that they start, ignore it
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Looking for garbage among modules and tests, which all stay, took a third of the time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session", autouse=True)
def short_warm_up() -> Iterator[None]:
    """Decodes are timed for a tenth of a second."""
    from headstart.app import assemble

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assemble, "WARM_UP_SECONDS", 1.0)
        yield


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The embedded pair in processes of its own; a text is the same whoever asks beside it.

    What its processes import stands in its log.
    """
    from tests.server.server_process import Server

    flags = ["--exact", "--context", "2048", "--threads", "1", "-np", "4"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPROFILEIMPORTTIME", "1")
        running = Server(flags, tmp_path_factory.mktemp("cache"))
    with running:
        yield running
