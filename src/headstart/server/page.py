"""The page at `/`: static files, served without a key and while the model still loads.

They contain no secrets; their data comes from the API, which checks the key. A browser keeps them,
700 KB in all, and asks whether they changed.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from starlette.middleware.gzip import GZipMiddleware
from starlette.staticfiles import StaticFiles
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


def page(app: ASGIApp, *, files: Mapping[str, Path], policy: str | None) -> ASGIApp:
    """ASGI middleware: answers GET for the page's files and passes on all other requests."""
    static = StaticFiles()
    common = {
        "Cache-Control": "no-cache",  # revalidated each time, mostly with a 304
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
    }
    document = common if policy is None else common | {"Content-Security-Policy": policy}

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] in ("GET", "HEAD"):
            url = scope["path"].removeprefix(scope.get("root_path", ""))
            file = files.get(url or "/")
            if file is not None and file.is_file():
                response = static.file_response(file, file.stat(), scope)
                is_document = file.suffix in (".html", ".svg")
                response.headers.update(document if is_document else common)
                await GZipMiddleware(response, compresslevel=6)(scope, receive, send)
                return
        await app(scope, receive, send)

    return answer


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
