"""Tiny projectors with random weights, models that they belong to, and pictures."""

from __future__ import annotations

import base64
import struct
import zlib
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from gguf import GGUFWriter

Kind = Literal["janus_pro", "gemma3", "qwen2vl_merger", "idefics3", "ultravox"]
SOUND_CELLS = 15  # of up to 30 seconds


class VisionSize(NamedTuple):
    """What the time of an image depends on."""

    width: int = 32  # of embeddings
    num_heads: int = 2
    num_blocks: int = 1
    image: int = 28  # pixels of a side
    patch: int = 7


TINY = VisionSize()


class _Writer:
    """Tensors of random numbers in a GGUF file."""

    def __init__(self, path: Path, seed: int) -> None:
        self.gguf, self._random = GGUFWriter(path, "clip"), np.random.default_rng(seed)

    def tensor(self, name: str, *shape: int, scale: float = 0.05) -> None:
        values = self._random.standard_normal(shape) * scale
        self.gguf.add_tensor(name, values.astype(np.float32))

    def norm(self, name: str, size: int, *, has_bias: bool = True) -> None:
        self.gguf.add_tensor(f"{name}.weight", np.ones(size, np.float32))
        if has_bias:
            self.gguf.add_tensor(f"{name}.bias", np.zeros(size, np.float32))

    def encoder(self, letter: str, size: int, ff: int, num_blocks: int = 1) -> None:
        """Blocks of attention; whisper's keys have no bias."""
        scale = 0.3 * (32 / max(32, size)) ** 0.5
        for block in (f"{letter}.blk.{number}" for number in range(num_blocks)):
            for part in ("q", "k", "v", "out"):
                self.tensor(f"{block}.attn_{part}.weight", size, size, scale=scale)
                if letter != "a" or part != "k":
                    self.tensor(f"{block}.attn_{part}.bias", size)
            for part, rows, columns in (("up", ff, size), ("down", size, ff)):
                self.tensor(f"{block}.ffn_{part}.weight", rows, columns, scale=scale)
                self.tensor(f"{block}.ffn_{part}.bias", rows)
            for name in ("ln1", "ln2"):
                self.norm(f"{block}.{name}", size)
        self.norm(f"{letter}.post_ln", size)

    def numbers(self, modality: str, **values: int) -> None:
        for name, value in values.items():
            self.gguf.add_uint32(f"clip.{modality}.{name.replace('__', '.')}", value)
        self.gguf.add_float32(f"clip.{modality}.attention.layer_norm_epsilon", 1e-6)

    def close(self) -> None:
        self.gguf.write_header_to_file()
        self.gguf.write_kv_data_to_file()
        self.gguf.write_tensors_to_file()
        self.gguf.close()


def projector(
    path: Path,
    kind: Kind,
    width: int,
    *,
    hears: bool = False,
    seed: int = 0,
    size: VisionSize = TINY,
) -> Path:
    """Write a projector for a model of this width; an image has a few cells, with more pixels more.

    `hears`: it takes sound too, as ultravox alone does.
    """
    writer = _Writer(path, seed)
    if kind != "ultravox":
        _vision(writer, kind, width, size)
    if hears or kind == "ultravox":
        _sound(writer, width)
    writer.close()
    return path


