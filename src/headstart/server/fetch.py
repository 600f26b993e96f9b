"""Files that a request names by a URL: only of public addresses, within limits of size and time."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable
from urllib.parse import urljoin, urlsplit

from headstart.server.errors import shorten
from headstart.types.errors import RequestError

MOST_SECONDS = 10.0
Resolve = Callable[[str, int], Awaitable[str]]


async def public_address(host: str, port: int) -> str:
    """An address of a host, all of which are public: no client may look around in our network.

    Raises:
        RequestError: there is none.
    """
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise RequestError(f"{shorten(host)} is not known: {error}") from error
    addresses = [ipaddress.ip_address(one[4][0]) for one in found]
    if not addresses or not all(one.is_global and not one.is_multicast for one in addresses):
        raise RequestError(f"{shorten(host)} has no public address; send the image as a data URL")
    return str(addresses[0])


async def fetch(url: str, most_bytes: int, resolve: Resolve = public_address) -> bytes:
    """The file at a URL.

    Raises:
        RequestError: it cannot be had, or is too large.
    """
    import httpx2  # loaded only where something is fetched

    try:
        async with (
            asyncio.timeout(MOST_SECONDS),
            httpx2.AsyncClient(timeout=MOST_SECONDS, trust_env=False) as client,
        ):
            for _ in range(4):
                parts = urlsplit(url)
                if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
                    raise RequestError(f"{shorten(url)} is no address that is fetched")
                port = parts.port or (443 if parts.scheme == "https" else 80)
                # to the very address that was looked at: a name may have another a moment later
                target = httpx2.URL(url).copy_with(host=await resolve(parts.hostname, port))
                request = client.build_request(
                    "GET",
                    target,
                    headers={"host": parts.netloc, "accept-encoding": "identity"},
                    extensions={"sni_hostname": parts.hostname},
                )
                answer = await client.send(request, stream=True)
                if not answer.has_redirect_location:
                    break
                url = urljoin(url, answer.headers["location"])
                await answer.aclose()
            if answer.status_code != 200:
                raise RequestError(f"{shorten(url)} answered with status {answer.status_code}")
            data = bytearray()
            async for piece in answer.aiter_raw():
                data += piece
                if len(data) > most_bytes:
                    raise RequestError(
                        f"{shorten(url)} has more than {most_bytes} bytes; send a smaller image"
                    )
            return bytes(data)
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError, TimeoutError) as error:
        words = str(error) or type(error).__name__
        raise RequestError(f"{shorten(url)} cannot be fetched: {words}") from error
