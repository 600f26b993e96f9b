"""Files are encoded for those who wait for them, and for nobody else."""

from __future__ import annotations

import threading
import time
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from tests.harness import play, steps, submit_all
from tests.images import VisionSize, picture, projector
from tests.planted import noted
from tests.real.answers import Setting
from tests.real.image_prompts import BYTES, TARGETS, ask, models, sampling

from headstart.app.assemble import Models, build_scheduler
from headstart.config import EmbeddingConfig, ImageConfig
from headstart.engine.media import LlamaChunk
from headstart.scheduler.admission import find_media
from headstart.scheduler.scheduler import Scheduler
from headstart.types.errors import EngineError
from headstart.types.media import MediaQuestion
from headstart.types.request import EmbeddingRequest, ErrorEvent, Event, ReplyEvent, Request

THREADS = Path("/proc/self/task")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return models(tmp_path_factory.mktemp("models"), *TARGETS["causal"])


def open_scheduler(files: Models, num_slots: int = 1, **parts: Any) -> Scheduler:
    config = replace(Setting("off", 0, num_slots, exact=False).config(), **parts)
    return build_scheduler(config, files)[0]


def test_an_image_whose_clients_left_is_not_encoded_unless_another_waits_for_it(files: Models):
    scheduler = open_scheduler(files, 4, embedding=EmbeddingConfig(embeddings=True))
    asked = [
        ask(scheduler, name, BYTES[:9], picture(number), BYTES, sampling=sampling(0.0))
        for name, number in (("a", 1), ("b", 1), ("c", 2))
    ]
    text = ask(scheduler, "e", BYTES[:9], picture(3), BYTES)
    media: Any = scheduler.media
    chunks = [media.find(request.media[0][1]) for request in (*asked, text)]
    is_free = threading.Event()
    media._thread.submit(is_free.wait)  # another file is encoded all the time
    for request in asked:
        scheduler.submit(request)
    (begin, chunk), embeddings = text.media[0], scheduler.embeddings
    assert embeddings is not None
    found = dict(find_media([(text.prompt[begin], chunk)], scheduler.media))
    embeddings.submit(EmbeddingRequest("e", (text.prompt,)), found)
    while any(chunk._embeddings is None for chunk in chunks):
        scheduler.step()
        embeddings.step(is_alone=False)
    for name in "ac":
        scheduler.cancel(name)
    embeddings.cancel("e")
    is_free.set()
    while scheduler.has_work:
        scheduler.step()
        assert not embeddings.step(is_alone=False)
    media._thread.submit(int).result()
    is_encoded = [chunk._embeddings is not None for chunk in chunks]
    assert is_encoded == [True, True, False, False]


def num_helpers() -> int:
    """Threads of this process that are not Python's."""
    return len([*THREADS.iterdir()]) - threading.active_count()


@pytest.mark.skipif(not THREADS.exists(), reason="threads are counted as Linux tells them")
def test_computing_an_image_leaves_no_threads_for_which_later_steps_would_wait(files: Models):
    engine = replace(Setting("off", 0).config().engine, threads=2)
    scheduler = open_scheduler(files, engine=engine)
    play(scheduler, [Request(request_id="text", prompt=BYTES[:9], max_tokens=2)])
    before = num_helpers()
    assert before > 0, "steps have some"
    play(scheduler, [ask(scheduler, "image", BYTES[:9], picture(7), BYTES, max_tokens=2)])
    for _ in range(100):  # they end by themselves
        if num_helpers() <= before:
            break
        time.sleep(0.01)
    assert num_helpers() <= before


def test_who_found_an_image_in_the_cache_takes_its_encoding_from_nobody(files: Models) -> None:
    scheduler = open_scheduler(files, 2)
    media: Any = scheduler.media

    def asked(name: str, text: list[int], max_tokens: int) -> Request:
        return ask(scheduler, name, text, picture(1), BYTES, max_tokens=max_tokens)

    play(scheduler, [asked("before", BYTES[:9], 1)])
    media._chunks.clear()  # others came
    again, other = (asked(name, BYTES[:size], 99) for name, size in (("again", 9), ("other", 8)))
    is_free = threading.Event()
    media._thread.submit(is_free.wait)
    chunk = media.find(other.media[0][1])
    scheduler.submit(again)
    while not any(one.is_generating for one in scheduler.running):
        scheduler.step()
    assert chunk._embeddings is None, "its cells are known"
    scheduler.submit(other)
    while chunk._embeddings is None:
        scheduler.step()
    asked_for = chunk._embeddings
    scheduler.cancel("again")
    assert chunk._embeddings is asked_for
    assert not asked_for.cancelled()
    is_free.set()


def test_an_image_whose_encoding_failed_is_encoded_for_the_next_who_asks(files, monkeypatch):
    scheduler = open_scheduler(files)
    asked = ask(scheduler, "a", BYTES[:9], picture(1), BYTES, max_tokens=1)
    with monkeypatch.context() as patch:
        patch.setattr(LlamaChunk, "encode", Mock(side_effect=EngineError("out of memory")))
        assert play(scheduler, [asked])["a"].error
    assert not play(scheduler, [asked])["a"].error


