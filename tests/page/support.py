"""What the page's tests share: a window, and answers that are known before they are given."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from tests.server.fake_worker import HOLD, STATS, FakeWorker
from tests.server.server_process import until
from tests.server.serving import serving

from headstart.types.request import Event, FinishEvent, Request, TokenEvent, VerifiedDraft

if TYPE_CHECKING:
    from playwright.sync_api import ConsoleMessage, Locator, Page, Route

playwright = pytest.importorskip(
    "playwright.sync_api", reason="Playwright is not installed: run make test-page"
)
expect = playwright.expect  # asks again until it is so: the page has its own time
expect.set_options(timeout=20_000)
# what highlights cover, speculator by speculator, in the order of the text
TINTED = """() => {
  const found = {};
  for (const [name, highlight] of CSS.highlights) {
    const ranges = [...highlight].filter((range) => range.startContainer.isConnected);
    ranges.sort((a, b) => a.startContainer === b.startContainer ? a.startOffset - b.startOffset
      : a.startContainer.compareDocumentPosition(b.startContainer) & 4 ? -1 : 1);
    found[name] = ranges.map((range) =>
      range.startContainer.data.slice(range.startOffset, range.endOffset));
  }
  return found;
}"""
# the newest answer as the browser keeps it
KEPT = """async () => {
  const { listConversations, loadMessages } = await import(new URL("js/store.js", location.href));
  const [conversation] = await listConversations();
  return (await loadMessages(conversation.id)).get(conversation.leaf);
}"""

# what Chromium says when a server is gone: a test's server ends before its page does
_SERVER_IS_GONE = (
    "net::ERR_CONNECTION_REFUSED",
    "net::ERR_CONNECTION_RESET",
    "net::ERR_EMPTY_RESPONSE",
    "net::ERR_INCOMPLETE_CHUNKED_ENCODING",
)


class Window:
    """The page in a browser, with the ways in which users use it."""

    def __init__(self, page: Page, throttle: int) -> None:
        self.page = page
        page.context.set_default_timeout(20_000)
        devtools = page.context.new_cdp_session(page)
        devtools.send("Emulation.setCPUThrottlingRate", {"rate": throttle})
        self.troubles: list[str] = []
        self.expected: tuple[str, ...] = ()  # parts of console messages that are no trouble
        page.on("console", self._hear)
        page.on("pageerror", lambda error: self.troubles.append(str(error)))
        page.on("dialog", lambda dialog: dialog.accept())
        self.servers = ExitStack()

    def _hear(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and not any(
            part in message.text for part in (*self.expected, *_SERVER_IS_GONE)
        ):
            self.troubles.append(message.text)

    def show(self, worker: FakeWorker | None = None, *, view: str = "", **more: Any) -> Page:
        """Open the page of a server that lives as long as this window; `more` as `serving`."""
        client = self.servers.enter_context(serving(worker, **more))
        self.open(str(client.base_url), view)
        return self.page

    def open(self, url: str, view: str = "") -> None:
        """Load the page; requests to other places are trouble."""
        host = urlsplit(str(url)).netloc

        def note(request: Any) -> None:
            if urlsplit(request.url).netloc != host and not request.url.startswith("blob:"):
                self.troubles.append(f"asks elsewhere: {request.url}")

        self.page.on("request", note)
        self.page.goto(f"{url}/#{view}")
        self.is_ready()

    def is_ready(self) -> None:
        """Wait until the page can be used."""
        expect(self.page.locator("body[data-ready]")).to_be_visible()

    def reload(self) -> None:
        self.page.reload()
        self.is_ready()

    def ask(self, text: str, *, wait: bool = True) -> Locator:
        """Send a message; returns the answer, by default when it is over."""
        self.page.fill("#prompt", text)
        self.page.press("#prompt", "Enter")
        return self.answer(wait=wait)

    def draft_always(self) -> None:
        """Let the server draft in every step: auto goes by what steps take at the moment."""

        def send(route: Route) -> None:
            body = route.request.post_data_json
            wishes = body.get("speculative") or {}
            if wishes.get("mode") != "off":
                body["speculative"] = wishes | {"mode": "fixed"}
            route.continue_(post_data=json.dumps(body))

        self.page.route("**/v1/chat/completions", send)

    def answer(self, *, wait: bool = True) -> Locator:
        """The last answer."""
        if wait:
            expect(self.page.locator(".message.assistant:last-child:not(.running)")).to_be_visible()
        return self.page.locator(".message.assistant").last

    def until(self, condition: str) -> None:
        """Wait for a JavaScript expression; the page's policy forbids Playwright's own way."""
        until(lambda: bool(self.page.evaluate(condition)), condition)

    def tinted(self) -> dict[str, str]:
        """Text under each style, once all answers are shown."""
        expect(self.page.locator(".message.running")).to_have_count(0)
        return {name: "".join(parts) for name, parts in self.page.evaluate(TINTED).items()}

    def until_marked(self, text: str) -> None:
        """Wait until this is marked as what the user looks at."""
        until(lambda: self.tinted()["draft-now"] == text, f"{text!r} is marked")

    def kept(self) -> dict[str, Any]:
        """The newest answer in the browser's database."""
        message: dict[str, Any] = self.page.evaluate(KEPT)
        return message


def writes(
    *pieces: tuple[str, str] | str, hold: bool = False
) -> Callable[[Request], Sequence[Event | Exception | str]]:
    """A script: each piece is one step; (text, speculator) was drafted, the rest is the model's.

    A drafted piece is a draft with one more token, which was rejected.
    """

    def script(request: Request) -> Sequence[Event | Exception | str]:
        events: list[Event | Exception | str] = []
        for piece in pieces:
            text, speculator = (piece, "") if isinstance(piece, str) else piece
            tokens = tuple(text.encode())
            num_drafted = len(tokens) if speculator else 0
            draft = (*tokens[:num_drafted], *[ord("?")] * bool(num_drafted))
            step = VerifiedDraft(
                draft, (speculator,) * len(draft), (0.5,) * len(draft), 2.0, 0.5 * bool(draft)
            )
            for token in [tokens] if speculator else [(one,) for one in tokens]:
                events.append(
                    TokenEvent(
                        request.request_id,
                        token,
                        bytes(token),
                        (speculator,) * len(token),
                        step=step,
                    )
                )
        end: list[Event | Exception | str] = [FinishEvent(request.request_id, "eos", STATS)]
        return [*events, *[HOLD] * hold, *end]

    return script


def worker_that_writes(*pieces: tuple[str, str] | str, hold: bool = False) -> FakeWorker:
    """A worker whose every answer is this."""
    return FakeWorker(writes(*pieces, hold=hold))
