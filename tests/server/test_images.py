"""Images over HTTP: a real server, its engine in a process of its own, and the OpenAI client."""

from __future__ import annotations

import base64
import re
import struct
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from PIL import Image
from tests.images import (
    TINY_GIF,
    TINY_JPEG,
    asking,
    encoded,
    image_part,
    picture,
    png,
    projector,
    sound_part,
    wav,
)
from tests.server.server_process import Server
from tests.server.serving import error_of, openai_of, serving_models

from headstart.app import demo
from headstart.config import Config, EmbeddingConfig, EngineConfig, ImageConfig, ModelConfig
from headstart.server.media_files import as_png_or_jpeg


def saved(kind: str, mode: str = "RGB") -> bytes:
    file = BytesIO()
    Image.open(BytesIO(picture(3, 9, 7))).convert(mode).save(file, kind)
    return file.getvalue()


KINDS = {
    "png": picture(3, 9, 7),
    "jpeg": TINY_JPEG,
    "gif": TINY_GIF,
    "webp": saved("WEBP"),
    "bmp": saved("BMP"),
}


def bmp_of_runs(width: int, height: int, runs: bytes) -> bytes:
    place = 14 + 40 + 1024  # of the runs, behind two heads and a palette
    head = b"BM" + struct.pack("<IHHI", place + len(runs), 0, 0, place)
    head += struct.pack("<IiiHHIIiiII", 40, width, height, 1, 8, 1, len(runs), 0, 0, 256, 0)
    return head + bytes(1024) + runs


@pytest.fixture
def client(seeing: httpx2.Client) -> httpx2.Client:
    return seeing


def chat(client: httpx2.Client, part: dict[str, Any]) -> httpx2.Response:
    return client.post("/v1/chat/completions", json=asking(part))


@pytest.mark.parametrize(
    "part", [image_part(picture(5)), sound_part(wav(5))], ids=["image", "sound"]
)
def test_the_openai_client_asks_about_a_file_and_asks_again(client: httpx2.Client, part) -> None:
    with openai_of(client) as sdk:
        asked = asking(part)
        first = sdk.chat.completions.create(model="m", **asked)
        answer = {"role": "assistant", "content": first.choices[0].message.content}
        more = [*asked["messages"], answer, {"role": "user", "content": "And its colour?"}]
        second = sdk.chat.completions.create(model="m", **(asked | {"messages": more}))
    assert first.usage is not None
    assert second.usage is not None
    assert second.usage.prompt_tokens_details is not None
    cached = second.usage.prompt_tokens_details.cached_tokens or 0
    assert cached >= first.usage.prompt_tokens > 16  # an image has 16 cells, a sound one less
    assert second.usage.prompt_tokens - cached < 30


def test_every_api_gives_the_same_tokens_for_the_same_image(client: httpx2.Client) -> None:
    image = picture(7)
    text = {"type": "text", "text": "hi"}
    wanted = client.post(
        "/v1/chat/completions/input_tokens",
        json={"messages": [{"role": "user", "content": [image_part(image), text]}]},
    ).json()["input_tokens"]
    source = {"type": "base64", "data": encoded(image)}
    for kind in ({"media_type": "image/png"}, {}):  # without, as at llama-server
        content = [{"type": "image", "source": source | kind}, text]
        sent = {"messages": [{"role": "user", "content": content}]}
        assert client.post("/v1/messages/count_tokens", json=sent).json()["input_tokens"] == wanted
    ollama = client.post(
        "/api/chat",
        json={"messages": [{"role": "user", "content": "hi", "images": [encoded(image)]}],
              "stream": False, "options": {"num_predict": 2}},
    )  # fmt: skip
    assert ollama.json()["prompt_eval_count"] == wanted
    parts = [
        {"type": "input_image", "image_url": image_part(image)["image_url"]["url"]},
        {"type": "input_text", "text": "hi"},
    ]
    responses = client.post(
        "/v1/responses",
        json={"input": [{"role": "user", "content": parts}], "max_output_tokens": 2},
    )
    assert responses.json()["usage"]["input_tokens"] == wanted
    marker = client.get("/props").json()["media_marker"]
    prompt = {"prompt_string": f"{marker} hi", "multimodal_data": [encoded(image)]}
    native = client.post("/completion", json={"prompt": prompt, "n_predict": 2})
    assert native.json()["tokens_evaluated"] > 16


def test_base64_may_be_wrapped_and_lack_its_padding(client: httpx2.Client) -> None:
    image = picture(1, 17, 5)
    assert encoded(image).endswith("=")
    for data in (base64.encodebytes(image).decode(), encoded(image).rstrip("=")):
        for url in (data, "data:image/png;base64," + data):
            answer = chat(client, image_part(url))
            assert answer.status_code == 200, answer.text


