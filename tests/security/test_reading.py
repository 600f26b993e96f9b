"""Reading a body, a template, a text: refused by size first, stopped when nobody waits, and never
in the way of the event loop or the end of the server.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import threading
import time

import httpx2
import pytest
from tests.planted import noted, threads_of
from tests.server.fake_worker import INFO, FakeWorker, say
from tests.server.serving import error_of, served_model, serving

from headstart.config import ServerConfig
from headstart.server import completions, conversation, dialect
from headstart.server.app import create_app
from headstart.server.infill import infill_prompt
from headstart.server.schemas import InfillBody
from headstart.server.threads import Threads
from headstart.structures.interruption import progress, time_limit, watched
from headstart.testing import ByteVocab
from headstart.text.chat_template import ChatTemplate
from headstart.text.toolcalls.find import find_format
from headstart.types import FimTokens
from headstart.types.errors import CapacityError, ModelError
from headstart.types.request import TokenEvent, TokenLogprob

ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
CALLS_ITSELF = (
    "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(99) }}"
)
FOR_LONG_CHATS = "{{ messages[0].content }}{% if messages | length > 9 %}" + ENDLESS + "{% endif %}"
FOR_TOOLS_AND_CALLS = (
    "{% for m in messages %}{{ m.content }}{% if tools and tools | length > 1 and m.tool_calls %}"
    + ENDLESS
    + "{% endif %}{% endfor %}"
)


class SlowVocab(ByteVocab):
    """Tokenizes a part in 20 ms, as long as nobody stops it."""

    def __init__(self) -> None:
        self.num_parts = 0

    def tokenize(self, text, *, add_special, parse_special):
        for part in range(len(text) // 100):
            time.sleep(0.02)
            self.num_parts += 1
            progress(part)
        return super().tokenize(text, add_special=add_special, parse_special=parse_special)


def num_healthy_during(client, *work) -> int:
    """How often /health answers while `work` runs in threads."""
    threads = [threading.Thread(target=one) for one in work]
    for thread in threads:
        thread.start()
    count = 0
    while any(thread.is_alive() for thread in threads):
        assert client.get("/health").status_code == 200
        count += 1
    return count


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        ("/completion", {"prompt": "a" * 3_000_000}, "request (3000000 tokens)"),
        ("/completion", {"prompt": ["a"] * 255 + ["a" * 300_000]}, "300000 tokens"),
        ("/completion", {"prompt": [1, *["a"] * 90_000]}, "prompt holds 90001 texts and tokens"),
        ("/v1/completions", {"prompt": [1] * 1_000_000}, "request (1000000 tokens)"),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "a"}] * 24_000},
            "exceeds the available context size",
        ),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "a" * 2_000_000}]},
            "exceeds the available context size",
        ),
        ("/detokenize", {"tokens": [1] * 1_500_000}, "tokens holds 1500000 entries"),
        ("/detokenize", {"tokens": ["a"]}, "must be a whole number"),
        ("/completion", {"prompt": "a", "lora": [[]] * 400_001}, "lists and objects"),
        ("/completion", {"prompt": "a", "lora": [""] * 400_000}, "texts and keys"),
        ("/completion", {"prompt": "a"} | {f"k{i}": 1 for i in range(300)}, "fields but at most"),
    ],
)
def test_what_cannot_fit_is_refused_soon(client, path, body, says):
    data = json.dumps(body, separators=(",", ":")).encode()
    started = time.process_time()
    response = client.post(path, content=data)
    assert time.process_time() - started < 2
    assert response.status_code == 400
    assert says in response.json()["error"]["message"]


def test_health_answers_while_the_largest_bodies_are_parsed(client):
    bodies = [
        b'{"prompt":["a",' + b"[]," * 399_000 + b"[]]}",
        b'{"prompt":[' + b"1," * 2_000_000 + b"1]}",
        b'{"messages":[' + b'{"role":"user","content":"a"},' * 24_000 + b'{"role":"user"}]}',
    ]

    def post(body: bytes) -> None:
        with_messages = b"messages" in body
        path = "/v1/chat/completions" if with_messages else "/completion"
        assert client.post(path, content=body).status_code == 400

    jobs = [lambda body=body: post(body) for body in bodies]
    assert num_healthy_during(client, *jobs) > 2 * len(bodies)


def test_texts_that_nobody_waits_for_are_not_tokenized_on():
    vocab = SlowVocab()
    model = served_model(vocab=vocab)
    with serving(FakeWorker(), model=model) as client:
        for _ in range(6):
            with pytest.raises(Exception, match="timed out"):
                client.post("/tokenize", json={"content": "a" * 100_000}, timeout=0.2)
        assert client.post("/completion", json={"prompt": "a"}).status_code == 200
        done = -1
        while vocab.num_parts > done:
            done = vocab.num_parts
            time.sleep(0.3)
        assert done < 3000  # of six texts of a thousand parts


def test_the_end_of_the_server_does_not_wait_for_a_thread():
    hold, ended = threading.Event(), threading.Event()

    class Stuck(ByteVocab):
        def tokenize(self, text, *, add_special, parse_special):
            if len(text) > 5:
                hold.wait(60)
                ended.set()
            return super().tokenize(text, add_special=add_special, parse_special=parse_special)

    model = served_model(vocab=Stuck())
    try:
        with (
            serving(FakeWorker(), model=model) as client,
            pytest.raises(Exception, match="timed out"),
        ):
            client.post("/tokenize", json={"content": "stuck here"}, timeout=0.2)
        assert not ended.is_set()
        assert all(t.daemon for t in threading.enumerate() if t.name.startswith("headstart-texts"))
    finally:
        hold.set()


async def test_too_many_jobs_are_refused_and_abandoned_ones_not_begun():
    threads, hold, begun = Threads("test", 1, 2), threading.Event(), []
    first = asyncio.create_task(threads.run(lambda: hold.wait(10)))
    await asyncio.sleep(0.05)
    others = [asyncio.create_task(threads.run(lambda i=i: begun.append(i))) for i in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(CapacityError, match="try again later"):
        await threads.run(lambda: None)
    others[0].cancel()
    await asyncio.sleep(0)
    others.append(asyncio.create_task(threads.run(lambda: begun.append(2))))  # in its place
    await asyncio.sleep(0)
    hold.set()
    assert await first
    await asyncio.gather(*others[1:])
    assert begun == [1, 2]
    threads.close()


async def test_a_pool_outlives_a_time_in_which_no_thread_can_be_made(monkeypatch):
    def no_room(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    threads = Threads("test", 1, 6)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", no_room)
        for _ in range(3):
            with pytest.raises(CapacityError, match=r"can't start new thread.*try again later"):
                await threads.run(lambda: pytest.fail("it was refused"))
    assert await asyncio.wait_for(threads.run(lambda: "read"), 10) == "read"
    threads.close()


@pytest.mark.parametrize("source", [ENDLESS, CALLS_ITSELF])
def test_a_template_that_does_not_end_stops_the_start_with_a_message(monkeypatch, source):
    monkeypatch.setattr("headstart.text.chat_template.PROBE_SECONDS", 0.5)
    with pytest.raises(ModelError, match=r"does not finish within.*--chat-template-file"):
        ChatTemplate(source)


def test_a_template_that_loops_only_for_tools_and_calls_stops_the_start_with_a_message(monkeypatch):
    monkeypatch.setattr("headstart.text.chat_template.PROBE_SECONDS", 0.5)
    template = ChatTemplate(FOR_TOOLS_AND_CALLS)
    with pytest.raises(ModelError, match=r"does not finish within.*--chat-template-file"):
        find_format(template)


def test_a_template_that_loops_for_some_messages_is_that_request_s_error(monkeypatch):
    monkeypatch.setattr(conversation, "TEMPLATE_SECONDS", 0.5)
    with serving(FakeWorker(), model=served_model(FOR_LONG_CHATS)) as client:
        messages = [{"role": "user", "content": "a"}]
        chat = "/v1/chat/completions"
        assert client.post(chat, json={"messages": messages}).status_code == 200
        response = client.post(chat, json={"messages": messages * 10})
        assert "took longer than 0.5 s" in error_of(response, 400)
        assert client.post(chat, json={"messages": messages}).status_code == 200


@pytest.mark.parametrize(
    "source", ["{{ 9 ** 9 ** 9 }}", "{{ 'a' * 10 ** 10 }}", "{{ '%999999999d' % 1 }}"]
)
def test_one_operator_of_a_template_does_not_take_all_memory(source):
    started = time.process_time()
    ChatTemplate("{% if messages | length > 1 %}" + source + "{% endif %}{{ messages[0].content }}")
    assert time.process_time() - started < 5


def test_a_time_limit_counts_what_its_own_thread_computes():
    with time_limit(0.1, KeyError()):
        time.sleep(0.3)  # others may have the machine
        progress(0)
        with time_limit(5, ValueError()), pytest.raises(KeyError):  # noqa: PT012
            for part in itertools.count():
                progress(part)
    progress(0)


def test_whoever_watches_may_stop_the_work():
    seen: list[int] = []

    def watch(amount: int) -> None:
        seen.append(amount)
        if amount > 2:
            raise KeyError

    def work() -> None:
        with watched(watch):
            for part in range(10):
                progress(part)

    with pytest.raises(KeyError):
        work()
    progress(99)
    assert seen == [0, 1, 2, 3]


def test_infill_cuts_long_pieces_before_it_tokenizes_them():
    class Counting(ByteVocab):
        longest = 0

        def tokenize(self, text, *, add_special, parse_special):
            self.longest = max(self.longest, len(text))
            return super().tokenize(text, add_special=add_special, parse_special=parse_special)

    vocab = Counting()
    vocab.fim = FimTokens(prefix=1, suffix=2, middle=3, repository=4, file=5)
    long = "".join(chr(97 + i % 26) for i in range(1_000_000))
    fields = {"input_prefix": long, "input_suffix": long, "prompt": long}
    body = InfillBody.model_validate(fields | {"input_extra": [{"text": long}]})
    tokens = infill_prompt(body, vocab, INFO)
    assert len(tokens) <= INFO.context_size
    assert vocab.longest <= 32 * INFO.context_size
    before = tokens[tokens.index(1) + 1 : tokens.index(2)]
    assert long.encode().endswith(bytes(before[-20:]))


def test_infill_copies_each_of_many_files_a_few_times_not_once_for_each_behind_it():
    class Counted(list[int]):
        num_copied = 0

        def __add__(self, other):
            return self._count(list.__add__(self, other))

        def __radd__(self, other):
            return self._count(list.__add__(other, self))

        def _count(self, joined):
            Counted.num_copied += len(joined)
            return Counted(joined)

    class Counting(ByteVocab):
        fim = FimTokens(prefix=1, suffix=2, middle=3, repository=4, file=5)

        def tokenize(self, text, *, add_special, parse_special):
            options = {"add_special": add_special, "parse_special": parse_special}
            return Counted(super().tokenize(text, **options))

    files = [{"text": chr(97 + i % 26), "filename": "f"} for i in range(400)]
    body = InfillBody.model_validate({"input_prefix": "", "input_suffix": "", "input_extra": files})
    info = dataclasses.replace(INFO, context_size=4096)
    tokens = infill_prompt(body, Counting(), info)
    assert tokens.count(5) == len(files) + 1
    assert Counted.num_copied < 4 * len(tokens)


@pytest.mark.parametrize("path", ["/api/chat", "/v1/messages"])
def test_a_long_body_waits_for_threads_to_be_parsed_read_as_a_chat_and_as_a_prompt(
    monkeypatch, path
):
    messages = [{"role": "user", "content": "a"}]
    with serving(FakeWorker()) as client:
        jobs = noted(monkeypatch, Threads, "run")
        body = {"messages": messages, "max_tokens": 9, "stream": False, "unknown": "x" * 70_000}
        assert client.post(path, json=body).status_code == 200
    assert len(jobs) == 3


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("has_alternatives", [True, False])
def test_answers_of_very_many_parts_are_written_off_the_event_loop(
    stream: bool, has_alternatives: bool, monkeypatch
):
    def script(request):
        events = say(request, b"a")
        packed = TokenLogprob.pack(list(range(3000)), [-1.0] * 3000)
        if has_alternatives:
            assert isinstance(events[0], TokenEvent)
            events[0].logprobs = (TokenLogprob(97, -0.5, packed),)
        return events

    module, name = (
        (dialect, "token_probabilities") if has_alternatives else (completions, "native_answer")
    )
    threads = threads_of(monkeypatch, module, name)
    bias = {} if has_alternatives else {str(i): 1 for i in range(200)}
    body = {"prompt": ["a"] * (1 if has_alternatives else 64), "n_probs": 2, "logit_bias": bias}
    with serving(FakeWorker(script)) as client:
        answer = client.post("/completion", json={**body, "stream": stream}, timeout=60)
    assert answer.status_code == 200
    assert threads
    assert all("answers" in one for one in threads)


def test_errors_are_answered_on_the_event_loop_not_by_one_of_many_threads(client, monkeypatch):
    monkeypatch.setattr("starlette._exception_handler.run_in_threadpool", None)
    assert client.get("/nowhere").status_code == 404
    assert client.put("/completion").status_code == 405
    assert client.post("/completion", content=b"{").status_code == 400


async def test_long_jobs_of_one_tenant_hold_up_no_other_tenant():
    threads, hold = Threads("test", 2, 6), threading.Event()
    long = [asyncio.create_task(threads.run(lambda: hold.wait(10), "a")) for _ in range(8)]
    await asyncio.sleep(0)
    with pytest.raises(CapacityError):
        await threads.run(hold.set, "a")
    assert await threads.run(lambda: "b", "b") == "b"  # while those of "a" run and wait
    hold.set()
    assert await asyncio.gather(*long) == [True] * 8
    threads.close()


async def test_what_is_read_when_the_server_stops_ends_with_an_error_that_says_so():
    threads, begun = Threads("test", 1, 6), threading.Event()

    def read_on():
        begun.set()
        for part in itertools.count():
            time.sleep(0.001)
            progress(part)

    jobs = [asyncio.create_task(threads.run(read_on)) for _ in range(3)]
    await asyncio.to_thread(begun.wait)
    threads.close()
    async with asyncio.timeout(30):
        done = await asyncio.gather(*jobs, return_exceptions=True)
    assert [type(one) for one in done] == [CapacityError] * 3
    assert {str(one) for one in done} == {"the server is shutting down"}


@pytest.mark.parametrize("fields", [{}, {"stream": True}])
async def test_a_client_whose_prompt_is_read_when_the_server_stops_is_told(fields):
    vocab = SlowVocab()
    model = served_model(vocab=vocab)
    worker = FakeWorker()
    worker.info_when_ready = dataclasses.replace(INFO, context_size=10**6)
    app = create_app(ServerConfig(), worker, lambda: model, print)
    transport = httpx2.ASGITransport(app=app)
    async with (
        asyncio.timeout(60),
        app.router.lifespan_context(app),
        httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client,
    ):
        while (await client.get("/health")).status_code != 200:
            await asyncio.sleep(0.01)
        body = {"prompt": "a" * 200_000} | fields
        headers = {"x-conversation-id": "talk"} if fields else {}
        asked = asyncio.create_task(client.post("/completion", json=body, headers=headers))
        while not vocab.num_parts:
            await asyncio.sleep(0.01)
        await app.state.service.close()
        assert "shutting down" in error_of(await asked, 503, "unavailable_error")
