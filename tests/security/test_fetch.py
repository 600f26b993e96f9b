"""What the server fetches for a client: public addresses only, within limits."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from headstart.config import ServerConfig
from headstart.server.media import _file_of, fetch, public_address
from headstart.server.media_files import MOST_BYTES, safe_file
from headstart.types.errors import RequestError


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        where = {"/away": "/file", "/inside": "http://10.0.0.1/", "/loop": "/loop"}.get(self.path)
        found = {"/file": b"x" * 100, "/large": b"x" * 5000}.get(self.path)
        self.send_response(302 if where else 200 if found else 404)
        if where:
            self.send_header("location", where)
        self.end_headers()
        self.wfile.write(found or b"")

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is logged."""


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://images.example:{server.server_port}"
    server.shutdown()
    server.server_close()


async def here(host: str, port: int) -> str:
    """As if the site had a public address; others are looked at."""
    return "127.0.0.1" if host == "images.example" else await public_address(host, port)


def test_a_file_is_fetched_also_behind_a_redirect(site: str) -> None:
    for path in ("/file", "/away"):
        assert asyncio.run(fetch(site + path, 100, here)) == b"x" * 100


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/large", "more than 100 bytes"),
        ("/none", "status 404"),
        ("/inside", "no public address"),
        ("/loop", "status 302"),
    ],
)
def test_what_is_too_large_or_leads_inside_is_refused(site: str, path: str, says: str) -> None:
    with pytest.raises(RequestError, match=says):
        asyncio.run(fetch(site + path, 100, here))


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/", "http://localhost/", "http://[::1]/", "http://10.1.2.3/",
        "http://192.168.0.1/", "http://169.254.169.254/latest", "http://[::ffff:10.0.0.1]/",
        "http://0.0.0.0/", "http://user:word@example.org/", "http://example.org:x/", "http:///",
        "https://2130706433/",
    ],
)  # fmt: skip
def test_addresses_inside_are_refused(url: str) -> None:
    with pytest.raises(RequestError):
        asyncio.run(fetch(url, 100))


def test_no_more_of_a_local_file_is_read_than_may_be_used(tmp_path: Path) -> None:
    with (tmp_path / "film").open("wb") as file:
        file.truncate(10 * MOST_BYTES)
    held = _file_of("file://film", ServerConfig(media_path=str(tmp_path)))
    assert len(held) == MOST_BYTES + 1
    with pytest.raises(RequestError, match=f"but at most {MOST_BYTES} are taken"):
        safe_file(held)
