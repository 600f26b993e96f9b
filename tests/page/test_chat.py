"""Texts are shown as they are meant, and the chat streams, stops, reloads, branches and exports."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from tests.page.support import Window, expect, worker_that_writes
from tests.server.fake_worker import FakeWorker, say

# Escape that ends the input of a Japanese word, for instance
COMPOSE = """() => document.querySelector("#prompt").dispatchEvent(
  new KeyboardEvent("keydown", { key: "Escape", isComposing: true, bubbles: true }))"""
ANSWER = ("A **bold** word.\n\n", ("```python\nprint(1)\n", "suffix"), "```\n\nDone.")


def test_an_answer_streams_and_is_shown_as_markdown(window: Window) -> None:
    window.show(worker_that_writes(*ANSWER))
    answer = window.ask("Go on")
    expect(answer.locator(".text strong")).to_have_text("bold")
    expect(answer.locator("pre code")).to_have_text("print(1)")
    expect(answer.locator(".hljs-built_in")).to_have_text("print")
    expect(answer).to_contain_text("Done.")
    expect(window.page.locator(".message.user .body > .text")).to_have_text("Go on")


def test_text_appears_before_the_answer_is_over_and_stop_ends_it(window: Window) -> None:
    worker = worker_that_writes("The beginning", hold=True)
    page = window.show(worker)
    answer = window.ask("Go on", wait=False)
    answer.get_by_text("The beginning").wait_for()
    stops: list[str] = []
    page.on("request", lambda one: stops.append(one.url) if one.method == "DELETE" else None)
    page.get_by_role("button", name="Edit and ask again").click()  # what Escape closes is closed
    page.get_by_role("textbox", name="Your message").press("Escape")
    page.get_by_role("button", name="Settings", exact=True).click()
    page.get_by_label("System prompt").press("Escape")
    page.get_by_role("button", name="More on Go on").click()
    page.get_by_role("menuitem", name="Rename").press("Escape")
    expect(page.get_by_role("menuitem")).to_have_count(0)
    page.evaluate(COMPOSE)
    window.page.get_by_role("button", name="Stop", exact=True).click()
    assert worker.cancelled.get(timeout=10)
    expect(window.answer()).to_contain_text("Stopped.")
    expect(window.page.get_by_role("button", name="Send")).to_be_visible()
    assert len(stops) == 1


def test_asking_again_and_editing_make_versions_to_walk_between(window: Window) -> None:
    answers = iter([b"first", b"second", b"third"])
    worker = FakeWorker(lambda request: say(request, next(answers)))
    page = window.show(worker)
    window.ask("Question")
    page.get_by_role("button", name="Answer again").click()
    page.locator(".message.assistant", has_text="second").wait_for()
    expect(window.answer()).to_contain_text("2 / 2")
    page.get_by_role("button", name="Earlier version").click()
    page.locator(".message.assistant", has_text="first").wait_for()
    page.get_by_role("button", name="Edit and ask again").click()
    page.get_by_role("textbox", name="Your message").fill("Other question")
    page.get_by_role("button", name="Ask", exact=True).click()
    page.locator(".message.assistant", has_text="third").wait_for()
    expect(page.locator(".message.user")).to_contain_text("Other question")
    page.locator(".message.user").get_by_role("button", name="Earlier version").click()
    page.locator(".message.assistant", has_text="second").wait_for()  # the newest answer to it
    assert worker.requests[2].prompt != worker.requests[1].prompt


def test_settings_and_system_prompt_are_sent_and_defaults_are_the_servers(window: Window) -> None:
    worker = FakeWorker()
    page = window.show(worker)
    page.get_by_role("button", name="Settings", exact=True).click()
    temperature = page.get_by_label("Temperature", exact=True)
    expect(temperature).to_have_attribute("placeholder", "0.8")
    temperature.fill("0.25")
    page.get_by_label("Top k").fill("many")
    expect(page.get_by_text("must be a number")).to_be_visible()
    expect(page.get_by_text("must be a whole number")).to_be_hidden()
    page.get_by_label("Mode", exact=True).select_option("off")
    page.get_by_label("System prompt").fill("Be brief.")
    window.ask("Question")
    request = worker.requests[0]
    assert request.sampling.temperature == 0.25
    assert request.sampling.top_k == 40
    assert request.speculative.mode is not None
    assert request.speculative.mode.value == "off"
    assert request.wants_provenance
    assert b"Be brief." in bytes(request.prompt)


def test_conversations_are_kept_exported_and_imported(window: Window, tmp_path: Path) -> None:
    page = window.show(worker_that_writes("An answer"))
    window.ask("Remember this")
    with page.expect_download() as download:
        page.get_by_role("button", name="Export all").click()
    file = tmp_path / "export.json"
    download.value.save_as(file)
    assert json.loads(file.read_text("utf-8"))["conversations"][0]["messages"]
    page.get_by_role("button", name="New conversation").click()
    page.get_by_text("What shall we write?").wait_for()
    page.get_by_role("button", name="More on Remember this").click()
    page.get_by_role("menuitem", name="Delete").click()
    expect(page.locator("#conversations li")).to_have_count(0)
    page.set_input_files("#import-file", file)
    page.get_by_role("button", name="Remember this", exact=True).click()
    expect(window.answer()).to_contain_text("An answer")
    page.set_input_files("#import-file", Path(__file__))
    page.get_by_text("this file is not JSON").wait_for()


def test_reasoning_is_folded_and_tool_calls_shown(window: Window) -> None:
    call = {"index": 0, "id": "c", "function": {"name": "weather", "arguments": '{"city": '}}
    deltas: list[dict[str, Any]] = [
        {"reasoning_content": "I should *look*."},
        {"content": "One moment."},
        {"tool_calls": [call]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '"Bern"}'}}]},
    ]
    chunks = [json.dumps({"choices": [{"index": 0, "delta": delta}]}) for delta in deltas]
    body = "".join(f"data: {chunk}\n\n" for chunk in [*chunks, "[DONE]"])
    window.show()
    window.page.route(
        "**/v1/chat/completions",
        lambda route: route.fulfill(body=body, content_type="text/event-stream"),
    )
    answer = window.ask("Weather?")
    expect(answer.locator(".call > *")).to_have_text(
        ["Calls a tool", "weather", '{"city": "Bern"}']
    )
    thought = answer.locator(".reasoning em")
    expect(thought).to_be_hidden()
    answer.get_by_text("Reasoning").click()
    expect(thought).to_be_visible()
    expect(thought).to_have_text("look")


def test_a_text_file_becomes_part_of_the_message(window: Window, tmp_path: Path) -> None:
    file = tmp_path / "tool.py"
    file.write_text("print('```')\n")
    worker = FakeWorker()
    window.show(worker)
    window.page.set_input_files("#file", file)
    chip = window.page.locator("#attachments .chip")
    chip.get_by_text(re.compile(r"^\d+ tokens$")).wait_for()
    window.ask("What is it?")
    expect(chip).to_be_hidden()
    expect(window.page.locator(".message.user")).to_contain_text("tool.py")
    prompt = bytes(worker.requests[-1].prompt).decode()
    assert "tool.py:\n````py\nprint('```')\n````\n\nWhat is it?" in prompt


def test_the_composer_says_how_much_of_the_context_is_used(window: Window) -> None:
    window.show(worker_that_writes("Hello"))
    context = window.page.locator("#context")
    expect(context).to_be_hidden()  # nothing is known yet
    window.ask("Question")
    expect(context).to_have_text("9 / 512")  # 2 cached, 3 processed, 4 written
    expect(context).to_have_attribute("title", "9 of 512 tokens of context used")
    window.page.get_by_role("button", name="New conversation").click()
    expect(context).to_be_hidden()


def test_a_failure_is_said_where_the_answer_would_be(window: Window) -> None:
    window.expected = ("400 (Bad Request)", "500 (Internal Server Error)")
    window.show()
    window.page.get_by_role("button", name="Settings", exact=True).click()
    window.page.get_by_label("Most tokens", exact=True).fill("-5")
    expect(window.ask("Question").locator(".note")).to_contain_text("max_tokens")
    error = {"error": {"message": "no properties today"}}
    window.page.route("**/props", lambda route: route.fulfill(status=500, json=error))
    window.reload()
    expect(window.page.locator("#status.problem")).to_have_text("no properties today")


MARKDOWN = r"""5. five
6. six

