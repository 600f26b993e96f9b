"""Comparison, board, phone and accessibility, on the real server."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.page.support import Window, expect, worker_that_writes
from tests.page.test_tint import RENAME
from tests.server.server_process import Server
from tests.server.serving import serving

AXE = Path(__file__).parent / "node_modules/axe-core/axe.min.js"


def test_a_comparison_says_equal_in_exact_mode(window: Window, server: Server) -> None:
    window.open(server.url, "compare")
    page = window.page
    page.fill("#compare-prompt", RENAME)
    page.get_by_role("button", name="Run both").click()
    page.locator(".verdict.equal").wait_for()
    verdict = page.locator(".verdict")
    expect(verdict).to_contain_text(re.compile(r"all \d+ tokens are equal"))
    expect(verdict).to_contain_text(re.compile(r"[\d.,]+ against [\d.,]+ tokens/s"))
    texts = page.locator(".side pre")
    expect(texts).to_have_count(2)
    assert len(set(texts.all_inner_texts())) == 1
    second = page.locator(".side").nth(1)
    expect(second.locator(".swatch")).to_have_count(1)  # nobody but the model


def test_texts_that_part_are_called_different_and_explained(window: Window) -> None:
    pieces = iter([("same", "one"), ("same", "two")])
    worker = worker_that_writes("")
    worker.script = lambda request: worker_that_writes(*next(pieces)).script(request)
    with serving(worker) as client:
        window.open(str(client.base_url), "compare")
        window.page.fill("#compare-prompt", "Go on")
        window.page.get_by_role("button", name="Run both").click()
        verdict = window.page.locator(".verdict.different")
        expect(verdict).to_contain_text("The first 4 tokens are equal")
        expect(verdict).to_contain_text("almost equally likely")
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
    expect(figures).to_have_text(re.compile(r"^\d+\s%$"))
    expect(page.locator("#slots tr")).to_have_count(2)
    expect(page.locator("#costs li").nth(3)).to_be_visible()
    expect(page.locator("#throughput svg")).to_have_count(1)
    ends = "lists => lists.map(one => new Set([...one.querySelectorAll('.bar')].map(bar =>"
    ends += " Math.round(bar.getBoundingClientRect().bottom))).size)"
    assert set(page.locator(".bars").evaluate_all(ends)) == {1}  # bars stand on one line
    speculators = page.locator("#speculators")
    expect(speculators).to_contain_text("suffix")
    before = speculators.inner_text()
    headers = {"Content-Type": "application/json"}
    page.request.post(
        f"{server.url}/completion", data={"prompt": RENAME, "n_predict": 80}, headers=headers
    )
    expect(speculators).not_to_have_text(before, use_inner_text=True)
    page.get_by_text("Settings in force").click()
    row = page.locator("#settings-in-force tr", has_text="exact")
    expect(row).to_contain_text("flag")


def test_the_chart_is_full_when_the_board_is_opened(window: Window, server: Server) -> None:
    window.open(server.url)
    window.ask(RENAME)
    window.page.wait_for_timeout(5000)  # two of the states that the server keeps
    window.page.get_by_role("link", name="Board").click()
    line = window.page.locator("#throughput .speed")
    expect(line).to_have_attribute("d", re.compile("L.*L"))


def test_an_outage_leaves_what_was_last_seen(window: Window) -> None:
    window.expected = ("Failed to load",)
    with serving() as client:
        window.open(str(client.base_url), "board")
        expect(window.page.locator("#slots tr").first).to_be_visible()
        before = window.page.locator("#board .cards").inner_text()
    note = window.page.locator("#board-note")
    expect(note).to_contain_text("The server does not answer; this is how it was at")
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
        expect(page.locator(f"#{view.lower()}")).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= width, view
        section = page.locator(f"#{view.lower()}")
        assert section.evaluate("e => e.scrollWidth <= e.clientWidth"), view
    page.get_by_role("link", name="Chat").click()
    expect(page.locator("#sidebar")).to_be_hidden()
    page.get_by_role("button", name="Conversations").click()
    expect(page.get_by_role("button", name="New conversation")).to_be_visible()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_no_serious_fault(window: Window, server: Server, theme: str) -> None:
    if not AXE.exists():
        pytest.skip("axe-core is not installed: run make test-page")
    window.page.emulate_media(color_scheme="dark" if theme == "dark" else "light")
    window.open(server.url)
    window.ask(RENAME)
    page = window.page
    page.get_by_role("button", name="Settings", exact=True).click()
    for view in ("Chat", "Compare", "Board"):
        page.get_by_role("link", name=view).click()
        expect(page.locator(f"#{view.lower()}")).to_be_visible()
        page.wait_for_timeout(600)
        assert serious_faults(window) == [], view
    page.goto(f"{server.url}/docs")
    window.is_ready()
    page.locator("#paths summary").first.click()
    assert serious_faults(window) == []


def serious_faults(window: Window) -> list[str]:
    """What axe-core finds on the page as it is shown now."""
    window.page.evaluate(AXE.read_text("utf-8"))
    found = window.page.evaluate("axe.run().then((result) => result.violations)")
    return [
        f"{one['id']}: {one['nodes'][0]['html'][:200]}"
        for one in found
        if one["impact"] in ("serious", "critical")
    ]