@pytest.mark.parametrize("error", [EngineError("out of memory"), MemoryError(), RuntimeError("x")])
def test_one_tenants_images_that_cannot_be_encoded_restart_no_engine(files, monkeypatch, error):
    scheduler = open_scheduler(files)
    monkeypatch.setattr(LlamaChunk, "encode", Mock(side_effect=error))
    asked = (ask(scheduler, f"{i}", [], picture(i), BYTES, max_tokens=1) for i in range(4))
    submit_all(scheduler, asked)
    assert not any(scheduler.num_failed_decodes for _ in steps(scheduler))
    failed = [one for one in scheduler.take_events() if isinstance(one, ErrorEvent)]
    assert [type(one.error) for one in failed] == [EngineError] * 4


def test_an_image_has_no_more_and_no_fewer_tokens_than_it_may(tmp_path: Path) -> None:
    sizes, files = [], models(tmp_path, *TARGETS["positions"])
    for limits in ImageConfig(image_max_tokens=16), ImageConfig(), ImageConfig(image_min_tokens=99):
        asked = ask(open_scheduler(files, images=limits), "a", picture(1, 64, 64), BYTES)
        sizes += [chunk.num_cells for _, chunk in asked.media]
    assert sizes[0] <= 16 < sizes[1] < 99 <= sizes[2]


def test_images_that_nobody_asks_about_are_kept_within_their_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pixels count, of which there may be many to a cell; encoded, only the cells' vectors."""
    found, size = models(tmp_path, *TARGETS["non-causal"]), VisionSize(image=448, patch=112)
    mmproj = projector(tmp_path / "large.gguf", "gemma3", 64, size=size)
    media: Any = open_scheduler(replace(found, projector=mmproj)).media
    pixels = 4 * 3 * 448**2
    monkeypatch.setattr("headstart.engine.media._MOST_BYTES", 4 * pixels)
    for number in range(8):
        media.ask(MediaQuestion("q", (picture(number, 448, 448),)))
        answered(media)
        assert len(media._chunks) == min(4, number + 1)
    chunk = next(iter(media._chunks.values()))
    assert chunk.num_bytes == pixels
    assert chunk.embeddings().nbytes == chunk.num_bytes


def answered(media: Any) -> list[Event]:
    """All answers to what it was asked."""
    events = list[Event]()
    while media.has_work:
        events += media.answers(1.0)
    return events


def test_behind_a_damaged_file_no_other_of_its_request_is_read(files: Models, monkeypatch) -> None:
    media: Any = open_scheduler(files).media
    read = noted(monkeypatch, media, "_bitmap")
    asked = (picture(1), picture(2)[:20], picture(3), picture(4))
    media.ask(MediaQuestion("damaged", asked))
    (event,) = answered(media)
    assert isinstance(event, ErrorEvent)
    assert "a file is damaged" in str(event.error)
    assert [file for (file,) in read] == [*asked[:2]]


def test_a_single_file_waits_for_one_of_a_request_with_many(files: Models, monkeypatch) -> None:
    media: Any = open_scheduler(files).media
    read, is_free = noted(monkeypatch, media, "_bitmap"), threading.Event()
    many = tuple(picture(number) for number in range(5))
    media._thread.submit(is_free.wait)
    media.ask(MediaQuestion("many", many))
    media.ask(MediaQuestion("one", (picture(9),)))
    is_free.set()
    answered(media)
    assert [file for (file,) in read] == [many[0], picture(9), *many[1:]]


def test_files_of_a_request_that_left_are_not_read_even_if_one_was(files: Models, monkeypatch):
    media: Any = open_scheduler(files).media
    has_begun, has_left, bitmap = threading.Event(), threading.Event(), media._bitmap

    def read(file: bytes) -> Any:
        has_begun.set()
        has_left.wait()
        return bitmap(file)

    monkeypatch.setattr(media, "_bitmap", read)
    media.ask(MediaQuestion("left", (picture(1), picture(2))))
    media.ask(MediaQuestion("stays", (picture(3), picture(4))))
    has_begun.wait()
    media.cancel("left")
    has_left.set()
    (event,) = answered(media)
    assert isinstance(event, ReplyEvent)
    assert (event.request_id, len(event.value)) == ("stays", 2)
    assert len(media._chunks) == 3


def test_no_file_is_kept_of_questions_that_were_given_up(files: Models) -> None:
    class File(bytearray):
        """One that may be watched."""

    media: Any = open_scheduler(files).media
    is_free = threading.Event()
    media._thread.submit(is_free.wait)  # another file is encoded all the time
    kept = []
    for name in "abc":
        file: Any = File(picture(1))
        kept.append(weakref.ref(file))
        media.ask(MediaQuestion(name, (file,), ""))
        del file
        media.cancel(name)
    assert [one() for one in kept] == [None] * 3
    assert not media.has_work
    is_free.set()
