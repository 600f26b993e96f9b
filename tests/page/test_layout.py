"""Every width shows all of it; a keyboard is enough; the first screen is small."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from tests.page.support import Window, expect, worker_that_writes
from tests.server.fake_worker import REPORT, FakeWorker
from tests.server.serving import serving

from headstart.types.report import SpeculatorReport
from headstart.types.speculation_stats import SpeculationStats

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# pairs of controls of the header and the composer that lie over each other, or outside of it
COLLISIONS = """(selector) => {
  const shown = [...document.querySelectorAll(selector)].filter((e) => e.checkVisibility());
  const boxes = shown.map((e) => [e.id || e.className || e.textContent, e.getBoundingClientRect()]);
  const found = [];
  for (const [i, [name, box]] of boxes.entries()) {
    if (!box.width || box.left < 0 || box.right > innerWidth + 0.5) found.push(`${name} outside`);
    for (const [other, rival] of boxes.slice(i + 1))
      if (box.left < rival.right - 0.5 && rival.left < box.right - 0.5
          && box.top < rival.bottom - 0.5 && rival.top < box.bottom - 0.5)
        found.push(`${name} and ${other}`);
  }
  return found;
}"""
# charts whose bars are not all to be seen
CUT = """(charts) => charts.filter((e) => e.scrollWidth > e.clientWidth + 1
  || [...e.querySelectorAll(".label, .value")].some((one) => {
    const [inner, outer] = [one, e.closest(".card")].map((box) => box.getBoundingClientRect());
    return inner.left < outer.left || inner.right > outer.right;
  })).map((e) => e.ariaLabel)"""
WIDTHS = (320, 384, 800, 1280)
LONG = SpeculationStats(5, 4, Counter({(0, 128, 100): 3, (0, 5, 2): 90}))


@pytest.mark.parametrize("language", ["en", "de"])
def test_nothing_overlaps_and_nothing_is_missing(browser: Browser, language: str) -> None:
    """The bounding boxes of what stands side by side, at the widths of phones and desks."""
    worker = worker_that_writes("Some `words`.", ("More words.", "suffix"))
    worker.current_report = replace(
        REPORT,
        speculators=(SpeculatorReport(name="suffix", stats=LONG),),
        control={"cost_ms": {"rows": {str(n): 100.25 + n for n in (*range(1, 17), 64)}}},
    )
    context = browser.new_context(locale=language)
    window = Window(context.new_page(), 1)
    page = window.page
    with serving(worker) as client:
        window.open(str(client.base_url))
        window.ask("A question")
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 780})

            def stand_apart(*selectors: str, width: int = width) -> None:
                for selector in selectors:
                    assert page.evaluate(COLLISIONS, selector) == [], (selector, width)

            stand_apart(
                "#top > :not(nav, .tools), #top nav > *, #top button",
                "#composer .row > *",
                ".message:last-child footer .facts, .message:last-child .actions > *",
            )
            for name in ("drafts", "theme", "open-settings", "model", "context", "send"):
                expect(page.locator(f"#{name}")).to_be_visible()
            page.locator("#open-settings").click()
            stand_apart("#settings h2, #close-settings", "#settings :is(label, input, select, p)")
            page.locator("#close-settings").click()
            for view in ("compare", "board", "chat"):
                page.locator(f"#to-{view}").click()
                page.locator(f"#{view}").wait_for()
                assert page.evaluate("document.documentElement.scrollWidth") <= width, view
                section = page.locator(f"#{view}")
                assert section.evaluate("e => e.scrollWidth <= e.clientWidth"), view
                if view == "compare":
                    stand_apart("#compare h1, #compare-form :is(textarea, select, button)")
                if view == "board":
                    page.locator(".bars .label", has_text="128").first.wait_for()
                    stand_apart("#now .figure", "#costs span.value, #costs span.label")
                    for place in (3, 5):  # by position, by length
                        stand_apart(f".pair > :nth-child({place}) :is(.value, .label)")
                    assert page.locator(".bars").evaluate_all(CUT) == []
    context.close()
    assert window.troubles == []


@pytest.mark.parametrize("system", ["light", "dark"])
def test_each_click_on_the_theme_button_turns_it_over(window: Window, system: Any) -> None:
    page = window.page
    page.emulate_media(color_scheme=system)
    window.show()
    ground = "getComputedStyle(document.body).backgroundColor"
    seen = [page.evaluate(ground)]
    for _ in range(2):
        page.locator("#theme").click()
        seen.append(page.evaluate(ground))
    assert seen[0] != seen[1]
    assert seen[0] == seen[2]
    page.locator("#theme").click()
    window.reload()
    assert page.evaluate(ground) == seen[1]


def test_a_keyboard_is_enough(window: Window) -> None:
    page = window.page

    def tab_to(selector: str) -> None:
        for _ in range(60):
            page.keyboard.press("Tab")
            if page.evaluate(f"document.activeElement.matches('{selector}')"):
                return
        raise AssertionError(f"Tab never reached {selector}")

    window.show(worker_that_writes("Hello"))
    page.keyboard.type("By keyboard")  # the field has the focus from the start
    page.keyboard.press("Enter")
    expect(window.answer()).to_contain_text("Hello")
    page.locator("#open-settings").focus()
    page.keyboard.press("Enter")
    page.locator("#settings").wait_for()
    tab_to("#setting-temperature")
    page.keyboard.press("Escape")
    expect(page.locator("#settings")).to_be_hidden()
    expect(page.locator("#open-settings")).to_be_focused()
    page.locator("#new").focus()
    tab_to("#conversations .icon-button")
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")  # the first entry: rename
    page.keyboard.type("Renamed")
    page.keyboard.press("Enter")
    page.get_by_role("button", name="Renamed", exact=True).wait_for()
    page.locator("#to-compare").focus()
    page.keyboard.press("Enter")
    page.locator("#compare").wait_for()
    tab_to("#compare-prompt")
    page.keyboard.type("Again")
    tab_to("#compare-run")
    page.keyboard.press("Enter")
    page.locator(".verdict.equal").wait_for()
    page.locator("#to-board").focus()
    page.keyboard.press("Enter")
    page.locator("#board").wait_for()
    tab_to("#board .bars")
    page.wait_for_timeout(3000)  # it is drawn again, and the focus stays where it is
    assert page.evaluate("document.activeElement.matches('.bars')")
    page.locator("#to-chat").click()
    page.wait_for_timeout(200)


def test_scrolled_up_a_button_leads_to_the_end(window: Window) -> None:
    with serving(worker_that_writes("A line.\n\n" * 80)) as client:
        window.open(str(client.base_url))
        window.ask("Go on")
        page = window.page
        button = page.get_by_role("button", name="To the end")
        expect(button).to_be_hidden()
        page.mouse.move(600, 300)
        page.mouse.wheel(0, -2000)
        button.click()
        window.until(
            "(({scrollHeight, scrollTop, clientHeight}) => scrollHeight - scrollTop - clientHeight"
            " < 5)(document.querySelector('#scroller'))"
        )
        expect(button).to_be_hidden()


def test_the_first_screen_is_small(window: Window) -> None:
    """Bytes over the network until the page can be used, without what the API says."""
    page = window.page
    devtools = page.context.new_cdp_session(page)
    devtools.send("Network.enable")
    sizes: dict[str, float] = {}
    urls: dict[str, str] = {}
    devtools.on(
        "Network.responseReceived", lambda e: urls.update({e["requestId"]: e["response"]["url"]})
    )
    devtools.on(
        "Network.loadingFinished", lambda e: sizes.update({e["requestId"]: e["encodedDataLength"]})
    )
    window.show(FakeWorker())
    page.wait_for_timeout(200)
    total = sum(size for key, size in sizes.items() if key in urls)
    assert 20_000 < total < 100_000, (total, sorted(urls.values()))
