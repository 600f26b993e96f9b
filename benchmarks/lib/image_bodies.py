"""Bodies with images and sounds, many of them damaged, in the forms of four APIs."""

from __future__ import annotations

import base64
import random
from typing import Any

from tests.images import TINY_GIF, TINY_JPEG, flac, mp3, picture, wav

MARKER = "<__media__>"  # in the text, for an image
_TAG = b"Info\0\0\0\1\0\0\0\x09"
_WEBP = base64.b64decode("UklGRiIAAABXRUJQVlA4IBYAAAAwAQCdASoBAAEADsD+JaQAA3AAAAAA")


def image_body(chance: random.Random) -> tuple[str, dict[str, Any]]:
    """A path and a body with one file, three times in four damaged."""
    images = picture(chance.randrange(9), 28, 40), TINY_JPEG, TINY_GIF, _WEBP
    sounds = wav(chance.randrange(9), 0.2), mp3(9, _TAG), flac(5000)
    is_sound = chance.random() < 0.3
    data = bytearray(chance.choice(sounds if is_sound else images))
    for _ in range(chance.choice((0, 1, 3, 9))):
        data[chance.randrange(min(len(data), 500))] = chance.randrange(256)
    if chance.random() < 0.2:
        del data[chance.randrange(len(data)) :]
    image = base64.b64encode(data).decode()
    text = {"type": "text", "text": "a"}
    sound = {"type": "input_audio", "input_audio": {"data": image}}
    url = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{image}"}}
    source = {"type": "base64", "media_type": "image/png", "data": image}
    prompt = {"prompt_string": f"{MARKER} a", "multimodal_data": [image]}
    bodies: dict[str, Any] = {
        "/v1/chat/completions": {
            "messages": [{"role": "user", "content": [sound if is_sound else url, text]}]
        },
        "/v1/messages": {
            "messages": [{"role": "user", "content": [{"type": "image", "source": source}, text]}]
        },
        "/api/chat": {
            "messages": [{"role": "user", "content": "a", "images": [image]}],
            "options": {"num_predict": 2},
        },
        "/completion": {"prompt": prompt},
        "/embedding": {"content": prompt},
        "/v1/embeddings": {"input": [prompt, "a"]},
    }
    path = chance.choice(list(bodies))
    return path, {"max_tokens": 2} | bodies[path]
