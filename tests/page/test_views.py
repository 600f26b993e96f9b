"""Comparison, board, phone and accessibility, on the real server."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.page.support import Window, worker_that_writes
from tests.page.test_tint import RENAME
from tests.server.server_process import Server, until
from tests.server.serving import serving

AXE = Path(__file__).parent / "node_modules/axe-core/axe.min.js"


def test_a_comparison_says_equal_in_exact_mode(window: Window, server: Server) -> None:
    window.open(server.url, "compare")
    page = window.page
    page.fill("#compare-prompt", RENAME)
    page.get_by_role("button", name="Run both").click()
    page.locator(".verdict.equal").wait_for()
    verdict = page.locator(".verdict").inner_text()
    assert re.search(r"all \d+ tokens are equal", verdict)
    assert re.search(r"[\d.,]+ against [\d.,]+ tokens/s", verdict)
    texts = [side.inner_text() for side in page.locator(".side pre").all()]
    assert len(texts) == 2
    assert texts[0] == texts[1]
    second = page.locator(".side").nth(1)
    assert second.locator(".swatch").count() == 1  # nobody but the model


def test_texts_that_part_are_called_different_and_explained(window: Window) -> None:
    pieces = iter([("same", "one"), ("same", "two")])
    worker = worker_that_writes("")
    worker.script = lambda request: worker_that_writes(*next(pieces)).script(request)
    with serving(worker) as client:
        window.open(str(client.base_url), "compare")
        window.page.fill("#compare-prompt", "Go on")
        window.page.get_by_role("button", name="Run both").click()
        window.page.locator(".verdict.different").wait_for()
        verdict = window.page.locator(".verdict").inner_text()
        assert "The first 4 tokens are equal" in verdict
        assert "almost equally likely" in verdict
        modes = [request.speculative.mode for request in worker.requests]
        assert modes[0] is None
        assert modes[1] is not None
        assert worker.requests[0].sampling.seed == worker.requests[1].sampling.seed


def test_the_board_lives(window: Window, server: Server) -> None:
    window.open(server.url)
    window.ask(RENAME)
    page = window.page
    page.get_by_role("link", name="Board").click()
    figures = page.locator("#now .figure", has_text="drafts accepted").locator("dd")
    window.until("document.querySelectorAll('#now .figure').length > 4")
    assert re.fullmatch(r"\d+ %", figures.inner_text())
    assert page.locator("#slots tr").count() == 2
    assert page.locator("#costs li").count() > 3
    assert page.locator("#throughput svg").count() == 1
    assert "suffix" in page.locator("#speculators").inner_text()
    before = page.locator("#speculators").inner_text()
    speculators = page.locator("#speculators")
    headers = {"Content-Type": "application/json"}
    page.request.post(
        f"{server.url}/completion", data={"prompt": RENAME, "n_predict": 80}, headers=headers
    )
    until(lambda: speculators.inner_text() != before, "new counts")
    page.get_by_text("Settings in force").click()
    row = page.locator("#settings-in-force tr", has_text="exact")
    assert "flag" in row.inner_text()


def test_the_chart_is_full_when_the_board_is_opened(window: Window, server: Server) -> None:
    window.open(server.url)
    window.ask(RENAME)
    window.page.wait_for_timeout(5000)  # two of the states that the server keeps
    window.page.get_by_role("link", name="Board").click()
    line = window.page.locator("#throughput .speed")
    assert line.get_attribute("d").count("L") >= 2  # type: ignore[union-attr]


def test_an_outage_leaves_what_was_last_seen(window: Window) -> None:
    window.expected = ("Failed to load",)
    with serving() as client:
        window.open(str(client.base_url), "board")
        window.until("document.querySelectorAll('#slots tr').length > 0")
        before = window.page.locator("#board .cards").inner_text()
    note = window.page.locator("#board-note")
    note.get_by_text("The server does not answer; this is how it was at").wait_for()
    assert window.page.locator("#board .cards").inner_text() == before


@pytest.mark.parametrize("width", [320, 390])
def test_a_phone_shows_all_of_it_without_scrolling_sideways(
    window: Window, server: Server, width: int
) -> None:
    window.page.set_viewport_size({"width": width, "height": 780})
    window.open(server.url)
    window.ask(RENAME)
    page = window.page
    for view in ("Chat", "Compare", "Board"):
        page.get_by_role("link", name=view).click()
        page.wait_for_timeout(100)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, view
        section = page.locator(f"#{view.lower()}")
        assert section.evaluate("e => e.scrollWidth <= e.clientWidth"), view
    page.get_by_role("link", name="Chat").click()
    assert not page.locator("#sidebar").is_visible()
    page.get_by_role("button", name="Conversations").click()
    page.locator("#sidebar").wait_for()
    assert page.get_by_role("button", name="New conversation").is_visible()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_no_serious_fault(window: Window, server: Server, theme: str) -> None:
    if not AXE.exists():
        pytest.skip("axe-core is not installed: run make test-page")
    window.page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
    window.open(server.url)
    window.ask(RENAME)
    page = window.page
    page.get_by_role("button", name="Settings", exact=True).click()
    page.evaluate(AXE.read_text("utf-8"))
    for view in ("Chat", "Compare", "Board"):
        page.get_by_role("link", name=view).click()
        page.wait_for_timeout(600)
        found = page.evaluate("axe.run().then((result) => result.violations)")
        serious = [
            f"{one['id']}: {one['nodes'][0]['html'][:200]}"
            for one in found
            if one["impact"] in ("serious", "critical")
        ]
        assert serious == [], view
