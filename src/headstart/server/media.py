"""Images and audio of requests: finds them in bodies, fetches the files and asks for their
parts.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import ipaddress
import os
import re
import secrets
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urljoin, urlsplit

from starlette.requests import Request as HttpRequest
from starlette.types import Receive

from headstart.config import ServerConfig
from headstart.server.body import check_length
from headstart.server.errors import ApiError, not_supported, shorten
from headstart.server.event_stream import single_event
from headstart.server.media_files import MOST_BYTES, safe_file
from headstart.server.schemas import TemplateBody
from headstart.server.service import service_of
from headstart.server.threads import unless_left
from headstart.structures.interruption import progress
from headstart.structures.tenants import caller_of
from headstart.types.errors import RequestError
from headstart.types.media import MediaPart, MediaQuestion

# placeholder for a file in a prompt's text; secret
MARKER = os.environ.get("LLAMA_MEDIA_MARKER") or f"<__media_{secrets.token_hex(16)}__>"
Source = tuple[str, str]
"""A file in a body: its kind, empty if unknown before reading it, and its URL or base64."""
B = TypeVar("B", bound=TemplateBody)
Media = Sequence[tuple[MediaPart, ...]]
"""The prompt parts of each file."""
_PARTS = {"image_url": "image", "input_audio": "audio"}


def take_media(body: B) -> tuple[B, list[Source]]:
    """The body with markers in place of the images and sounds of its messages; and these."""
    sources = list[Source]()
    taken = [
        message | {"content": take_parts(content, sources)}
        if isinstance(content := message.get("content"), list)
        else message
        for message in body.messages
    ]
    return body.model_copy(update={"messages": taken}) if sources else body, sources


def take_parts(parts: Sequence[Any], sources: list[Source]) -> list[Any]:
    """Replace the files in a message's parts by markers, adding them to `sources`."""

    def without(part: Any) -> Any:
        name = part.get("type") if isinstance(part, dict) else None
        if name == "media_marker":
            raise RequestError("media_marker is no type of a part; send image_url or input_audio")
        if not isinstance(name, str) or name not in _PARTS:
            return part
        url = part.get(name)
        if isinstance(url, dict):
            url = url.get("url", url.get("data"))
        if not isinstance(url, str):
            field = "url" if name == "image_url" else "data"
            raise RequestError(f"{name}.{field} must be a text, not {shorten(url)}")
        sources.append((_PARTS[name], url))
        return {"type": "media_marker", "text": MARKER}

    return [without(part) for part in parts]


def prompt_media(prompt: Any) -> list[Source]:
    """The files of a prompt, or of a list of prompts, in base64: {"prompt_string",
    "multimodal_data"}.
    """
    if isinstance(prompt, list):
        return [source for one in prompt if isinstance(one, dict) for source in prompt_media(one)]
    found = (prompt.get("multimodal_data") or []) if isinstance(prompt, dict) else []
    if not isinstance(found, list) or not all(isinstance(file, str) for file in found):
        raise RequestError(f"multimodal_data must be a list of base64 texts, not {shorten(found)}")
    return [("", file) for file in found]


async def read_media(
    http: HttpRequest, sources: Sequence[Source], receive: Receive | None = None
) -> Media:
    """Fetch and check files, and ask the engine for their prompt parts.

    `receive` reports a disconnect; by default of the request's client.

    Raises:
        HeadstartError: a file cannot be used, or the model reads none.
        ClientDisconnect: the client disconnected.
    """
    if not sources:
        return ()
    service, tenant = service_of(http), caller_of(http.scope).tenant
    modalities = service.info.modalities
    for kind, _ in sources:
        _check_kind(kind or next(iter(modalities), "image"), modalities)
    check_length("the request", sources, 64, "images and sounds")

    async def ask() -> Media:
        held, left = list[str | bytes](), service.config.max_body_mb << 20
        # each may hold many megabytes; slow sites of one tenant must not block others
        async with service.image_questions.setdefault(tenant, asyncio.Semaphore(4)):
            for _, url in sources:
                held.append(await _fetched(url, service.config, left))
                left -= len(held[-1])

            def read() -> tuple[bytes, ...]:
                files = list[bytes]()
                for one in held:
                    data = one if isinstance(one, bytes) else _file_of(one, service.config)
                    kind, file = safe_file(data)  # takes seconds for large files
                    _check_kind(kind, modalities)
                    progress(len(files))
                    files.append(file)
                return tuple(files)

            files = await service.media_threads.run(read, tenant)
            question = MediaQuestion(f"media-{secrets.token_hex(12)}", files, tenant)
            parts: Media = await single_event(service.worker, question)
            return parts

    return await unless_left(receive or http.receive, ask())


