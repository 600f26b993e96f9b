"""A real Chromium for the page; what goes wrong on its console fails the test."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from tests.server.server_process import Server

if TYPE_CHECKING:
    from playwright.sync_api import Browser
    from tests.page.support import Window

NAMES = ("chromium", "chromium-browser", "google-chrome")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--throttle", type=int, default=1, help="a page so many times slower")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    from tests.page.support import playwright  # skips the tests where it is not installed

    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip("no Chromium is installed (Debian: apt install chromium)")
    # another site for test_security.py; the sandbox of Chromium does not work for root
    arguments = ["--host-resolver-rules=MAP evil.example 127.0.0.1"]
    arguments += ["--no-sandbox"] * (os.geteuid() == 0)
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=arguments)
        yield browser
        browser.close()


@pytest.fixture
def window(browser: Browser, pytestconfig: pytest.Config) -> Iterator[Window]:
    """A window of a browser that knows nothing yet."""
    from tests.page.support import Window

    context = browser.new_context(viewport={"width": 1200, "height": 800}, color_scheme="light")
    window = Window(context.new_page(), pytestconfig.getoption("throttle"))
    yield window
    context.close()
    window.servers.close()
    assert window.troubles == []


@pytest.fixture(scope="session")
def server(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The real server with the demo models, where equal means bit by bit."""
    arguments = ["--exact", "--context", "1024", "--threads", "1", "-np", "2"]
    running = Server(arguments, tmp_path_factory.mktemp("cache"))
    yield running
    running.stop()
