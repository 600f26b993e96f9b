"""Makes image and audio files safe for libmtmd, whose C decoders have no limits.

libmtmd would unpack gigabytes from a small PNG, and aborts if an audio header promises more samples
than fit into memory.
"""

from __future__ import annotations

import re
import struct
from io import BytesIO

import numpy as np

from headstart.types.errors import RequestError

MOST_BYTES = 20 << 20  # of a file
MOST_PIXELS = 64 << 20  # 200 MB decoded
LEAST_SECONDS, MOST_SECONDS = 0.1, 600.0  # of audio; some projectors process it as a whole
RATES = range(4_000, 400_000)  # samples per second
# of MP3, for MPEG 1, then for MPEG 2 and 2.5
_KBITS = ((0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 0),
          (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160, 0))  # fmt: skip


def safe_file(data: bytes) -> tuple[str, bytes]:
    """The kind, "image" or "audio", and the file in a form that is safe for libmtmd.

    Raises:
        RequestError: it cannot be read, or is too large.
    """
    if len(data) > MOST_BYTES:
        raise RequestError(
            f"a file has {len(data)} bytes but at most {MOST_BYTES} are taken; send a smaller one"
        )
    is_wav = data[:4] == b"RIFF" and data[8:12] == b"WAVE"
    is_mp3 = data[:1] == b"\xff" and data[1:2] >= b"\xe0"
    if not (is_wav or is_mp3 or data[:4] == b"fLaC" or data[:3] == b"ID3"):
        return "image", as_png_or_jpeg(data)
    try:
        return "audio", as_safe_sound(data)
    except (IndexError, KeyError, struct.error) as error:
        raise RequestError(
            "a sound cannot be read: its file is damaged; send it as WAV, MP3 or FLAC"
        ) from error


def as_png_or_jpeg(data: bytes) -> bytes:
    """Return JPEG unchanged, and other images converted to PNG.

    Raises:
        RequestError: it cannot be read, or is too large.
    """
    from PIL import Image, UnidentifiedImageError

    Image.MAX_IMAGE_PIXELS = None  # Pillow would only warn about images that are refused here
    try:
        with Image.open(BytesIO(data), formats=("PNG", "JPEG", "GIF", "WEBP", "BMP")) as image:
            if image.width * image.height > MOST_PIXELS:
                raise RequestError(
                    f"an image has {image.width} x {image.height} pixels but at most {MOST_PIXELS} "
                    "are taken; send a smaller one"
                )
            # Pillow takes gigabytes for a few bytes of these, before it looks at the image's size
            if image.format == "BMP" and image.info["compression"] in (1, 2):
                raise RequestError(
                    "an image is a BMP of run lengths (RLE), which is not read; send it as PNG"
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
            "a file is neither an image (PNG, JPEG, GIF, WebP, BMP) nor a sound (WAV, MP3, FLAC), "
            "or is damaged; send it as one of these"
        ) from None
    except RequestError:
        raise
    except Exception as error:  # damaged files raise any exception in Pillow's readers
        raise RequestError(
            "an image cannot be read: its file is damaged; send it as PNG or JPEG"
        ) from error


def as_safe_sound(data: bytes) -> bytes:
    """Return audio of limited length with a correct header.

    Raises:
        RequestError: it is too short, too long, or of an unsupported kind.
        IndexError, KeyError, struct.error: it is damaged.
    """
    at = 0
    for _ in range(8):  # files have one or two tags
        if data[at : at + 3] != b"ID3":
            break
        size = data[at + 6] << 21 | data[at + 7] << 14 | data[at + 8] << 7 | data[at + 9]
        at += 10 + size + (10 if data[at + 5] & 0x10 else 0)
    data = data[at:]
    if data[:4] == b"RIFF":
        return _wav(data)
    if data[:4] == b"fLaC":
        _check_flac(data)
        return data
    return _mp3(data)


