"""What a model or a user wrote is shown as it was meant: Markdown, formulas, code in a question."""

from __future__ import annotations

from tests.page.support import Window, expect, worker_that_writes

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