def _check_kind(kind: str, modalities: Sequence[str]) -> None:
    if kind not in modalities:
        reads = " and ".join(("text", *modalities))
        raise ApiError(
            500,  # as in llama-server: the request is valid, but the server lacks a projector
            f"{kind} input is not supported: this model reads {reads} only; start with --mmproj, "
            "if there is a projector for it",
        )


async def _fetched(url: str, config: ServerConfig, left_bytes: int) -> str | bytes:
    """The file of an http URL, if fetching is enabled; other URLs unchanged.

    `left_bytes`: what is left of the size limit for all files of a request.
    """
    if url[:8].partition(":")[0] not in ("http", "https"):
        return url
    if not config.image_urls:
        raise not_supported(
            f"{shorten(url)} is not fetched; send the file as a data URL, or start with "
            "--image-urls"
        )
    return await fetch(url, max(0, min(MOST_BYTES, left_bytes)))


def _file_of(url: str, config: ServerConfig) -> bytes:
    scheme = url[:16].partition(":")[0]
    if scheme == "file":
        return _local(url.removeprefix("file://"), config.media_path)
    data = url
    if scheme == "data":
        kind, comma, data = url.partition(",")
        if not comma or not re.match("data:(image|audio)/.*base64$", kind):
            raise RequestError(
                f"{shorten(kind)} is no image or sound; a data URL begins with "
                "data:image/png;base64, or another kind of these"
            )
    try:
        # programs wrap it, and some leave out the padding
        bare = data.encode("ascii").translate(None, b" \t\r\n")
        return base64.b64decode(bare + b"=" * (-len(bare) % 4), validate=True)
    except (binascii.Error, ValueError) as error:
        raise RequestError(f"an image or a sound is not valid base64: {error}") from error


def _local(name: str, folder: str | None) -> bytes:
    if folder is None:
        raise not_supported("file:// is not supported: the server was started without --media-path")
    root = Path(folder).resolve()
    try:
        path = (root / name).resolve()
        if path.is_relative_to(root) and path.is_file():
            with path.open("rb") as file:
                return file.read(MOST_BYTES + 1)  # a larger one is refused later
    except (OSError, ValueError):  # as if it did not exist
        pass
    raise RequestError(f"file://{shorten(name)} is not in the folder of --media-path")


async def public_address(host: str, port: int) -> str:
    """An address of a host, all of whose addresses are public: protects the local network.

    Raises:
        RequestError: there is none.
    """
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise RequestError(f"{shorten(host)} is not known: {error}") from error
    addresses = [ipaddress.ip_address(one[4][0]) for one in found]
    if not addresses or not all(one.is_global and not one.is_multicast for one in addresses):
        raise RequestError(f"{shorten(host)} has no public address; send the file as a data URL")
    return str(addresses[0])


async def fetch(url: str, most_bytes: int) -> bytes:
    """Fetch a URL.

    Raises:
        RequestError: it cannot be fetched, or is too large.
    """
    import httpx2  # loaded only if needed

    try:
        async with (
            asyncio.timeout(10),
            httpx2.AsyncClient(timeout=None, trust_env=False) as client,
        ):
            for _ in range(4):
                parts = urlsplit(url)
                if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
                    raise RequestError(f"{shorten(url)} is no address that is fetched")
                port = parts.port or (443 if parts.scheme == "https" else 80)
                # connect to the checked address: a name may resolve differently a moment later
                target = httpx2.URL(url).copy_with(host=await public_address(parts.hostname, port))
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
                        f"{shorten(url)} has more than {most_bytes} bytes, which are left of the "
                        f"{MOST_BYTES >> 20} MiB of a file and the --max-body-mb of a request; "
                        "send smaller files, or fewer"
                    )
            return bytes(data)
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError, TimeoutError) as error:
        words = str(error) or type(error).__name__
        raise RequestError(f"{shorten(url)} cannot be fetched: {words}") from error
