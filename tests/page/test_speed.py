"""A long answer does not hold up the page, and many answers do not fill its memory.

Work is counted, not timed: a clock says as much of what else the machine does.
"""

from __future__ import annotations

import json

from tests.page.support import Window, worker_that_writes
from tests.server.serving import serving

DRAFTS = ("Some words ", "that *somebody* drafted, ", "and some more.\n\n")
PARAGRAPH = [(draft, "suffix") for draft in DRAFTS] + ["own"]
# what the page does at once: nodes put into the thread, ranges marked or unmarked, and the longest
# text that was made of values; `touched` has the largest of each since it was last looked at
COUNT = """globalThis.touched = { nodes: 0, ranges: 0, text: 0 };
let ranges = 0;
const note = (name, count) => { touched[name] = Math.max(touched[name], count); };
const every = (root) => root.nodeType === 1 ? [root, ...root.querySelectorAll("*")] : [root];
for (const name of ["add", "delete"]) {
  const act = Highlight.prototype[name];
  Highlight.prototype[name] = function (range) { ranges++; return act.call(this, range); };
}
const { stringify } = JSON;
JSON.stringify = (...values) => {
  const text = stringify(...values);
  note("text", text.length);
  return text;
};
new MutationObserver((records) => {
  const inside = records.filter((one) => one.target.closest?.("#thread"));
  note("nodes", inside.flatMap((one) => [...one.addedNodes].flatMap(every)).length);
  note("ranges", ranges);
  ranges = 0;
}).observe(document, { subtree: true, childList: true, characterData: true });"""
TAKE = """() => {
  const { nodes, ranges, text } = touched;
  Object.assign(touched, { nodes: 0, ranges: 0, text: 0 });
  return { nodes, ranges, text };
}"""
WHOLE = """() => ({
  nodes: document.querySelectorAll(".assistant .text *").length,
  ranges: [...CSS.highlights.values()].reduce((sum, one) => sum + one.size, 0),
})"""
LAID_OUT = """[...document.querySelectorAll(".assistant .block > *")].filter(
  (one) => one.checkVisibility({ contentVisibilityAuto: true })).length"""


def test_a_long_answer_streams_opens_and_scrolls_in_small_pieces(window: Window) -> None:
    page = window.page
    page.add_init_script(COUNT)
    with serving(worker_that_writes(*PARAGRAPH * 190)) as client:  # 10,000 tokens
        window.open(str(client.base_url))
        window.ask("Go on")
        window.until("document.querySelectorAll('.assistant .block').length === 191")
        of_streaming = page.evaluate(TAKE)
        text = page.locator(".assistant .body > .text").text_content()
        provenance = window.kept()["provenance"]
        assert len(provenance["tokens"]) > 10_000
        tinted = window.tinted()
        whole = page.evaluate(WHOLE) | {"text": len(json.dumps(provenance))}
        assert whole["nodes"] > 500
        assert whole["ranges"] > 500
        window.reload()
        window.until("document.querySelectorAll('.assistant .block').length === 191")
        assert window.tinted() == tinted  # and it is shown whole
        of_opening = page.evaluate(TAKE)
        assert page.locator(".assistant .body > .text").text_content() == text
        window.until(
            "(() => { const s = document.querySelector('#scroller'); "
            "return s.scrollHeight - s.scrollTop - s.clientHeight < 5 })()"
        )
        for done in (of_streaming, of_opening):
            shares = {name: done[name] / count for name, count in whole.items()}
            assert max(shares.values()) < 0.5, shares
        page.mouse.move(600, 400)
        for distance in [-1500] * 10 + [1500] * 10:
            page.mouse.wheel(0, distance)
            assert page.evaluate(LAID_OUT) < 191 / 2
        assert page.evaluate(TAKE)["nodes"] == 0


def test_memory_stays_flat_over_20_answers(window: Window) -> None:
    window.show(worker_that_writes(*PARAGRAPH * 10))
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
