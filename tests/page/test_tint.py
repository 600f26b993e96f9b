"""Who drafted it: what is marked is what provenance says, and the draft can be looked at."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from tests.page.support import Window, expect, worker_that_writes
from tests.server.fake_worker import INFO
from tests.server.server_process import Server

PIECES = (
    "The **model** wrote ",
    ("this *part*", "suffix"),
    " and `then` ",
    ("that &amp; that", "draft-model"),
    ".\n\n```python\n",
    ("def f(x):\n    return", "suffix"),
    " x\n```\n\n",
    ("- one\n- two", "draft-model"),
)
RENAME = (
    "Rename `data` to `buffer`:\n```python\ndef write(self, data):\n    self.file.write(data)\n"
    "    self.size += len(data)\n    return len(data)\n```"
)


def test_tinted_text_is_what_each_speculator_drafted(window: Window) -> None:
    worker = worker_that_writes(*PIECES)
    own = {**INFO.speculation, "types": ["draft-model"]}  # the server's have the first styles
    worker.info_when_ready = replace(INFO, speculation=own)
    window.show(worker)
    window.ask("Go on")
    tinted = window.tinted()
    assert tinted["draft-0"] == "that & thatonetwo"
    assert tinted["draft-1"] == "this partdef f(x):return"  # not lines and indentation
    window.reload()  # it is kept with the answer
    assert window.tinted() == tinted


def test_a_real_answer_is_tinted_as_its_provenance_says(window: Window, server: Server) -> None:
    window.open(server.url)
    window.draft_always()
    window.ask(RENAME)
    tokens = window.kept()["provenance"]["tokens"]
    types = window.page.evaluate("fetch('props').then((r) => r.json())")["speculation"]["types"]
    tinted = window.tinted()
    assert any(token["source"] for token in tokens)
    text = "".join(token["piece"] for token in tokens)
    sources = [token["source"] for token in tokens for _ in token["piece"]]
    for mark in re.finditer(r"```\w*", text):  # not shown
        sources[mark.start() : mark.end()] = [""] * len(mark[0])
    for style, speculator in enumerate(types):
        drafted = "".join(
            c for c, source in zip(text, sources, strict=True) if source == speculator
        )
        assert "".join(tinted[f"draft-{style}"].split()) == "".join(drafted.split())


# sRGB, 0 to 255, of what is painted: tints, what lies below them, text and links
PAINTED = """() => {
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const rgb = (colour) => {
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data.slice(0, 3)];
  };
  const probe = document.body.appendChild(document.createElement("span"));
  const of = (kind, property) => {
    probe.className = kind;
    return rgb(getComputedStyle(probe)[property]);
  };
  const set = (name) => {
    probe.className = "";
    probe.style.color = `var(--${name})`;
    const found = rgb(getComputedStyle(probe).color);
    probe.style.color = "";
    return found;
  };
  const scopes = ["comment", "keyword", "string", "number", "title", "built_in", "meta"];
  const found = {
    marks: [0, 1, 2, 3, 4, 5].map((style) => of(`draft-${style}`, "backgroundColor")),
    grounds: ["ground", "surface", "sunken"].map(set),
    texts: [set("text"), set("accent"), ...scopes.map((one) => of(`hljs-${one}`, "color"))],
    link: set("accent"),
  };
  probe.remove();
  return found;
}"""
# linear RGB as it is seen: Machado, Oliveira, Fernandes 2009, severity 1
SEEN = {
    "by most": np.eye(3),
    "with protanopia": np.array(
        [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]]
    ),
    "with deuteranopia": np.array(
        [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]]
    ),
}
TO_CONES = np.array([[0.4122, 0.5363, 0.0514], [0.2119, 0.6807, 0.1074], [0.0883, 0.2817, 0.6300]])
TO_OKLAB = np.array(
    [[0.2105, 0.7936, -0.0041], [1.9780, -2.4286, 0.4506], [0.0259, 0.7828, -0.8087]]
)


def linear(colours: object) -> np.ndarray:
    share = np.array(colours) / 255
    return np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)


def oklab(rgb: np.ndarray) -> np.ndarray:
    """Where equal distances look equally different; 0.02 is just noticed."""
    return np.cbrt(np.clip(rgb, 0, 1) @ TO_CONES.T) @ TO_OKLAB.T


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colour_blind_readers_tell_sources_apart_and_text_on_them_is_readable(window, scheme):
    window.page.emulate_media(color_scheme=scheme)
    window.show()
    painted = {name: linear(one) for name, one in window.page.evaluate(PAINTED).items()}
    marks, grounds = painted["marks"], painted["grounds"]
    for reader, matrix in SEEN.items():
        seen, below = oklab(marks @ matrix.T), oklab(grounds @ matrix.T)
        pairs = [float(np.linalg.norm(a - b)) for a, b in combinations(seen, 2)]
        assert min(pairs) > 0.025, reader
        apart = np.linalg.norm(seen[:, None] - below[None], axis=2)
        assert apart.min() > 0.025, reader  # drafted or not
    luminance = np.array([0.2126, 0.7152, 0.0722])
    for mark in marks @ luminance:
        for text in painted["texts"] @ luminance:
            assert (max(mark, text) + 0.05) / (min(mark, text) + 0.05) > 4.5
    # no tint has the blue of links: its hue is far away
    hues = [math.atan2(b, a) for _, a, b in oklab(np.array([*marks, painted["link"]]))]
    assert min(abs(math.remainder(hue - hues[-1], math.tau)) for hue in hues[:-1]) > 0.4


def test_pointing_at_a_token_shows_its_draft_and_what_was_rejected(window: Window) -> None:
    window.show(worker_that_writes("Mine ", ("drafted", "suffix")))
    text = window.ask("Go on").locator("p").first
    box = text.bounding_box()
    assert box
    page = window.page
    width = page.evaluate(
        "() => { const r = document.createRange(); r.selectNodeContents("
        "document.querySelector('.assistant p')); return r.getBoundingClientRect().width }"
    )
    page.mouse.move(box["x"] + width - 4, box["y"] + box["height"] / 2)
    inspector = page.locator("#inspector")
    said = re.compile(r"drafted by suffix, token 7 of its draft, expected with 50\s%")
    expect(inspector).to_contain_text(said)
    expect(inspector.locator("li.accepted")).to_have_count(7)
    expect(inspector.locator("li.rejected")).to_have_text(re.compile(r"^\?"))
    window.until_marked("drafted")
    page.mouse.move(5, 5)
    inspector.wait_for(state="hidden")


def test_a_name_in_the_legend_marks_what_is_from_it(window: Window) -> None:
    window.show(worker_that_writes("a ", ("bc", "suffix"), " d ", ("ef", "ngram")))
    answer = window.ask("Go on")
    answer.locator(".facts summary").click()
    legend = answer.locator(".legend [data-source=ngram]")
    legend.hover()
    window.until_marked("ef")
    window.page.mouse.move(5, 5)
    window.until_marked("")
    answer.locator(".legend [data-source=suffix]").focus()
    window.until_marked("bc")


def test_arrow_keys_walk_along_the_tokens(window: Window) -> None:
    window.show(worker_that_writes("a", ("bc", "suffix")))
    window.ask("Go on").locator(".body").focus()
    inspector = window.page.locator("#inspector")
    own, drafted = "the model's own", "drafted by suffix"
    for key, said in (("ArrowRight", own), ("ArrowRight", drafted), ("ArrowLeft", own)):
        window.page.keyboard.press(key)
        expect(inspector.locator("p").first).to_contain_text(said)
    window.page.keyboard.press("Escape")
    inspector.wait_for(state="hidden")


def test_the_switch_takes_the_tint_away_and_is_remembered(window: Window) -> None:
    window.show(worker_that_writes(("draft", "suffix")))
    window.ask("Go on")
    assert "draft" in window.tinted().values()
    window.page.get_by_role("button", name="Mark accepted drafts").click()
    assert window.tinted() == {}
    window.reload()
    assert window.tinted() == {}


def test_one_line_says_what_an_answer_took_and_its_details_count_steps(window: Window) -> None:
    window.show(worker_that_writes("abc", ("defg", "suffix"), "h"))
    answer = window.ask("Go on")
    line = answer.locator(".facts summary")
    said = re.compile(r"^8 tokens · [\d.]+ m?s · first after [\d.]+ m?s$")
    expect(line).to_have_text(said, use_inner_text=True)
    times = re.findall(r"([\d.]+) (m?s)\b", line.inner_text())
    total, first = (float(time) * {"ms": 1, "s": 1000}[unit] for time, unit in times)
    assert total >= first + 200  # its 8 tokens took 250 ms after the first
    line.click()
    details = answer.locator(".facts dl")
    expect(details).to_contain_text("1.6; 3 steps saved")  # 8 in 5
    expect(details).to_contain_text("4 of 5 accepted (80 %)")
    expect(details).to_contain_text(re.compile(r"suffix\s*4"))
    window.reload()
    expect(window.answer().locator(".facts summary")).to_contain_text("8 tokens")
