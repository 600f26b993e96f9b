"""What a model or a user wrote is shown as it was meant: Markdown, formulas, code in a question."""

from __future__ import annotations

from tests.page.support import Window, worker_that_writes
from tests.server.serving import serving

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
    with serving(worker_that_writes(MARKDOWN)) as client:
        window.open(str(client.base_url))
        text = window.ask("Go on").locator(".body > .text")
        assert text.locator("ol").get_attribute("start") == "5"
        boxes = text.locator("input[type=checkbox]")
        assert [box.is_checked() for box in boxes.all()] == [True, False]
        assert all(box.is_disabled() for box in boxes.all())
        right = text.locator("td").nth(1)
        assert right.evaluate("e => getComputedStyle(e).textAlign") == "right"
        image = text.get_by_role("link", name="the alt text")
        assert image.get_attribute("href") == "https://elsewhere.example/picture.png"
        assert text.locator("img").count() == 0
        assert "© 1 < 2" in text.inner_text()
        assert text.locator(".hljs-keyword").all_inner_texts() == ["def", "return"]


def test_formulas_are_mathml_and_prices_are_not_formulas(window: Window) -> None:
    with serving(worker_that_writes(MARKDOWN)) as client:
        window.open(str(client.base_url))
        text = window.ask("Go on").locator(".body > .text")
        assert text.locator("math").count() == 2
        assert text.locator("math[display=block] mfrac").count() == 1
        assert "for $5 and $10, and" in text.inner_text()


def test_libraries_are_loaded_when_a_text_needs_them(window: Window) -> None:
    asked: list[str] = []
    window.page.on("request", lambda request: asked.append(request.url.split("/")[-1]))
    with serving(worker_that_writes("Plain *words*.")) as client:
        window.open(str(client.base_url))
        window.ask("Go on")
        assert "marked.js" in asked
        assert not {"highlight.js", "katex.js", "board.js", "compare.js"} & set(asked)
        window.ask("```python\nprint(1)\n```")
        window.page.locator(".message.user .hljs-number").wait_for()
        assert "highlight.js" in asked


def test_a_question_is_shown_as_it_is_but_for_code_in_fences(window: Window) -> None:
    with serving(worker_that_writes("Yes.")) as client:
        window.open(str(client.base_url))
        window.ask("Is *this*\n\n  right?\n```python\nprint(1)\n```\n# no heading")
        user = window.page.locator(".message.user")
        assert user.locator("pre code").inner_text().strip() == "print(1)"
        assert user.locator("em, h1").count() == 0
        texts = user.locator(".text > div:not(.code)").all_inner_texts()
        assert texts == ["Is *this*\n\n  right?", "# no heading"]