def _vision(writer: _Writer, kind: Kind, width: int, sizes: VisionSize) -> None:
    size, num_heads, num_blocks, image, patch = sizes
    ff, tensor, gguf = 2 * size, writer.tensor, writer.gguf
    if kind == "qwen2vl_merger":
        image, patch = 32, 4
    gguf.add_string("clip.vision.projector_type", kind)
    gguf.add_bool("clip.has_vision_encoder", True)
    gguf.add_bool("clip.use_gelu", True)
    writer.numbers(
        "vision", embedding_length=size, feed_forward_length=ff, block_count=num_blocks,
        projection_dim=width, image_size=image, patch_size=patch, attention__head_count=num_heads,
        projector__scale_factor=2,
    )  # fmt: skip
    for name in ("mean", "std"):
        gguf.add_array(f"clip.vision.image_{name}", [0.5, 0.5, 0.5])
    tensor("v.patch_embd.weight", size, 3, patch, patch, scale=0.2)
    writer.encoder("v", size, ff, num_blocks)
    if kind == "qwen2vl_merger":
        tensor("v.patch_embd.weight.1", size, 3, patch, patch, scale=0.2)
        for name, rows in (("mm.0", 4 * size), ("mm.2", width)):
            tensor(f"{name}.weight", rows, 4 * size, scale=0.1)
            tensor(f"{name}.bias", rows)
    else:
        tensor("v.position_embd.weight", (image // patch) ** 2, size, scale=0.3)
        tensor("v.patch_embd.bias", size)
    if kind == "gemma3":
        tensor("mm.input_projection.weight", size, width, scale=0.2)
        writer.norm("mm.soft_emb_norm", size, has_bias=False)
    if kind == "idefics3":
        tensor("mm.model.fc.weight", width, 4 * size)
        gguf.add_uint32("clip.vision.preproc_image_size", 2 * image)
    if kind == "janus_pro":
        for name, rows, columns in (("mm.0", ff, size), ("mm.1", width, ff)):
            tensor(f"{name}.weight", rows, columns, scale=0.2)
            tensor(f"{name}.bias", rows)


def _sound(writer: _Writer, width: int) -> None:
    size, ff, mel, stack, tensor = 8, 16, 8, 1500 // SOUND_CELLS, writer.tensor
    writer.gguf.add_string("clip.audio.projector_type", "ultravox")
    writer.gguf.add_bool("clip.has_audio_encoder", True)
    writer.numbers(
        "audio", embedding_length=size, feed_forward_length=ff, block_count=1,
        projection_dim=width, attention__head_count=2, num_mel_bins=mel,
        projector__stack_factor=stack,
    )  # fmt: skip
    for number, columns in ((1, mel), (2, size)):
        tensor(f"a.conv1d.{number}.weight", size, columns, 3, scale=0.3)
        tensor(f"a.conv1d.{number}.bias", size, 1)
    tensor("a.position_embd.weight", 1500, size, scale=0.3)
    writer.encoder("a", size, ff)
    writer.norm("mm.a.norm_pre", size * stack, has_bias=False)
    tensor("mm.a.mlp.1.weight", 2 * ff, size * stack, scale=0.2)
    writer.norm("mm.a.norm_mid", ff, has_bias=False)
    tensor("mm.a.mlp.2.weight", width, ff, scale=0.2)


def wav(seed: int = 0, seconds: float = 1.0, rate: int = 16000) -> bytes:
    """A tone that swells, as 16 bits of one channel."""
    at = 2 * np.pi * np.arange(int(seconds * rate)) / rate
    values = (8000 * np.sin((200 + 300 * seed) * at) * (1 + np.sin((seed + 1) * at))).astype("<i2")
    head = struct.pack("<4sI8sIHHIIHH", b"RIFF", 36 + values.nbytes, b"WAVEfmt ", 16, 1, 1, rate,
                       2 * rate, 2, 16)  # fmt: skip
    return head + struct.pack("<4sI", b"data", values.nbytes) + values.tobytes()


def mp3(num_frames: int, tag: bytes = b"") -> bytes:
    """Silence of 24 ms a frame; `tag` where an encoder writes what it knows."""
    frames = b"\xff\xfb\x94\xc0" + bytes(380)
    return (frames[:21] + tag + bytes(363))[:384] * bool(tag) + frames * num_frames


def flac(num_samples: int, promised: int | None = None) -> bytes:
    """Silence; the head says `promised` samples."""
    facts = 16000 << 44 | 15 << 36 | (num_samples if promised is None else promised)
    head = b"fLaC" + b"\x80\0\0\x22" + struct.pack(">HH6xQ16x", 4096, 4096, facts)
    frame = b"\xff\xf8\xc5\x08"  # 4,096 samples of 16,000 a second, one channel, 16 bits
    frames = []
    for number in range(-(-num_samples // 4096)):
        one = frame + bytes([number])
        one += bytes([_crc(one, 8, 0x07)]) + b"\0\0\0"  # a constant
        frames.append(one + _crc(one, 16, 0x8005).to_bytes(2))
    return head + b"".join(frames)


def _crc(data: bytes, bits: int, polynomial: int) -> int:
    value = 0
    for byte in data:
        value ^= byte << bits - 8
        for _ in range(8):
            value = value << 1 ^ (polynomial if value >> bits - 1 & 1 else 0)
        value &= (1 << bits) - 1
    return value


def picture(seed: int = 0, width: int = 28, height: int = 28) -> bytes:
    """A PNG of random pixels."""
    pixels = np.random.default_rng(seed).integers(0, 255, (height, 3 * width), np.uint8)
    return png(width, height, b"".join(b"\0" + line.tobytes() for line in pixels))


def png(width: int, height: int, lines: bytes) -> bytes:
    """A PNG with this content, which need not fit its size."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(lines)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in parts
    )


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def image_part(image: bytes | str) -> dict[str, Any]:
    """A part of a chat message; an image as a data URL, or another URL."""
    url = image if isinstance(image, str) else "data:image/png;base64," + encoded(image)
    return {"type": "image_url", "image_url": {"url": url}}


def sound_part(sound: bytes) -> dict[str, Any]:
    return {"type": "input_audio", "input_audio": {"data": encoded(sound), "format": "wav"}}


def asking(part: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """The body of a chat about an image or a sound."""
    messages = [{"role": "user", "content": [{"type": "text", "text": "What is this: "}, part]}]
    return {"messages": messages, "max_tokens": 8, "temperature": 0, **fields}


TINY_JPEG = base64.b64decode(
    "/9j/4AAQSkZJRgABAQEASABIAAD/2wBDAP////////////////////////////////////////////////////////////"
    "//////////////////////////wgALCAABAAEBAREA/8QAFBABAAAAAAAAAAAAAAAAAAAAAP/aAAgBAQABPxA="
)
TINY_GIF = base64.b64decode("R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7")
