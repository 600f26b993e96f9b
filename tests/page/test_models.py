"""The page of a router: which model it talks to."""

from __future__ import annotations

from pathlib import Path

import httpx2
from tests.page.support import Window
from tests.server.server_process import Server

from headstart import demo

TARGET = demo.path(demo.TARGET)


def test_a_router_offers_its_models_and_the_page_talks_to_the_chosen_one(
    window: Window, tmp_path: Path
) -> None:
    preset = tmp_path / "models.ini"
    sections = "".join(f"[{name}]\nmodel = {TARGET}\n" for name in ("one", "two"))
    preset.write_text(f"[*]\nc = 512\nnp = 1\nn = 8\n{sections}")
    server = Server(["--models-preset", str(preset)], tmp_path)
    try:
        window.open(server.url)
        options = window.page.locator("#models option")
        assert [one.split()[0] for one in options.all_inner_texts()] == ["one", "two"]
        assert window.page.input_value("#models") == "one"
        window.ask("def f(")
        with window.page.expect_navigation():
            window.page.select_option("#models", "two")
        window.page.wait_for_selector("body[data-ready]")
        assert window.page.input_value("#models") == "two"
        window.ask("def f(")
        listed = httpx2.get(f"{server.url}/models", trust_env=False).json()["data"]
        loaded = {one["id"] for one in listed if one["status"]["value"] == "loaded"}
        assert loaded == {"one", "two"}
        window.page.focus("#models")
        window.until("document.querySelectorAll('#models option')[0].text === 'one (loaded)'")
    finally:
        server.stop()
