"""The page at `/`: static files, served without a key and while the model still loads.

They contain no secrets; their data comes from the API, which checks the key. They are kept in
memory, also compressed: the first screen requests 45 of them.
"""

from __future__ import annotations

import asyncio
import gzip
import os
from collections.abc import Mapping
from pathlib import Path
from stat import S_ISREG

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.responses import FileResponse, Response
from starlette.staticfiles import NotModifiedResponse, StaticFiles
from starlette.types import ASGIApp, Receive, Scope, Send

from headstart.config import ServerConfig
from headstart.types.errors import ConfigError

OUR_PAGE = Path(__file__).parents[1] / "web"
# Allows only this server's files, so that model text cannot send data elsewhere.
POLICY = "; ".join((
    "default-src 'none'", "script-src 'self'", "style-src 'self'", "connect-src 'self'",
    "img-src 'self' data:", "media-src data:", "manifest-src 'self'", "base-uri 'none'",
    "form-action 'none'", "frame-ancestors 'none'", "require-trusted-types-for 'script'",
    "trusted-types 'none'",
))  # fmt: skip
HEADERS = {
    "Cache-Control": "no-cache",  # revalidated each time, mostly with a 304
    "Referrer-Policy": "no-referrer",
    "Vary": "Accept-Encoding",
    "X-Content-Type-Options": "nosniff",
}
MOST_BYTES_KEPT = 4 * 2**20  # larger files of --path are read for each request
MOST_BYTES_IN_ALL = 64 * 2**20  # as they are and compressed; further files are read as those are


class Page:
    """ASGI middleware: answers GET for the page's files and passes on all other requests."""

    def __init__(self, app: ASGIApp, *, files: Mapping[str, Path], policy: str | None) -> None:
        self._app = app
        self._files = files
        self._policy = {} if policy is None else {"Content-Security-Policy": policy}
        self._static = StaticFiles()
        # file -> its time and size; the answer for clients that take gzip, and the other
        self._kept: dict[Path, tuple[tuple[int, int], tuple[Response, Response]]] = {}
        self._reading = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] in ("GET", "HEAD"):
            url = scope["path"].removeprefix(scope.get("root_path", ""))
            if file := self._files.get(url or "/"):
                if status := _status_of(file):
                    response = await self._respond(file, status, Headers(scope=scope))
                    await response(scope, receive, send)
                    return
                self._kept.pop(file, None)
        await self._app(scope, receive, send)

    async def _respond(self, file: Path, status: os.stat_result, headers: Headers) -> Response:
        is_document = file.suffix in (".html", ".svg")
        streamed = FileResponse(file, stat_result=status)
        streamed.headers.update(HEADERS | (self._policy if is_document else {}))
        if self._static.is_not_modified(streamed.headers, headers):
            return NotModifiedResponse(streamed.headers)
        if status.st_size > MOST_BYTES_KEPT or "range" in headers:
            return streamed
        version = status.st_mtime_ns, status.st_size
        async with self._reading:
            if self._kept.get(file, (None,))[0] != version:
                self._kept.pop(file, None)
                size = status.st_size + sum(size for (_, size), _ in self._kept.values())
                if 2 * size > MOST_BYTES_IN_ALL:
                    return streamed
                self._kept[file] = version, await run_in_threadpool(_read, file, streamed.headers)
            return self._kept[file][1]["gzip" not in headers.get("accept-encoding", "")]


def _status_of(file: Path) -> os.stat_result | None:
    """Status of a regular file, or None."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status if S_ISREG(status.st_mode) else None


def _read(file: Path, headers: Mapping[str, str]) -> tuple[Response, Response]:
    """Answers with the file: compressed, where that makes it smaller, and as it is."""
    data = file.read_bytes()
    own = {name: value for name, value in headers.items() if name != "content-length"}
    plain, packed = Response(data, headers=own), gzip.compress(data, mtime=0)
    if len(packed) >= len(data):
        return plain, plain
    return Response(packed, headers=own | {"content-encoding": "gzip"}), plain


def page_files(config: ServerConfig) -> dict[str, Path]:
    """URL path -> file; built once, so that no request's path reaches the file system.

    Raises:
        ConfigError: --path is not a folder.
    """
    if config.path is None and not config.page:
        return {}
    folder = OUR_PAGE if config.path is None else Path(config.path)
    if not folder.is_dir():
        raise ConfigError(f"--path {config.path} is not a folder; name one with an index.html")
    files = {
        "/" + path.relative_to(folder).as_posix(): path
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    for url in [url for url in files if url.endswith(".html")]:
        files[url.removesuffix(".html").removesuffix("index")] = files[url]
    return files