def _check_length(num_samples: int, rate: int) -> None:
    if rate not in RATES:
        raise RequestError(
            f"a sound has {rate} samples a second but must have {RATES.start} to {RATES.stop - 1}"
        )
    if not LEAST_SECONDS <= (seconds := num_samples / rate) <= MOST_SECONDS:
        raise RequestError(
            f"a sound takes {seconds:.1f} seconds but must take {LEAST_SECONDS} to "
            f"{MOST_SECONDS:g}; send another part of it"
        )


def _wav(data: bytes) -> bytes:
    """The samples with a new header."""
    chunks, at = dict[bytes, bytes](), 12
    while at + 8 <= len(data) and b"data" not in chunks:
        size = int.from_bytes(data[at + 4 : at + 8], "little")
        chunks.setdefault(data[at : at + 4], data[at + 8 : at + 8 + size])
        at += 8 + size + size % 2
    head, samples = chunks[b"fmt "], chunks[b"data"]
    tag, channels, rate, _, _, bits = struct.unpack("<HHIIHH", head[:16])
    if tag == 0xFFFE:  # the real tag comes later
        tag = int.from_bytes(head[24:26], "little")
    known = {1: (8, 16, 24, 32), 3: (32, 64), 6: (8,), 7: (8,)}  # 1 is PCM, 3 floats
    if bits not in known.get(tag, ()) or not 1 <= channels <= 8:
        raise RequestError(
            f"a WAV file has samples of kind {tag} with {bits} bits in {channels} channels, which "
            "is not read; send 16 bits as PCM"
        )
    frame = channels * bits // 8
    samples = samples[: len(samples) // frame * frame]
    _check_length(len(samples) // frame, rate)
    if tag == 3:  # floats; NaN and infinities must not reach the model
        values = np.frombuffer(samples, f"<f{bits // 8}")
        samples = np.clip(np.nan_to_num(values), -1e3, 1e3).astype(values.dtype).tobytes()
    return struct.pack(
        "<4sI8sIHHIIHH4sI", b"RIFF", 36 + len(samples), b"WAVEfmt ", 16, tag, channels, rate,
        rate * frame, frame, bits, b"data", len(samples),
    ) + samples  # fmt: skip


def _check_flac(data: bytes) -> None:
    is_first, size = data[4] & 0x7F == 0, int.from_bytes(data[5:8])
    if not is_first or size != 34 or len(data) < 42:
        raise IndexError
    facts = int.from_bytes(data[18:26])
    if not (num_samples := facts & ((1 << 36) - 1)):  # as encoders write into a pipe
        raise RequestError(
            "a FLAC file does not state its length; encode it into a file, not into a pipe"
        )
    _check_length(num_samples, facts >> 44)


def _mp3(data: bytes) -> bytes:
    """The consecutive frames at the start of the file."""
    at = num_frames = 0
    first = data[1] & 0xFE, data[2] & 0x0C  # version and layer; rate
    rates = {3: (44100, 48000, 32000), 2: (22050, 24000, 16000), 0: (11025, 12000, 8000)}
    version, rate = data[1] >> 3 & 3, rates[data[1] >> 3 & 3][data[2] >> 2 & 3]
    samples, kbits = (1152, _KBITS[0]) if version == 3 else (576, _KBITS[1])
    while at + 4 <= len(data) and data[at] == 0xFF:
        if (data[at + 1] & 0xFE, data[at + 2] & 0x0C) != first or first[0] & 6 != 2:
            break
        size = samples * 125 * kbits[data[at + 2] >> 4] // rate + (data[at + 2] >> 1 & 1)
        if size < 24 or at + size > len(data):
            break
        at, num_frames = at + size, num_frames + 1
    _check_length(num_frames * samples, rate)

    def disarm(tag: re.Match[bytes]) -> bytes:
        return tag[0] if int.from_bytes(tag[1]) <= num_frames else b"\0" * 4

    # a tag in the first frame states their number, which decoders trust
    return re.sub(rb"(?:Xing|Info)(?=....(....))", disarm, data[:at], flags=re.DOTALL)