- [x] done
- [ ] open

| left | right |
|:-----|------:|
| a | 1 |

Inline \(x^2 + 1\), for $5 and $10, and
$$\frac{a}{b}$$

![the alt text](https://elsewhere.example/picture.png) &copy; 1 &lt; 2

```python
def f(x):
    return x
```
"""


def test_lists_boxes_tables_and_images_keep_what_they_say(window: Window) -> None:
    window.show(worker_that_writes(MARKDOWN))
    text = window.ask("Go on").locator(".body > .text")
    expect(text.locator("ol")).to_have_attribute("start", "5")
    boxes = text.locator("input[type=checkbox]")
    expect(boxes).to_have_count(2)
    expect(boxes.first).to_be_checked()
    expect(boxes.last).not_to_be_checked()
    expect(boxes.last).to_be_disabled()
    expect(text.locator("td").nth(1)).to_have_css("text-align", "right")
    image = text.get_by_role("link", name="the alt text")
    expect(image).to_have_attribute("href", "https://elsewhere.example/picture.png")
    expect(text.locator("img")).to_have_count(0)
    expect(text).to_contain_text("© 1 < 2")
    expect(text.locator(".hljs-keyword")).to_have_text(["def", "return"])


def test_formulas_are_mathml_and_prices_are_not_formulas(window: Window) -> None:
    window.show(worker_that_writes(MARKDOWN))
    text = window.ask("Go on").locator(".body > .text")
    expect(text.locator("math")).to_have_count(2)
    expect(text.locator("math[display=block] mfrac")).to_have_count(1)
    expect(text).to_contain_text("for $5 and $10, and")


def test_libraries_are_loaded_when_a_text_needs_them(window: Window) -> None:
    asked: list[str] = []
    window.page.on("request", lambda request: asked.append(request.url.split("/")[-1]))
    window.show(worker_that_writes("Plain *words*."))
    window.ask("Go on")
    assert "marked.js" in asked
    assert not {"highlight.js", "katex.js", "board.js", "compare.js"} & set(asked)
    window.ask("```python\nprint(1)\n```")
    window.page.locator(".message.user .hljs-number").wait_for()
    assert "highlight.js" in asked


def test_a_question_is_shown_as_it_is_but_for_code_in_fences(window: Window) -> None:
    window.show(worker_that_writes("Yes."))
    window.ask("Is *this*\n\n  right?\n```python\nprint(1)\n```\n# no heading")
    user = window.page.locator(".message.user")
    expect(user.locator("pre code")).to_have_text("print(1)")
    expect(user.locator("em, h1")).to_have_count(0)
    texts = user.locator(".text > div:not(.code)")
    expect(texts).to_have_count(2)
    assert texts.all_inner_texts() == ["Is *this*\n\n  right?", "# no heading"]
