"""What an image's file says of itself, before anything decodes it.

The decoder is C: only kinds that it is known for, and sizes that it has memory for, come to it.
"""

from __future__ import annotations

import shutil
import struct
import zlib

from headstart.types.errors import RequestError

MOST_BYTES = 20 << 20  # of a file
MOST_PIXELS = 64 << 20  # 200 MB when they are decoded
_MOST_SCANS = 100  # of a JPEG, each of which goes over all pixels
_PNG, _JPEG, _GIF = b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", (b"GIF87a", b"GIF89a")


def check_image(data: bytes) -> None:
    """Look at the kind and the size of an image.

    Raises:
        RequestError: it cannot be read, or is too large.
    """
    if len(data) > MOST_BYTES:
        raise RequestError(
            f"an image has {len(data)} bytes but at most {MOST_BYTES} are taken; send a smaller one"
        )
    try:
        width, height = _size(data)
    except (struct.error, IndexError, zlib.error):
        width = height = 0
    if not width or not height:
        raise RequestError("an image cannot be read: its file is damaged; send it as PNG or JPEG")
    if width * height > MOST_PIXELS:
        raise RequestError(
            f"an image has {width} x {height} pixels but at most {MOST_PIXELS} are taken; send a "
            "smaller one"
        )


def _size(data: bytes) -> tuple[int, int]:
    """Width and height in pixels; 0 if the file is damaged."""
    if data.startswith(_PNG):
        return _png_size(data)
    if data.startswith(_JPEG):
        return _jpeg_size(data)
    if data.startswith(_GIF):
        width, height = struct.unpack_from("<HH", data, 6)
        return width, height
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        if not (shutil.which("ffmpeg") and shutil.which("ffprobe")):
            raise RequestError("WebP needs ffmpeg on the server; send the image as PNG or JPEG")
        return _webp_size(data)
    raise RequestError("an image is neither PNG, JPEG, GIF nor WebP; send it as one of these")


def _png_size(data: bytes) -> tuple[int, int]:
    """Also unpacks it piece by piece: a file may unpack to a thousand times its size."""
    width, height, depth, kind = struct.unpack_from(">IIBB", data, 16)
    channels = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}.get(kind, 0)
    # lines of several passes begin with a byte each, too
    left = (width * depth * channels // 8 + 2) * height + 16 * (width + height)
    unpacked, at = zlib.decompressobj(), 8
    if width * height > MOST_PIXELS:
        return width, height
    while at + 8 <= len(data):
        size, name = struct.unpack_from(">I4s", data, at)
        piece, at = data[at + 8 : at + 8 + size], at + 12 + size
        while name == b"IDAT" and piece and not unpacked.eof:
            left -= len(unpacked.decompress(piece, 1 << 20))
            piece = unpacked.unconsumed_tail
            if left < 0:
                return 0, 0
    return width, height


def _jpeg_size(data: bytes) -> tuple[int, int]:
    if data.count(b"\xff\xda") > _MOST_SCANS:
        return 0, 0
    at = 2
    while data[at] == 0xFF:
        marker = data[at + 1]
        if marker == 0xFF:
            at += 1
            continue
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack_from(">HH", data, at + 5)
            return width, height
        at += 2 + struct.unpack_from(">H", data, at + 2)[0]
    return 0, 0


def _webp_size(data: bytes) -> tuple[int, int]:
    kind, head = data[12:16], data[20:30]
    if kind == b"VP8X":
        return 1 + int.from_bytes(head[4:7], "little"), 1 + int.from_bytes(head[7:10], "little")
    if kind == b"VP8L":
        bits = int.from_bytes(head[1:5], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    width, height = struct.unpack_from("<HH", head, 6)
    return width & 0x3FFF, height & 0x3FFF
