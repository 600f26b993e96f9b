"""Answers go on: in another conversation, after a reload, when the server comes back."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.page.support import Window, expect, worker_that_writes, writes
from tests.page.test_speed import COUNT, TAKE
from tests.server.fake_worker import HOLD, FakeWorker
from tests.server.server_process import Server, until

from headstart.server import kept_streams

if TYPE_CHECKING:
    from playwright.sync_api import CDPSession, Page, Route


def without_end(route: Route) -> None:
    """Send a request on with `ignore_eos`."""
    route.continue_(post_data=json.dumps(route.request.post_data_json | {"ignore_eos": True}))


SMALL = ("--context", "512", "--threads", "1", "-np", "1", "-n", "16")
# a conversation of so many messages, in the browser's database
FILL = """async (count) => {
  const { saveConversation, saveMessages } = await import(new URL("js/store.js", location.href));
  const list = Array.from({ length: count }, (_, i) => ({
    id: `m${i}`, conversation: "c", parent: i ? `m${i - 1}` : null, created: i,
    role: i % 2 ? "assistant" : "user", content: `Message **${i}**\n\n- one\n- two`, state: "done",
  }));
  await saveConversation({ id: "c", title: "Long", updated: 1, leaf: `m${count - 1}`, system: "",
    settings: {}, running: null, queued: null });
  await saveMessages(...list);
}"""
# whether the newest conversation has four messages, and nothing is written any more
IS_ANSWERED = """(async () => {
  const { listConversations, loadMessages } = await import(new URL("js/store.js", location.href));
  const [{ id, running }] = await listConversations();
  return !running && (await loadMessages(id)).size >= 4;
})()"""
# from now on, the browser ends behind the transaction that next writes a conversation
END = """() => {
  const { put } = IDBObjectStore.prototype;
  let last = null;
  IDBObjectStore.prototype.put = function (value) {
    if (last && last !== this.transaction) return;
    if (this.name === "conversations") last = this.transaction;
    return put.call(this, value);
  };
}"""


def test_an_answer_goes_on_while_another_conversation_is_open(window: Window) -> None:
    worker = worker_that_writes("Half of it", hold=True)
    page = window.show(worker)
    window.ask("First question", wait=False).get_by_text("Half of it").wait_for()
    page.get_by_role("button", name="New conversation").click()
    page.locator("#welcome").wait_for()
    worker.script = writes("Something else")
    expect(window.ask("Second question")).to_contain_text("Something else")
    assert worker.cancelled.empty()
    page.get_by_role("button", name="First question", exact=True).click()
    running = page.locator(".message.assistant.running", has_text="Half of it")
    running.wait_for()
    page.get_by_role("button", name="Stop", exact=True).click()
    assert worker.cancelled.get(timeout=10)
    expect(window.answer()).to_contain_text("Stopped.")


def test_a_deleted_conversation_takes_its_running_answer_with_it(window: Window) -> None:
    worker = worker_that_writes("Half of it", hold=True)
    page = window.show(worker)
    window.ask("First question", wait=False).get_by_text("Half of it").wait_for()
    page.get_by_role("button", name="More on First question").click()
    page.get_by_role("menuitem", name="Delete").click()
    assert worker.cancelled.get(timeout=10)
    page.locator("#welcome").wait_for()
    window.reload()
    expect(page.locator("#conversations li")).to_have_count(0)


def test_what_is_sent_meanwhile_is_asked_when_the_answer_is_over(window: Window) -> None:
    worker = worker_that_writes("Done.", hold=True)
    page = window.show(worker)
    window.ask("First question", wait=False).get_by_text("Done.").wait_for()
    window.ask("Second question", wait=False)
    page.locator("#queued", has_text="Second question").wait_for()
    assert len(worker.requests) == 1
    other = page.context.new_page()  # follows the same answer
    other.goto(page.url)
    other.locator(".message.assistant.running", has_text="Done.").wait_for()
    other.locator("#queued", has_text="Second question").wait_for()
    worker.go_on()
    expect(other.locator(".message.running")).to_have_count(0)
    expect(other.locator("#queued")).to_be_hidden()
    window.until(IS_ANSWERED)
    page.reload()
    window.is_ready()
    page.locator(".message.user", has_text="Second question").wait_for()
    expect(page.locator(".message.user")).to_have_count(2)
    expect(page.locator(".count")).to_have_count(0)  # no other version of it
    assert len(worker.requests) == 2
    expect(window.answer()).to_contain_text("Done.")
    expect(page.locator("#queued")).to_be_hidden()
    assert b"Second question" in bytes(worker.requests[1].prompt)


def test_what_is_queued_comes_back_into_the_field_when_the_answer_is_stopped(window: Window):
    page = window.show(worker_that_writes("Half of it", hold=True))
    window.ask("First question", wait=False).get_by_text("Half of it").wait_for()
    window.ask("Second question", wait=False)
    page.locator("#queued", has_text="Second question").wait_for()
    page.keyboard.press("Escape")
    expect(page.locator("#prompt")).to_have_value("Second question")
    expect(page.locator("#queued")).to_be_hidden()


def test_a_server_that_comes_back_is_talked_to_again(window: Window, tmp_path: Path) -> None:
    window.expected = ("Failed to load", "404")
    page = window.page
    server = Server(SMALL, tmp_path)
    arguments = [*SMALL, "--port", server.url.rsplit(":", 1)[1]]
    window.open(server.url)
    window.ask("def f(")
    server.stop(signal.SIGKILL)
    page.fill("#prompt", "def g(")
    page.press("#prompt", "Enter")
    page.get_by_text("The server does not answer").wait_for()
    with Server(arguments, tmp_path):
        expect(page.locator("#status")).to_be_hidden()
        answer = window.answer()  # of what was asked while the server was away
        expect(answer.locator(".facts")).to_contain_text("tokens")
        expect(page.locator(".message")).to_have_count(4)


def test_a_server_that_is_killed_in_mid_answer_leaves_what_it_wrote(window: Window, tmp_path):
    window.expected = ("Failed to load", "404")
    page = window.page
    # a demo model stops soon and writes 400 tokens in a second; what is asked here has no end
    long = ("--context", "4096", *SMALL[2:-2], "-n", "-1", "--context-shift")
    page.route("**/v1/chat/completions", without_end)
    server = Server(long, tmp_path)
    window.open(server.url)
    answer = window.ask("def f(", wait=False)
    until(lambda: len(window.kept().get("content", "")) > 20, "its beginning is kept")
    server.stop(signal.SIGKILL)
    page.get_by_text("The server does not answer").wait_for()
    written = answer.locator(".body > .text").text_content() or ""
    assert written
    with Server([*long, "--port", server.url.rsplit(":", 1)[1]], tmp_path):
        answer.locator(".note", has_text="no longer has the rest of this answer").wait_for()
        kept = window.answer().locator(".body > .text").text_content() or ""
        assert kept.startswith(written[:20])
        page.get_by_role("button", name="Continue").click()
        again = window.answer(wait=False)
        until(lambda: len(again.text_content() or "") > len(written) + 20, "it goes on from there")
        page.get_by_role("button", name="Stop", exact=True).click()
        expect(window.answer()).to_contain_text("2 / 2")


def test_a_key_costs_no_more_in_a_long_conversation(window: Window) -> None:
    """By what the browser lays out and styles, how often it calls functions of our scripts, and
    the longest text that these make of values.
    """
    page = window.page
    page.add_init_script(COUNT)
    work: list[dict[str, int]] = []
    devtools = page.context.new_cdp_session(page)
    devtools.send("Profiler.enable")
    devtools.send("Profiler.startPreciseCoverage", {"callCount": True, "detailed": False})
    window.show(worker_that_writes("Hello"))
    for count in (10, 500):
        page.evaluate(FILL, count)
        page.reload()
        expect(page.locator(".message")).to_have_count(count)
        window.is_ready()
        page.locator("#prompt").focus()
        with work_of(page, devtools) as found:
            page.keyboard.type("Twenty characters or so")
        work.append(found)
    short, long = work
    assert short["calls"] > 20  # it was counted
    # what a key does to each message would be done 23 * 490 times
    assert all(long[name] < 2 * most + 5000 for name, most in short.items()), work


@contextmanager
def work_of(page: Page, devtools: CDPSession) -> Iterator[dict[str, int]]:
    """What the page does meanwhile."""
    found: dict[str, int] = {}
    browser = page.context.browser
    assert browser is not None
    page.evaluate(TAKE)
    browser.start_tracing(page=page, categories=["devtools.timeline"])
    devtools.send("Profiler.takePreciseCoverage")
    yield found
    coverage = devtools.send("Profiler.takePreciseCoverage")["result"]
    events = json.loads(browser.stop_tracing())["traceEvents"]
    found["calls"] = sum(
        function["ranges"][0]["count"]
        for script in coverage
        if "/js/" in script["url"]
        for function in script["functions"]
    )
    data = [event.get("args", {}) for event in events]
    found["objects to lay out"] = sum(
        one["beginData"]["dirtyObjects"]
        for one in data
        if "dirtyObjects" in one.get("beginData", {})
    )
    found["elements styled"] = sum(one.get("elementCount", 0) for one in data)
    found["text"] = page.evaluate(TAKE)["text"]


def test_an_answer_goes_on_while_the_page_is_loaded_again(window: Window) -> None:
    worker = worker_that_writes("Half of it", hold=True)
    page = window.show(worker)
    window.ask("Go on", wait=False).get_by_text("Half of it").wait_for()
    window.reload()
    page.locator(".message.assistant.running", has_text="Half of it").wait_for()
    assert worker.cancelled.empty()
    worker.go_on()
    # as it was seen then, or else as the server says; not the moment since the reload
    said = re.compile(r"10 tokens · \d+ ms · first after [1-9]\d+ ms")
    expect(window.answer().locator(".facts")).to_contain_text(said)
    assert len(worker.requests) == 1
    window.reload()
    expect(window.answer()).to_contain_text("Half of it")


def test_a_continued_answer_keeps_its_beginning_when_the_page_is_loaded_again(window: Window):
    worker = worker_that_writes("Part one. ", hold=True)
    page = window.show(worker)
    window.ask("Go on", wait=False).get_by_text("Part one.").wait_for()
    page.get_by_role("button", name="Stop", exact=True).click()
    worker.script = writes("Part two.", hold=True)
    page.get_by_role("button", name="Continue").click()
    page.locator(".running", has_text="Part one. Part two.").wait_for()
    window.reload()
    page.locator(".running", has_text="Part two.").wait_for()
    worker.go_on()
    expect(window.answer().locator(".body > .text")).to_have_text("Part one. Part two.")
    tokens = window.kept()["provenance"]["tokens"]
    assert "".join(token["piece"] for token in tokens) == "Part one. Part two."


@pytest.mark.parametrize("num_missed", [1, 100])
def test_an_answer_whose_beginning_the_server_dropped_goes_on_from_the_known_part(
    window: Window, monkeypatch: pytest.MonkeyPatch, num_missed: int
) -> None:
    """Where more than that is gone, it is said, and what is known stays."""
    window.expected = ("400",)
    monkeypatch.setattr(kept_streams, "KEPT_BYTES", 20_000)
    begun, missed = "Half of it. " * 20, "The rest. " * num_missed
    worker = FakeWorker(lambda one: [*writes(begun)(one)[:-1], HOLD, *writes(missed)(one)])
    page = window.show(worker)
    window.ask("Go on", wait=False)
    until(lambda: window.kept().get("content") == begun, "its beginning is kept")
    url = page.url
    page.goto("about:blank")
    if num_missed > 1:
        worker.go_on()
        until(lambda: not worker.is_busy, "it was written unseen")
    page.goto(url)
    window.is_ready()
    worker.go_on()
    answer = window.answer()
    text = begun + missed if num_missed == 1 else begun
    expect(answer.locator(".body > .text")).to_have_text(text.strip())
    if num_missed > 1:
        expect(answer.locator(".note")).to_contain_text("no longer has all that came after this")


def test_a_stream_without_an_end_is_not_taken_for_an_answer(window: Window) -> None:
    window.expected = ("404",)
    chunk = json.dumps({"choices": [{"index": 0, "delta": {"content": "Half of it"}}]})
    page = window.show()
    page.route("**/completions", lambda route: route.fulfill(body=f"data: {chunk}\n\n"))
    answer = window.ask("Go on")
    expect(answer).to_contain_text("Half of it")
    expect(answer.locator(".note")).to_contain_text("no longer has the rest of this answer")


def test_an_answer_that_the_server_does_not_know_yet_is_asked_for_again(window: Window) -> None:
    """A router passes a request on only once its model is loaded."""
    window.expected = ("404", "503")
    worker = FakeWorker(lambda request: [HOLD, *writes("All of it")(request)])
    refusals = iter([503, 404, 503, 404])

    def refuse(route: Route) -> None:
        status = next(refusals, None)
        route.continue_() if status is None else route.fulfill(status=status, json={})

    window.show(worker)
    window.ask("Go on", wait=False)
    worker.started.get(timeout=10)
    window.page.route("**/v1/stream?*", refuse)
    window.reload()
    worker.go_on()
    expect(window.answer()).to_contain_text("All of it")
    assert next(refusals, None) is None


def test_no_conversation_is_kept_without_the_answer_that_it_waits_for(window: Window) -> None:
    worker = FakeWorker(lambda request: [HOLD, *writes("All of it")(request)])
    page = window.show(worker)
    page.evaluate(END)
    window.ask("Go on", wait=False)
    worker.started.get(timeout=10)
    window.reload()
    worker.go_on()
    expect(page.locator(".message.user")).to_contain_text("Go on")
    expect(window.answer()).to_contain_text("All of it")


def test_an_answer_that_the_server_no_longer_has_is_kept_as_far_as_it_came(window: Window) -> None:
    window.expected = ("404",)
    worker = worker_that_writes("Half of it", hold=True)
    page = window.show(worker)
    window.ask("Go on", wait=False).get_by_text("Half of it").wait_for()
    until(lambda: window.kept()["content"] == "Half of it", "the beginning is kept")
    page.route("**/v1/stream?*", lambda route: route.fulfill(status=404, json={}))
    page.reload()
    page.locator(".note", has_text="no longer has the rest of this answer").wait_for()
    expect(window.answer()).to_contain_text("Half of it")
    expect(page.get_by_role("button", name="Continue")).to_be_visible()
