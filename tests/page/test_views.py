"""Comparison, board, phone and accessibility, on the real server."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import httpx2
import pytest
from tests.page.support import Window, expect, worker_that_writes
from tests.page.test_tint import RENAME
from tests.server.fake_worker import REPORT, FakeWorker
from tests.server.server_process import Server, until
from tests.server.serving import serving

from headstart.types.report import Counters, DiskReport

if TYPE_CHECKING:
    from playwright.sync_api import Locator

# the first line of the chart, before later states of the server lengthen it
REMEMBER_FIRST_LINE = """() => new MutationObserver(() => {
  globalThis.firstLine ||= document.querySelector("#throughput .speed")?.getAttribute("d");
}).observe(document, { subtree: true, childList: true, attributes: true })"""
AXE = Path(__file__).parent / "node_modules/axe-core/axe.min.js"


def test_a_comparison_says_equal_in_exact_mode(window: Window, server: Server) -> None:
    window.open(server.url, "compare")
    window.draft_always()
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
    expect(second.locator("div > .legend .swatch")).to_have_count(1)  # nobody but the model
    page.wait_for_timeout(300)  # no frame that was asked for comes later and takes it away
    drafters = re.compile("suffix|draft-model")
    expect(page.locator(".side").first.locator("div > .legend")).to_contain_text(drafters)


def test_what_a_speculator_alone_would_have_given_is_what_a_comparison_with_it_alone_gave(
    window: Window, server: Server
) -> None:
    window.open(server.url)
    page = window.page
    page.get_by_role("button", name="Settings", exact=True).click()
    page.get_by_label("Mode", exact=True).select_option("fixed")
    page.get_by_role("textbox", name="Speculators").fill("suffix")
    page.locator("#close-settings").click()
    page.get_by_role("link", name="Compare").click()
    page.fill("#compare-prompt", RENAME)
    page.get_by_role("button", name="Run both").click()
    page.locator(".verdict.equal").wait_for()
    drafted, baseline = (page.locator(".side").nth(i) for i in (0, 1))
    for side in (drafted, baseline):
        side.locator(".facts summary").click()

    def of(side: Locator, label: str) -> float:
        text = side.locator(".facts dl > div", has_text=label).locator("dd").inner_text()
        found = re.search(r"\d+\.\d", text)
        assert found, text
        return float(found[0])

    assert of(drafted, "Tokens per step") > 1.5
    assert of(drafted, "Alone, per step") == pytest.approx(of(drafted, "Tokens per step"), abs=0.15)
    assert of(baseline, "Tokens per step") == 1.0


def test_texts_that_part_are_called_different_and_explained(window: Window) -> None:
    pieces = iter([("same", "one"), ("same", "two")])
    worker = worker_that_writes("")
    worker.script = lambda request: worker_that_writes(*next(pieces)).script(request)
    window.show(worker, view="compare")
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


def test_the_board_tells_how_many_prompts_are_kept_where(window: Window) -> None:
    worker, counters = FakeWorker(), Counters(prompts_restored=7)
    worker.current_report = replace(
        REPORT, counters=counters, prompts_in_memory=2, prompt_bytes_in_memory=3 << 20
    )
    kept = window.show(worker, view="board").locator("#kept-prompts")
    expect(kept).to_have_text("Other prompts in main memory: 2 (3.0 MiB), used again: 7.")
    disk = DiskReport(folder="/prompts", num_prompts=12, num_bytes=5 << 30, num_restored=4)
    worker.current_report = replace(worker.current_report, disk=disk)
    expect(kept).to_contain_text("On the disk: 12 (5.0 GiB), used again: 4.")


def test_the_chart_is_full_when_the_board_is_opened(window: Window, server: Server) -> None:
    window.open(server.url)
    window.ask(RENAME)

    def num_kept() -> int:
        with httpx2.stream("GET", f"{server.url}/events", trust_env=False) as events:
            first = next(line for line in events.iter_lines() if line.startswith("data: "))
        return len(json.loads(first.removeprefix("data: "))["history"])

    until(lambda: num_kept() >= 3, "the server keeps three states")
    window.page.evaluate(REMEMBER_FIRST_LINE)
    window.page.get_by_role("link", name="Board").click()
    window.until("globalThis.firstLine")
    assert re.search("L.*L", window.page.evaluate("globalThis.firstLine"))


def test_a_board_that_nobody_sees_asks_for_nothing(window: Window) -> None:
    page = window.show(view="board")
    asked: list[str] = []
    page.on("request", lambda one: asked.append(one.url.rsplit("/", 1)[-1]))
    ended: list[str] = []
    page.on("requestfailed", lambda one: ended.append(one.url.rsplit("/", 1)[-1]))
    hide = "(isHidden) => { Object.defineProperty(document, 'hidden', { value: isHidden,"
    hide += " configurable: true }); document.dispatchEvent(new Event('visibilitychange')) }"
    expect(page.locator("#slots tr").first).to_be_visible()

    def until_seen(events: list[str], what: str) -> None:
        until(lambda: page.evaluate("true") and events[-1:] == ["events"], what)
        events.clear()

    page.evaluate(hide, True)
    until_seen(ended, "a hidden tab ends its stream")
    page.evaluate(hide, False)
    until_seen(asked, "it listens again when it is seen")
    page.get_by_role("link", name="Chat").click()
    until_seen(ended, "another view ends it too")
    page.evaluate(hide, True)
    page.evaluate(hide, False)
    page.wait_for_timeout(300)
    assert "events" not in asked


def test_an_outage_leaves_what_was_last_seen(window: Window) -> None:
    window.expected = ("Failed to load",)
    with serving() as client:
        window.open(str(client.base_url), "board")
        expect(window.page.locator("#slots tr").first).to_be_visible()
        before = words_of_cards(window)
    note = window.page.locator("#board-note")
    expect(note).to_contain_text("The server does not answer; this is how it was at")
    assert words_of_cards(window) == before


def words_of_cards(window: Window) -> str:
    """Without numbers: the server's age grows until it stops."""
    return re.sub(r"\d+", "", window.page.locator("#board .cards").inner_text())


def test_a_phone_shows_the_conversations_on_request(window: Window) -> None:
    page = window.page
    page.set_viewport_size({"width": 320, "height": 780})
    window.show()
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
