"""A long answer does not hold up the page, and many answers do not fill its memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.page.support import Window, worker_that_writes
from tests.server.serving import serving

DRAFTS = ("Some words ", "that *somebody* drafted, ", "and some more.\n\n")
PARAGRAPH = [(draft, "suffix") for draft in DRAFTS] + ["own"]


def test_a_long_answer_streams_opens_and_scrolls_without_stutter(window: Window) -> None:
    with serving(worker_that_writes(*PARAGRAPH * 190)) as client:  # 10,000 tokens
        window.open(str(client.base_url))
        page = window.page
        with tasks(window) as of_streaming:
            window.ask("Go on")
            window.until("document.querySelectorAll('.assistant .block').length === 191")
            page.wait_for_timeout(500)
        whole = page.locator(".assistant .body > .text").text_content()
        assert len(window.kept()["provenance"]["tokens"]) > 10_000
        tinted = window.tinted()
        with tasks(window) as of_opening:
            window.reload()
            window.until("document.querySelectorAll('.assistant .block').length === 191")
            page.wait_for_timeout(500)
        assert page.locator(".assistant .body > .text").text_content() == whole
        assert window.tinted() == tinted
        at_end = (
            "(() => { const s = document.querySelector('#scroller'); "
            "return s.scrollHeight - s.scrollTop - s.clientHeight < 5 })()"
        )
        window.until(at_end)
        page.mouse.move(600, 400)
        with tasks(window) as of_scrolling:
            for distance in [-1500] * 20 + [1500] * 20:
                page.mouse.wheel(0, distance)
                page.wait_for_timeout(20)
        longest = {"streaming": of_streaming, "opening": of_opening, "scrolling": of_scrolling}
        assert {name: max(found) for name, found in longest.items() if max(found) >= 50} == {}


def test_memory_stays_flat_over_20_answers(window: Window) -> None:
    with serving(worker_that_writes(*PARAGRAPH * 10)) as client:
        window.open(str(client.base_url))
        devtools = window.page.context.new_cdp_session(window.page)

        def used() -> tuple[int, int]:
            devtools.send("HeapProfiler.collectGarbage")
            counted = devtools.send("Memory.getDOMCounters")
            heap = devtools.send("Runtime.getHeapUsage")["usedSize"]
            return heap, counted["nodes"]

        def answer_again() -> None:
            window.page.get_by_role("button", name="New conversation").click()
            window.ask("Go on")

        for _ in range(4):
            answer_again()
        heap, nodes = used()
        for _ in range(20):
            answer_again()
        heap_later, nodes_later = used()
        assert heap_later < heap + 500_000  # 20 answers that stay hold three times that
        assert nodes_later < nodes + 400


@contextmanager
def tasks(window: Window) -> Iterator[list[float]]:
    """Milliseconds that tasks of the page's main thread take of a processor meanwhile: those of a
    clock say as much of what else the machine does.
    """
    if window.is_throttled:
        pytest.skip("the limit is that of this processor")
    page = window.page
    found: list[float] = []
    browser = page.context.browser
    assert browser is not None
    browser.start_tracing(page=page, categories=["toplevel", "devtools.timeline"])
    try:
        yield found
    finally:
        events = json.loads(browser.stop_tracing())["traceEvents"]
    threads = {
        (event["pid"], event["tid"])
        for event in events
        if event.get("name") == "thread_name" and event["args"]["name"] == "CrRendererMain"
    }
    found += [
        event["tdur"] / 1000
        for event in events
        if event["name"] in ("RunTask", "ThreadControllerImpl::RunTask")
        and (event["pid"], event["tid"]) in threads
        and "tdur" in event
    ]
