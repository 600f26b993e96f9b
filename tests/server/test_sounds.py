"""Sounds in prompts over HTTP, and what their files may be."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
from tests.images import (
    SOUND_CELLS,
    asking,
    encoded,
    flac,
    image_part,
    mp3,
    picture,
    projector,
    sound_part,
    wav,
)
from tests.server.serving import error_of, openai_of, serving_models
from tests.server.test_images import KINDS, chat

from headstart.app import demo
from headstart.config import Config, EngineConfig, ImageConfig, ModelConfig
from headstart.server.body import read_object
from headstart.server.media_files import safe_file
from headstart.types.errors import RequestError


def wav_of(
    values: Any, tag: int = 1, channels: int = 1, rate: int = 16000, bits: int | None = None
) -> bytes:
    """A WAV file with another chunk before its samples."""
    data, bits = values.tobytes(), bits or 8 * values.itemsize
    frame = channels * bits // 8
    fmt = struct.pack("<HHIIHH", tag, channels, rate, rate * frame, frame, bits)
    if tag == 0xFFFE:
        fmt += struct.pack("<HHIH14x", 22, bits, 0, 1)
    chunks = b"".join(
        name + struct.pack("<I", len(part)) + part + bytes(len(part) % 2)
        for name, part in ((b"LIST", b"odd"), (b"fmt ", fmt), (b"data", data))
    )
    return b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks


TONE = np.sin(np.arange(16000) / 9)
SOUNDS = {
    "wav": wav(1),
    "wav of 8 bits": wav_of((TONE * 99 + 128).astype(np.uint8)),
    "wav of 24 bits": wav_of(np.zeros(48000, np.uint8), bits=24),
    "wav of 32 bits": wav_of((TONE * 2**30).astype(np.int32)),
    "wav of floats": wav_of(TONE.astype(np.float32), 3),
    "wav of doubles": wav_of(TONE, 3),
    "extensible wav": wav_of((TONE * 999).astype(np.int16), 0xFFFE),
    "stereo wav": wav_of((TONE * 999).astype(np.int16), channels=2, rate=44100),
    "mu-law wav": wav_of(np.arange(16000).astype(np.uint8), 7),
    "wav with no numbers": wav_of(np.full(16000, np.nan, np.float32), 3),
    "wav with infinity": wav_of(np.where(TONE > 0, np.inf, -3e38).astype(np.float32), 3),
    "mp3": mp3(40),
    "mp3 with a tag": b"ID3\4\0\0\0\0\1\0" + bytes(128) + mp3(40) + b"TAG" + bytes(125),
    "flac": flac(16000),
}


@pytest.fixture
def client(seeing: httpx2.Client) -> httpx2.Client:
    return seeing


def count(client: httpx2.Client, sound: bytes) -> httpx2.Response:
    return client.post("/v1/chat/completions/input_tokens", json=asking(sound_part(sound)))


def test_every_api_gives_the_same_tokens_for_the_same_sound(client: httpx2.Client) -> None:
    sound, image = wav(7), encoded(picture(1))
    chat = client.post("/v1/chat/completions", json=asking(sound_part(sound))).json()
    parts = [{"type": "input_text", "text": "What is this: "}, sound_part(sound)]
    responses = client.post(
        "/v1/responses",
        json={"input": [{"role": "user", "content": parts}], "max_output_tokens": 4},
    )
    assert responses.json()["usage"]["input_tokens"] == chat["usage"]["prompt_tokens"]
    marker = client.get("/props").json()["media_marker"]
    found = []
    for files in ([encoded(sound)], [encoded(sound), image]):
        prompt = {"prompt_string": marker * len(files) + " hi", "multimodal_data": files}
        answer = client.post("/completion", json={"prompt": prompt, "n_predict": 2})
        found.append(answer.json()["tokens_evaluated"])
    assert found[1] == found[0] + 16  # an image has 16 cells


def test_a_transcription_is_the_answer_of_a_chat_with_the_sound(client: httpx2.Client) -> None:
    sound = wav(6)
    chat = asking(sound_part(sound), max_tokens=4)
    chat["messages"][0]["content"][0]["text"] = "Transcribe audio to text (language: en)"
    wanted = client.post("/v1/chat/completions", json=chat).json()
    text, usage = wanted["choices"][0]["message"]["content"], wanted["usage"]
    options: dict[str, Any] = {"language": "en", "temperature": 0, "extra_body": {"max_tokens": 4}}
    with openai_of(client) as sdk:
        create = sdk.audio.transcriptions.create
        found = create(model="m", file=("a.wav", sound), **options)
        events = list(create(model="m", file=("a.wav", sound), stream=True, **options))
    assert found.text == text
    assert found.model_dump()["usage"]["output_tokens"] == usage["completion_tokens"]
    assert found.model_dump()["usage"]["input_tokens"] == usage["prompt_tokens"]
    *deltas, last = [event.model_dump() for event in events]
    assert "".join(one["delta"] for one in deltas) == last["text"] == text
    as_json = {"file": encoded(sound), "language": "en", "temperature": 0, "max_tokens": 4}
    assert client.post("/audio/transcriptions", json=as_json).json()["text"] == text


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({}, "file is required"),
        ({"file": ("a.wav", b"no sound")}, "neither an image"),
        ({"file": ("a.wav", wav(1)), "response_format": (None, "srt")}, "only json"),
        ({"file": ("a.wav", wav(1)), "max_tokens": (None, "many")}, "max_tokens"),
        ({"file": ("a.png", picture(1)), "stream": (None, "perhaps")}, "stream"),
        ({f"f{i}": (None, "a") for i in range(300)}, "at most 256"),
    ],
)
def test_what_is_no_transcription_is_a_clear_error(client: httpx2.Client, fields, says) -> None:
    answer = client.post("/v1/audio/transcriptions", files=fields or {"x": (None, "a")})
    assert answer.status_code == 400
    assert says in answer.json()["error"]["message"]


@pytest.mark.parametrize("is_form", [True, False])
def test_no_field_of_a_transcription_is_parsed_into_millions_of_objects(client, is_form) -> None:
    """The text of a field is not part of the structure of its body, which has a limit."""
    seed = "[" + "{}," * 999 + "{}]"
    fields = {"file": encoded(wav(1)), "seed": seed}
    sent: dict[str, Any] = {"json": fields}
    if is_form:
        sent = {"files": {"file": ("a.wav", wav(1)), "seed": (None, seed)}}
    answer = client.post("/v1/audio/transcriptions", **sent)
    assert "seed is '[{}" in error_of(answer, 400)


def test_a_form_keeps_the_bytes_of_its_files() -> None:
    data = bytes(range(256)) * 3 + b"\r\n--b--\r\n\r\n--c\r\n"
    form = b'--c9\r\nContent-Disposition: form-data; filename="name"; name="file"\r\n\r\n'
    text = b'\r\n--c9\r\ncontent-disposition: form-data; name="m"\r\n\r\n\xc3\xa9\r\n--c9--\r\n'
    for kind in (
        "multipart/form-data; boundary=c9",
        'Multipart/Form-Data;charset=x; boundary="c9"',
    ):
        assert read_object(form + data + text, kind) == {"file": encoded(data), "m": "é"}


@pytest.mark.parametrize("before", ["", "\r\n", "for programs that know no forms\r\n"])
@pytest.mark.parametrize(
    "disposition",
    [
        'form-data; name="file"; filename="x.wav"',
        "form-data; name=file; filename=x.wav",
        "form-data;filename*=UTF-8''x.wav;NAME=file",
        'form-data; filename="x; name=y.wav"; name="file"',
    ],
)
def test_a_form_is_read_as_its_head_says(before: str, disposition: str) -> None:
    head = f'Content-Type: audio/wav; name="x.wav"\r\nContent-Disposition: {disposition}'
    form = f"{before}--c9\r\n{head}\r\n\r\nabc\r\n--c9--\r\n".encode()
    assert read_object(form, "multipart/form-data; boundary=c9") == {"file": encoded(b"abc")}


def test_a_model_says_that_it_sees_and_hears(client: httpx2.Client) -> None:
    modalities = client.get("/props").json()["modalities"]
    assert modalities == {"vision": True, "audio": True, "video": False}
    assert "vision" in client.post("/api/show", json={}).json()["capabilities"]
    models = client.get("/v1/models").json()
    assert models["models"][0]["capabilities"] == ["completion", "multimodal"]
    assert models["data"][0]["architecture"]["input_modalities"] == ["text", "image", "audio"]


@pytest.mark.parametrize("kind", [*SOUNDS, *KINDS])
def test_kinds_of_files_are_read(client: httpx2.Client, kind: str) -> None:
    part = sound_part(SOUNDS[kind]) if kind in SOUNDS else image_part(KINDS[kind])
    answer = chat(client, part)
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["prompt_tokens"] > SOUND_CELLS


def test_a_sound_of_minutes_has_a_chunk_for_each_half(client: httpx2.Client) -> None:
    one, three = (count(client, wav(1, seconds)).json()["input_tokens"] for seconds in (29, 80))
    assert three == one + 2 * SOUND_CELLS


@pytest.mark.parametrize(
    ("sound", "says"),
    [
        (b"", "neither an image"),
        (wav(1)[:30], "damaged"),
        (wav(1, 0.05), "0.1 to 600"),
        (wav_of(np.zeros(610 * 4000, np.uint8), rate=4000), "0.1 to 600"),
        (wav_of(TONE, 3, rate=100), "samples a second"),
        (wav_of(TONE.astype(np.int16), 2), "kind 2"),
        (wav_of(TONE.astype(np.int16), channels=9), "9 channels"),
        (flac(16000, promised=(1 << 36) - 1), "0.1 to 600"),
        (flac(16000, promised=0), "does not state its length"),
        (flac(16000)[:40], "damaged"),
        (flac(16000)[:44], "damaged"),
        (b"ID3\4\0\0\x7f\x7f\x7f\x7f" + mp3(40), "damaged"),
        pytest.param(300_000 * b"ID3\4\0\0\0\0\0\0" + mp3(40), "0.1 to 600", id="many tags"),
        (mp3(40).replace(b"\xff\xfb", b"\xff\xeb"), "damaged"),
        (mp3(2), "0.1 to 600"),
        (mp3(26000), "0.1 to 600"),
    ],
)
def test_what_is_no_sound_is_a_clear_error(seeing_server, client, sound, says) -> None:
    before = seeing_server.engine_pid()
    assert says in error_of(count(client, sound), 400)
    assert seeing_server.engine_pid() == before


def test_no_tag_of_an_mp3_may_promise_more_than_there_is(client: httpx2.Client) -> None:
    """libmtmd takes memory for as many frames as the tag says."""
    honest = b"Xing\0\0\0\1" + (40).to_bytes(4)
    assert honest in safe_file(mp3(40, honest))[1]
    for tag in (b"Xing", b"Info", b"InfoXing"):
        lying = tag + b"\0\0\0\1" + (1 << 31).to_bytes(4)
        kind, safe = safe_file(mp3(40, lying))
        assert kind == "audio"
        assert lying[len(tag) - 4 :] not in safe
        assert count(client, mp3(40, lying)).status_code == 200


@pytest.mark.parametrize("part_of", [image_part, sound_part])
def test_damaged_files_end_neither_the_engine_nor_other_requests(seeing_server, client, part_of):
    random, before = np.random.default_rng(0), seeing_server.engine_pid()
    files, number = [KINDS[kind] for kind in ("png", "jpeg", "gif")], 300
    if part_of is sound_part:
        tagged = mp3(12, b"Info\0\0\0\1\0\0\0\x0c")
        files, number = [wav(1, 0.3), tagged, flac(9000), SOUNDS["wav of floats"]], 100
    statuses = set[int]()
    for _ in range(number):
        file = np.frombuffer(files[random.integers(len(files))], np.uint8).copy()
        at = random.integers(0, min(len(file), 600), random.integers(1, 6))
        file[at] = random.integers(0, 256, len(at))
        data = file.tobytes()[: random.integers(1, 2 * len(file))]
        answer = client.post("/v1/chat/completions/input_tokens", json=asking(part_of(data)))
        statuses.add(answer.status_code)
    assert statuses == {200, 400}
    assert seeing_server.engine_pid() == before
    assert chat(client, image_part(picture(1))).status_code == 200


def test_a_model_that_reads_no_images_says_so(tmp_path: Path) -> None:
    """One that reads no sounds either: `test_what_is_not_built_is_refused_not_ignored`."""
    mmproj = projector(tmp_path / "mm.gguf", "ultravox", 256)
    model = ModelConfig(model=str(demo.path(demo.TARGET)))
    engine, images = EngineConfig(context=1024, threads=1), ImageConfig(mmproj=str(mmproj))
    config = Config(model=model, engine=engine, images=images)
    with serving_models(config) as client:
        answer = chat(client, image_part(picture(1)))
        says = "image input is not supported: this model reads text and audio only"
        assert says in error_of(answer, 500, "server_error")
        assert count(client, wav(1)).status_code == 200


def test_every_kind_of_sound_is_looked_at_before_it_goes_on() -> None:
    for data in SOUNDS.values():
        assert safe_file(data)[0] == "audio"
    with pytest.raises(RequestError, match="at most 20971520"):
        safe_file(bytes(21 << 20))
