"""Images of requests: where bodies name them, where their files come from, what they become."""

from __future__ import annotations

import asyncio
import base64
import binascii
import ipaddress
import os
import secrets
import socket
from collections.abc import Awaitable, Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

from starlette.requests import Request as HttpRequest

from headstart.config import ServerConfig
from headstart.server.errors import not_supported, shorten
from headstart.server.event_stream import single_event
from headstart.server.limits import check_length
from headstart.server.model import service_of
from headstart.server.threads import unless_left
from headstart.types.errors import RequestError
from headstart.types.media import MediaChunk, MediaEvent, MediaPart, MediaQuestion

# in a prompt's text, in the place of an image; nobody else knows it
MARKER = os.environ.get("LLAMA_MEDIA_MARKER") or f"<__media_{secrets.token_hex(16)}__>"
MOST_BYTES = 20 << 20  # of a file
MOST_PIXELS = 64 << 20  # 200 MB when they are decoded
MOST_SECONDS = 10.0  # for a file to be fetched
Resolve = Callable[[str, int], Awaitable[str]]
Images = Sequence[tuple[MediaPart, ...]]
"""What each image becomes in the prompt."""


def take_images(messages: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[str]]:
    """Chat messages with a marker in the place of each image, and the images' URLs."""
    urls = list[str]()

    def without(part: Any) -> Any:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "media_marker":
            raise RequestError("media_marker is no type of a part; send image_url")
        if kind != "image_url":
            return part
        image = part.get("image_url")
        url = image.get("url") if isinstance(image, dict) else image
        if not isinstance(url, str):
            raise RequestError(f"image_url.url must be a text, not {shorten(url)}")
        urls.append(url)
        return {"type": "media_marker", "text": MARKER}

    taken = [
        message | {"content": [without(part) for part in content]}
        if isinstance(content := message.get("content"), list)
        else message
        for message in messages
    ]
    return taken, urls


def prompt_images(prompt: Any) -> list[str]:
    """The images of a prompt, or of a list of prompts, in base64: {"prompt_string",
    "multimodal_data"}.
    """
    if isinstance(prompt, list):
        return [image for one in prompt if isinstance(one, dict) for image in prompt_images(one)]
    found = (prompt.get("multimodal_data") or []) if isinstance(prompt, dict) else []
    if not isinstance(found, list) or not all(isinstance(image, str) for image in found):
        raise RequestError(f"multimodal_data must be a list of base64 texts, not {shorten(found)}")
    return found


async def read_images(http: HttpRequest, urls: Sequence[str]) -> Images:
    """Ask the engine what images become.

    Raises:
        HeadstartError: one of them cannot be used, or the model reads none.
        ClientGoneError: the client disconnected.
    """
    if not urls:
        return ()
    service, namespace = service_of(http), http.scope["headstart.namespace"]
    if not service.info.reads_images:
        raise not_supported(
            "image input is not supported: this model reads text only; start with --mmproj, if "
            "there is a projector for it"
        )
    check_length("the request", urls, 64, "images")

    async def ask() -> Images:
        held = [await _fetched(url, service.config) for url in urls]
        files = await service.prompt_threads.run(_reader(held, service.config), namespace)
        question = MediaQuestion(f"images-{secrets.token_hex(12)}", files, namespace)
        event = await single_event(service.worker, question)
        assert isinstance(event, MediaEvent)
        return event.parts

    async with service.image_questions:  # each may hold many megabytes
        return await unless_left(http.receive, ask())


async def _fetched(url: str, config: ServerConfig) -> str | bytes:
    """What an http URL names, if such are fetched; another URL as it is."""
    if url[:8].partition(":")[0] not in ("http", "https"):
        return url
    if not config.image_urls:
        raise not_supported(
            f"{shorten(url)} is not fetched; send the image as a data URL, or start with "
            "--image-urls"
        )
    return await fetch(url, MOST_BYTES)


def _reader(held: Sequence[str | bytes], config: ServerConfig) -> Callable[[], tuple[bytes, ...]]:
    def read() -> tuple[bytes, ...]:
        files = (one if isinstance(one, bytes) else _file_of(one, config) for one in held)
        return tuple(map(as_png_or_jpeg, files))

    return read


def _file_of(url: str, config: ServerConfig) -> bytes:
    scheme = url[:16].partition(":")[0]
    if scheme == "file":
        return _local(url.removeprefix("file://"), config.media_path)
    data = url
    if scheme == "data":
        kind, comma, data = url.partition(",")
        if not comma or not kind.startswith("data:image/") or not kind.endswith("base64"):
            raise RequestError(
                f"{shorten(kind)} is no image; a data URL begins with data:image/png;base64, or "
                "another kind of image"
            )
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise RequestError(f"an image is not valid base64: {error}") from error


def as_png_or_jpeg(data: bytes) -> bytes:
    """An image that libmtmd can decode safely: JPEG as it is, other kinds decoded and as PNG.

    libmtmd's decoder is C and has no limits: of a small PNG it would unpack gigabytes.

    Raises:
        RequestError: it cannot be read, or is too large.
    """
    from PIL import Image, UnidentifiedImageError

    if len(data) > MOST_BYTES:
        raise RequestError(
            f"an image has {len(data)} bytes but at most {MOST_BYTES} are taken; send a smaller one"
        )
    Image.MAX_IMAGE_PIXELS = None  # Pillow would only warn of images that are refused here
    try:
        with Image.open(BytesIO(data), formats=("PNG", "JPEG", "GIF", "WEBP")) as image:
            if image.width * image.height > MOST_PIXELS:
                raise RequestError(
                    f"an image has {image.width} x {image.height} pixels but at most {MOST_PIXELS} "
                    "are taken; send a smaller one"
                )
            if image.format == "JPEG" and data.count(b"\xff\xda") <= 100:  # each scan is a pass
                return data
            shown: Image.Image = image
            if image.mode.startswith("I"):  # 16 bits
                shown = image.point(lambda value: value / 256).convert("L")
            png = BytesIO()
            (shown if shown.mode == "RGB" else shown.convert("RGB")).save(
                png, "PNG", compress_level=1
            )
            return png.getvalue()
    except UnidentifiedImageError:
        raise RequestError(
            "an image is neither PNG, JPEG, GIF nor WebP, or is damaged; send it as one of these"
        ) from None
    except RequestError:
        raise
    except Exception as error:  # Pillow has no class for what damaged files make its readers raise
        raise RequestError(
            "an image cannot be read: its file is damaged; send it as PNG or JPEG"
        ) from error


def _local(name: str, folder: str | None) -> bytes:
    if folder is None:
        raise not_supported("file:// is not supported: the server was started without --media-path")
    root = Path(folder).resolve()
    try:
        path = (root / name).resolve()
        if path.is_relative_to(root) and path.is_file():
            return path.read_bytes()
    except (OSError, ValueError):  # as if it were not there
        pass
    raise RequestError(f"file://{shorten(name)} is not in the folder of --media-path")


def place(
    texts: Sequence[list[int]], images: Images
) -> tuple[list[int], tuple[tuple[int, MediaChunk], ...]]:
    """A prompt of texts with an image between each two, and where its chunks begin."""
    tokens, media = list(texts[0]), []
    for parts, text in zip(images, texts[1:], strict=True):
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
