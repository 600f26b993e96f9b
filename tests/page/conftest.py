"""A real Chromium for the page; what goes wrong on its console fails the test."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from tests.page.support import Window
from tests.server.server_process import Server

if TYPE_CHECKING:
    from playwright.sync_api import Browser

NAMES = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="Playwright is not installed: run make test-page"
    )
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip("no Chromium is installed (Debian: apt install chromium)")
    # another site for test_websites.py; the sandbox of Chromium does not work for root
    arguments = ["--host-resolver-rules=MAP evil.example 127.0.0.1"]
    arguments += ["--no-sandbox"] * (os.geteuid() == 0)
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=arguments)
        yield browser
        browser.close()


@pytest.fixture
def window(browser: Browser) -> Iterator[Window]:
    """A window of a browser that knows nothing yet."""
    context = browser.new_context(viewport={"width": 1200, "height": 800}, color_scheme="light")
    context.set_default_timeout(20_000)
    window = Window(context.new_page())
    yield window
    context.close()
    assert window.troubles == []


@pytest.fixture(scope="session")
def server(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The real server with the demo models, where equal means bit by bit."""
    arguments = ["--exact", "--context", "1024", "--threads", "1", "-np", "2"]
    running = Server(arguments, tmp_path_factory.mktemp("cache"))
    yield running
    running.stop()
