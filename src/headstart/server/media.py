"""Images and sounds of requests: where bodies name them, where their files come from, what they
become.
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
from typing import Any
from urllib.parse import urljoin, urlsplit

from starlette.requests import Request as HttpRequest

from headstart.config import ServerConfig
from headstart.server.body import off_loop
from headstart.server.errors import ApiError, not_supported, shorten
from headstart.server.event_stream import single_event
from headstart.server.limits import check_length
from headstart.server.media_files import MOST_BYTES, safe_file
from headstart.server.model import service_of
from headstart.server.threads import unless_left
from headstart.structures.interruption import progress
from headstart.types.errors import RequestError
from headstart.types.media import MediaChunk, MediaPart, MediaQuestion

# in a prompt's text, in the place of a file; nobody else knows it
MARKER = os.environ.get("LLAMA_MEDIA_MARKER") or f"<__media_{secrets.token_hex(16)}__>"
MOST_SECONDS = 10.0  # for a file to be fetched
Source = tuple[str, str]
"""What a body says of a file: its kind, empty if only the file tells, and its URL or base64."""
Media = Sequence[tuple[MediaPart, ...]]
"""What each file becomes in the prompt."""
_PARTS = {"image_url": "image", "input_audio": "audio"}


def take_media(messages: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[Source]]:
    """Chat messages with a marker in the place of each image and sound, and these."""
    sources = list[Source]()
    taken = [
        message | {"content": take_parts(content, sources)}
        if isinstance(content := message.get("content"), list)
        else message
        for message in messages
    ]
    return taken, sources


def take_parts(parts: Sequence[Any], sources: list[Source]) -> list[Any]:
    """Parts of a message with markers in the place of files, which are added to `sources`."""

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


async def read_prompt_media(http: HttpRequest, prompt: Any) -> Media:
    """As `read_media`, for the files of a prompt or of a list of prompts."""
    return await read_media(http, await off_loop(http, lambda: prompt_media(prompt)))


async def read_media(http: HttpRequest, sources: Sequence[Source]) -> Media:
    """Fetch and check files, and ask the engine for the parts of the prompt that they become.

    Raises:
        HeadstartError: one of them cannot be used, or the model reads none.
        ClientDisconnect: the client disconnected.
    """
    if not sources:
        return ()
    service, namespace = service_of(http), http.scope["headstart.namespace"]
    modalities = service.info.modalities
    for kind, _ in sources:
        _check_kind(kind or next(iter(modalities), "image"), modalities)
    check_length("the request", sources, 64, "images and sounds")

    async def ask() -> Media:
        held, left = list[str | bytes](), service.config.max_body_mb << 20
        # each may hold many megabytes; slow sites of one tenant keep no other waiting
        async with service.image_questions.setdefault(namespace, asyncio.Semaphore(4)):
            for _, url in sources:
                held.append(await _fetched(url, service.config, left))
                left -= len(held[-1])

            def read() -> tuple[bytes, ...]:
                files = list[bytes]()
                for one in held:
                    data = one if isinstance(one, bytes) else _file_of(one, service.config)
                    kind, file = safe_file(data)  # of a large one that takes seconds
                    _check_kind(kind, modalities)
                    progress(len(files))
                    files.append(file)
                return tuple(files)

            files = await service.media_threads.run(read, namespace)
            question = MediaQuestion(f"media-{secrets.token_hex(12)}", files, namespace)
            parts: Media = await single_event(service.worker, question)
            return parts

    return await unless_left(http.receive, ask())


def _check_kind(kind: str, modalities: Sequence[str]) -> None:
    if kind not in modalities:
        reads = " and ".join(("text", *modalities))
        raise ApiError(
            500,  # as at llama-server: the request is right, and what this server loaded is not
            f"{kind} input is not supported: this model reads {reads} only; start with --mmproj, "
            "if there is a projector for it",
        )


async def _fetched(url: str, config: ServerConfig, left_bytes: int) -> str | bytes:
    """The file of an http URL, if fetching is enabled; other URLs unchanged.

    `left_bytes`: of what all files of a request may have together.
    """
    if url[:8].partition(":")[0] not in ("http", "https"):
        return url
    if not config.image_urls:
        raise not_supported(
            f"{shorten(url)} is not fetched; send the file as a data URL, or start with "
            "--image-urls"
        )
    if left_bytes >= MOST_BYTES:
        return await fetch(url, MOST_BYTES, f"{MOST_BYTES} bytes; send a smaller file")
    limit = (
        f"is left of the {config.max_body_mb} MiB that the files of a request may have together "
        "(--max-body-mb); send smaller files, or fewer"
    )
    return await fetch(url, max(0, left_bytes), limit)


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
        return base64.b64decode(data, validate=True)
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
                return file.read(MOST_BYTES + 1)  # one that is larger is refused for it
    except (OSError, ValueError):  # as if it were not there
        pass
    raise RequestError(f"file://{shorten(name)} is not in the folder of --media-path")


def place(
    texts: Sequence[list[int]], files: Media
) -> tuple[list[int], tuple[tuple[int, MediaChunk], ...]]:
    """A prompt of texts with a file between each two, and where its chunks begin."""
    tokens, media = list(texts[0]), []
    for parts, text in zip(files, texts[1:], strict=True):
        for part in parts:
            if isinstance(part, MediaChunk):
                media.append((len(tokens), part))
                tokens += part.ids()
            else:
                tokens += part
        tokens += text
    return tokens, tuple(media)


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
        raise RequestError(f"{shorten(host)} has no public address; send the file as a data URL")
    return str(addresses[0])


async def fetch(url: str, most_bytes: int, limit: str) -> bytes:
    """The file at a URL; `limit` is what the error for a larger one says.

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
                    raise RequestError(f"{shorten(url)} has more than {limit}")
            return bytes(data)
    except (httpx2.HTTPError, httpx2.InvalidURL, ValueError, TimeoutError) as error:
        words = str(error) or type(error).__name__
        raise RequestError(f"{shorten(url)} cannot be fetched: {words}") from error
