"""Headstart's router with the pauses that llama-server has under LLAMA_SERVER_DEBUG_FAKE_TIMING.

Its tests of the queue need a model that is busy for a while, and one that takes a while to load.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from headstart.app.cli.main import main
from headstart.gateway.proxy import Proxy
from headstart.gateway.router.child import ChildProcess

SECONDS = 2.0
_make, _open = ChildProcess._make, Proxy.open


async def make_later(self: ChildProcess, *arguments: Any) -> Any:
    await asyncio.sleep(SECONDS)
    return await _make(self, *arguments)


async def open_later(self: Proxy, *arguments: Any, **more: Any) -> Any:
    await asyncio.sleep(SECONDS)
    return await _open(self, *arguments, **more)


# a router whose own parts are slow, for clients that know nothing of it
ChildProcess._make = make_later  # type: ignore[method-assign]
Proxy.open = open_later  # type: ignore[method-assign]

if __name__ == "__main__":
    sys.exit(main())