def test_files_are_read_from_the_folder_for_them_alone(client: httpx2.Client) -> None:
    assert chat(client, image_part("file://a.png")).status_code == 200
    for name in ("../secret.png", "b.png", "/etc/hostname", "", "a.png\0", "x" * 5000):
        assert chat(client, image_part("file://" + name)).status_code == 400


@pytest.mark.parametrize(
    ("image", "says"),
    [
        ("https://example.org/a.png", "--image-urls"),
        ("data:text/html;base64,aGVsbG8=", "is no image"),
        ("malformed", "base64"),
        (b"", "neither an image"),
        (picture(1)[:40], "damaged"),
        (png(1 << 14, 1 << 14, b""), "at most 67108864"),
        (b"RIFF....WEBPVP8 " + bytes(30), "WebP|damaged"),
        (bmp_of_runs(1 << 20, 1, b"\0\2\0\x40"), "run lengths"),  # skips 64 rows of a MB each
    ],
)
def test_what_is_no_image_is_a_clear_error(client: httpx2.Client, image, says) -> None:
    answer = chat(client, image_part(image))
    assert answer.status_code == 400
    assert re.search(says, answer.json()["error"]["message"])


def test_images_have_embeddings_in_both_forms(tmp_path: Path) -> None:
    mmproj = projector(tmp_path / "mmproj.gguf", "gemma3", 256, hears=True)
    config = Config(
        model=ModelConfig(model=str(demo.path(demo.TARGET))),
        engine=EngineConfig(threads=1),
        images=ImageConfig(mmproj=str(mmproj)),
        embedding=EmbeddingConfig(embeddings=True, pooling="mean"),
    )
    with serving_models(config) as client:
        marker = client.get("/props").json()["media_marker"]

        def ask(*inputs: Any) -> list[list[float]]:
            answer = client.post("/v1/embeddings", json={"input": inputs})
            assert answer.status_code == 200, answer.text
            return [one["embedding"] for one in answer.json()["data"]]

        def parts(seed: int) -> dict[str, Any]:
            texts = [{"type": "text", "text": text} for text in ("What is this: ", "\n")]
            files = image_part(picture(seed)), sound_part(wav(seed))
            return {"content": [texts[0], *files, texts[1]]}

        data = [encoded(picture(1)), encoded(wav(1))]
        prompt = {"prompt_string": f"What is this: {marker}{marker}\n", "multimodal_data": data}
        found = ask(parts(1), prompt, parts(2), "What is this: \n")
        assert found[0] == found[1]
        assert len({tuple(vector) for vector in found}) == 3
        long = {"prompt_string": marker * 40 + "a", "multimodal_data": data[:1] * 40}
        refused = client.post("/v1/embeddings", json={"input": long})
        assert "too large to process" in error_of(refused, 400)
        many = [long | {"multimodal_data": data[:1] * number} for number in (39, 41)]
        answers = [client.post("/embedding", json={"content": one}) for one in many]
        assert [answer.status_code for answer in answers] == [400, 400]
        assert chat(client, image_part(picture(1))).status_code == 200


@pytest.mark.parametrize("mode", ["L", "1", "P", "RGBA", "I;16", "RGB"])
def test_what_goes_on_to_the_decoder_has_the_pixels_of_the_file(mode: str) -> None:
    pixels = np.arange(63, dtype=np.uint8).reshape(7, 9)
    given = Image.fromarray(pixels)
    if mode == "I;16":
        given = Image.fromarray(pixels.astype(np.uint16) * 256)
    elif mode != "L":
        given = given.convert(mode)
    file = BytesIO()
    given.save(file, "PNG")
    found = Image.open(BytesIO(as_png_or_jpeg(file.getvalue())))
    assert found.mode == "RGB"
    wanted = np.where(pixels < 128, 0, 255) if mode == "1" else pixels
    if mode != "1":
        assert np.array_equal(np.asarray(found)[..., 0], wanted)


def test_a_png_that_unpacks_to_a_gigabyte_does_not_reach_the_decoder() -> None:
    bomb = png(4, 4, bytes(1 << 28))
    assert len(bomb) > 200_000
    assert len(as_png_or_jpeg(bomb)) < 200


def test_large_images_leave_no_memory_behind(seeing_server: Server, client: httpx2.Client) -> None:
    def resident() -> int:
        return int(Path(f"/proc/{seeing_server.process.pid}/statm").read_text().split()[1]) * 4096

    def send(seed: int) -> int:
        width, height = np.random.default_rng(seed).integers(50, 2500, 2)
        file = BytesIO()
        Image.new("RGB", (int(width), int(height))).save(file, "PNG")
        sent = asking(image_part(file.getvalue()))
        return client.post("/v1/chat/completions/input_tokens", json=sent).status_code

    send(0)
    before = resident()
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(send, range(60))) == {200}
    assert resident() - before < 24 << 20
