"""The real server, for documents and examples that talk to one."""

from __future__ import annotations

import pytest
from tests.server.server_process import Server


@pytest.fixture(scope="session")
def server_address(server: Server) -> str:
    """Its host:port."""
    return server.url.removeprefix("http://")
