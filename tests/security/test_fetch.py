"""What the server fetches for a client: public addresses only, within limits."""

from __future__ import annotations

import asyncio
import json
import queue
import threading
import tracemalloc
from base64 import b64decode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2
import pytest
from tests.security.test_connections import connected, post, push
from tests.server.fake_worker import INFO, FakeWorker, hello
from tests.server.serving import serving

from headstart.config import ServerConfig
from headstart.server import media
from headstart.server.media import _file_of, fetch, public_address, read_media
from headstart.server.media_files import MOST_BYTES, safe_file
from headstart.server.service import Service
from headstart.structures.tenants import Caller
from headstart.types.errors import RequestError
from headstart.types.media import MediaQuestion
from headstart.types.request import ReplyEvent


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        where = {"/away": "/file", "/inside": "http://10.0.0.1/", "/loop": "/loop"}.get(self.path)
        found = {"/file": b"x" * 100, "/large": b"x" * 5000, "/half": bytes(600_000)}.get(self.path)
        self.send_response(302 if where else 200 if found else 404)
        if where:
            self.send_header("location", where)
        self.end_headers()
        self.wfile.write(found or b"")

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is logged."""


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """It is found as if it had a public address; others are looked at."""

    async def found(host: str, port: int) -> str:
        return "127.0.0.1" if host == "images.example" else await public_address(host, port)

    monkeypatch.setattr(media, "public_address", found)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"http://images.example:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_a_file_is_fetched_also_behind_a_redirect(site: str) -> None:
    for path in ("/file", "/away"):
        assert asyncio.run(fetch(site + path, 100)) == b"x" * 100


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("/large", "more than 100 bytes"),
        ("/none", "status 404"),
        ("/inside", "no public address"),
        ("/loop", "status 302"),
    ],
)
def test_what_is_too_large_or_leads_inside_is_refused(site: str, path: str, says: str) -> None:
    with pytest.raises(RequestError, match=says):
        asyncio.run(fetch(site + path, 100))


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/", "http://localhost/", "http://[::1]/", "http://10.1.2.3/",
        "http://192.168.0.1/", "http://169.254.169.254/latest", "http://[::ffff:10.0.0.1]/",
        "http://0.0.0.0/", "http://user:word@example.org/", "http://example.org:x/", "http:///",
        "https://2130706433/",
    ],
)  # fmt: skip
def test_addresses_inside_are_refused(url: str) -> None:
    with pytest.raises(RequestError):
        asyncio.run(fetch(url, 100))


def test_no_more_of_a_local_file_is_read_than_may_be_used(tmp_path: Path) -> None:
    with (tmp_path / "film").open("wb") as file:
        file.truncate(10 * MOST_BYTES)
    held = _file_of("file://film", ServerConfig(media_path=str(tmp_path)))
    assert len(held) == MOST_BYTES + 1
    with pytest.raises(RequestError, match=f"but at most {MOST_BYTES} are taken"):
        safe_file(held)


def test_wrapped_base64_takes_as_much_memory_as_a_few_copies_of_it() -> None:
    """A piece for each word took 25 times as much."""
    data = "ab " * 100_000
    tracemalloc.start()
    assert len(_file_of(data, ServerConfig())) == 150_000
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 4 * len(data)


def request_of(tenant: str, service: Service) -> Any:
    """As much of a request as `read_media` looks at; its client stays."""
    state = SimpleNamespace(service=service)
    app = SimpleNamespace(state=state)
    return SimpleNamespace(
        app=app,
        scope={"headstart.caller": Caller(tenant), "app": app},
        receive=asyncio.Event().wait,
    )


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Service:
    """One that fetches images for a model that reads them; none is looked at."""
    monkeypatch.setattr(media, "safe_file", lambda data: ("image", data))
    monkeypatch.setattr(media, "single_event", lambda *_: asyncio.sleep(0, (((1, 2),),)))
    monkeypatch.setattr(Service, "info", property(lambda _: SimpleNamespace(modalities=("image",))))
    return Service(config=ServerConfig(image_urls=True, max_body_mb=1), worker=FakeWorker())


def test_slow_sites_of_one_tenant_keep_no_other_tenants_images_waiting(service, monkeypatch):
    async def play() -> None:
        begun, is_over = [], asyncio.Event()

        async def found(url: str, most_bytes: int) -> bytes:
            begun.append(url)
            if "slow" in url:
                await is_over.wait()
            return b"x"

        monkeypatch.setattr(media, "fetch", found)
        asked = ([("image", f"http://slow/{number}")] for number in range(9))
        slow = [asyncio.create_task(read_media(request_of("a", service), one)) for one in asked]
        await asyncio.sleep(0)
        other = read_media(request_of("b", service), [("image", "http://fast/")])
        assert await asyncio.wait_for(other, 60) == (((1, 2),),)
        assert len(begun) == 4 + 1
        is_over.set()
        await asyncio.gather(*slow)

    asyncio.run(play())


def test_files_of_a_request_are_together_no_larger_than_a_body_may_be(service, monkeypatch) -> None:
    limits = []

    async def found(url: str, most_bytes: int) -> bytes:
        limits.append(most_bytes)
        return bytes(min(most_bytes, 700_000))

    monkeypatch.setattr(media, "fetch", found)
    asked = [("image", f"http://site/{number}") for number in range(3)]
    asyncio.run(read_media(request_of("a", service), asked))
    assert limits == [1 << 20, (1 << 20) - 700_000, 0]


def test_a_file_that_does_not_fit_beside_the_others_is_refused_by_the_limit_of_all(service, site):
    asked = [("image", f"{site}/half")] * 2
    with pytest.raises(RequestError, match=r"bytes, which are left of the .* --max-body-mb"):
        asyncio.run(read_media(request_of("a", service), asked))


Reading = tuple["queue.Queue[bytes]", threading.Event]
"""Files that are read, and the event without which none comes to its end."""


@pytest.fixture
def reading(monkeypatch: pytest.MonkeyPatch) -> Iterator[Reading]:
    files, go_on = queue.Queue[bytes](), threading.Event()

    def read(data: bytes) -> tuple[str, bytes]:
        files.put(data)
        assert go_on.wait(60)
        return "image", data

    monkeypatch.setattr(media, "safe_file", read)
    yield files, go_on
    go_on.set()


def answer_or_parts(request: Any) -> list[Any]:
    if isinstance(request, MediaQuestion):
        return [ReplyEvent(request.request_id, (((1, 2),),) * len(request.files))]
    return hello(request)


@contextmanager
def serving_images() -> Iterator[httpx2.Client]:
    worker = FakeWorker(answer_or_parts)
    worker.info_when_ready = replace(INFO, modalities=("image",))
    with serving(worker) as client:
        yield client


def about(*images: str) -> dict[str, Any]:
    urls = [f"data:image/png;base64,{image}" for image in images]
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return {"messages": [{"role": "user", "content": parts}]}


def ask_about(client: httpx2.Client, image: str) -> int:
    return client.post("/v1/chat/completions", json=about(image), timeout=60).status_code


def test_texts_are_answered_while_the_images_of_many_requests_are_read(reading: Reading) -> None:
    files, go_on = reading
    with serving_images() as client, ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(ask_about, client, "aaaa") for _ in range(8)]
        for _ in range(2):
            files.get(timeout=60)
        try:
            for _ in range(8):
                assert client.post("/completion", json={"prompt": "a"}, timeout=30).is_success
        finally:
            go_on.set()
        assert [one.result() for one in asked] == [200] * 8


def test_of_the_images_of_clients_that_left_no_more_are_read(reading: Reading) -> None:
    files, go_on = reading
    with serving_images() as client:
        with ExitStack() as leaving:
            for number in range(9):  # those behind four wait for their turn
                body = json.dumps(about(*["aaaa"] * 9)).encode()
                push(leaving.enter_context(connected(client)), post(body, "/chat/completions"))
                if number < 2:
                    files.get(timeout=60)
            assert client.get("/health").is_success
        for _ in range(5):
            assert client.get("/health").is_success
        go_on.set()
        assert ask_about(client, "bbbb") == 200
        assert files.get(timeout=60) == b64decode("bbbb")
