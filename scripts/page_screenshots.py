"""Pictures of the page: `python scripts/page_screenshots.py URL FOLDER`, of a running server.

Chat, comparison and board, light and dark, at the widths of a phone, a small and a large window.
Needs Playwright and a Chromium (see docs/page.md).
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import httpx2
from playwright.sync_api import sync_playwright

if TYPE_CHECKING:
    from playwright.sync_api import Page

SIZES = ((384, 780), (800, 800), (1280, 900))
QUESTION = (
    "Rename `data` to `buffer`:\n```python\ndef write(self, data):\n    self.file.write(data)\n"
    "    return len(data)\n```"
)


def main(url: str, folder: Path) -> None:
    """Take all pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    for _ in range(20):  # what drafts earn is learned from the first answers
        body = {"messages": [{"role": "user", "content": QUESTION}]}
        httpx2.post(f"{url}/v1/chat/completions", json=body).raise_for_status()
    with sync_playwright() as driver:
        program = shutil.which("chromium") or shutil.which("google-chrome")
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        for theme in ("light", "dark"):
            context = browser.new_context(
                color_scheme="light" if theme == "light" else "dark", device_scale_factor=1
            )
            page = context.new_page()
            page.set_default_timeout(60_000)
            page.goto(url)
            page.wait_for_selector("body[data-ready]")
            _fill(page)
            for width, height in SIZES:
                page.set_viewport_size({"width": width, "height": height})
                for view in ("chat", "compare", "board"):
                    page.locator(f"#to-{view}").click()
                    page.wait_for_timeout(1500 if view == "board" else 300)
                    page.screenshot(path=folder / f"{view}-{theme}-{width}.png")
            context.close()
        browser.close()


def _fill(page: Page) -> None:
    """Ask, open the details, and compare."""
    page.fill("#prompt", QUESTION)
    page.press("#prompt", "Enter")
    page.wait_for_selector(".message.assistant:last-child:not(.running)")
    page.locator(".facts summary").click()
    page.locator("#to-compare").click()
    page.fill("#compare-prompt", QUESTION)
    page.locator("#compare-run").click()
    page.wait_for_selector(".verdict:is(.equal, .different)")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
