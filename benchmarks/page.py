"""What the page costs: its first screen, and tokens/s of a server whose board is open.

    python -m benchmarks.page [-m MODEL] [--loads 20] [--rounds 15]

The first screen is loaded in windows that know nothing and have drawn themselves, from the request
to the moment at which a user can write. Then answers are streamed in turn with no page, with the
board in a Chromium on this machine, and with its stream of events alone, as for a page elsewhere; a
round has one of each. Beside the speed stands the processor time that a second of it took of the
web process and of Chromium, which says more on a busy machine.
Needs Playwright and a Chromium (docs/page.md).
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from playwright.sync_api import sync_playwright

from headstart.extras.bench.client import HEADSTART, Client, exchange, started
from headstart.extras.bench.report import MeanRatio

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# milliseconds from the beginning of the navigation until the body has this attribute
READY = """new MutationObserver((_, observer) => {
  if (!document.body?.dataset.ready) return;
  observer.disconnect();
  globalThis.readyAfter = performance.now();
}).observe(document, { subtree: true, childList: true, attributes: true });"""


SETTLED = 1500  # milliseconds: a new window draws its own buttons with a renderer of its own


def first_screens(browser: Browser, url: str, num_loads: int) -> list[float]:
    """Milliseconds of each load."""
    times = []
    for _ in range(num_loads):
        context = browser.new_context()
        page = context.new_page()
        page.add_init_script(READY)
        page.wait_for_timeout(SETTLED)
        page.goto(url)
        page.wait_for_selector("body[data-ready]")
        times.append(page.evaluate("readyAfter"))
        context.close()
    return times


def ticks() -> dict[tuple[str, str], int]:
    """Processor time of every process so far, by its id and name; of Linux."""
    found = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it ended
            name, _, rest = file.read_text().partition("(")[2].rpartition(")")
            found[file.parent.name, name] = sum(map(int, rest.split()[11:13]))
    return found


def speed(client: Client, server: int, num_tokens: int) -> tuple[float, float, float]:
    """Tokens a second of one answer, as the server says; milliseconds a second of the processor
    that the web process and Chromium took meanwhile.
    """
    body = {"prompt": "Once", "max_tokens": num_tokens, "ignore_eos": True, "temperature": 0}
    before, began = ticks(), time.monotonic()
    answer = client.stream("/v1/completions", body | {"speculative": {"mode": "off"}})
    scale = 1000 / os.sysconf("SC_CLK_TCK") / (time.monotonic() - began)
    spent = {key: scale * (now - before[key]) for key, now in ticks().items() if key in before}
    web = sum(one for (pid, _), one in spent.items() if pid == str(server))
    chromium = sum(one for (_, name), one in spent.items() if name.startswith("chrom"))
    return float(answer.timings["predicted_per_second"]), web, chromium


@contextmanager
def board(browser: Browser, url: str) -> Iterator[None]:
    """The board is shown meanwhile."""
    context = browser.new_context()
    page = context.new_page()
    page.goto(f"{url}/#board")
    page.wait_for_selector("#slots tr")
    page.wait_for_timeout(3000)  # opening it costs once
    yield
    context.close()


@contextmanager
def events(url: str) -> Iterator[None]:
    """Something reads /events meanwhile."""
    stop = threading.Event()

    def read() -> None:
        for _ in exchange(url, "/events"):
            if stop.is_set():
                return

    thread = threading.Thread(target=read)
    thread.start()
    yield
    stop.set()
    thread.join()


def main() -> None:
    """Print both."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-m", "--model", type=Path, help="a GGUF file (default: the demo model)")
    parser.add_argument("--loads", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--tokens", type=int, default=200, help="of an answer")
    args = parser.parse_args()
    model = [] if args.model is None else ["-m", str(args.model)]
    command = [*HEADSTART, "serve", *model, "--context", "1024", "--log-level", "warning"]
    program = shutil.which("chromium") or shutil.which("google-chrome")
    with (
        tempfile.TemporaryDirectory() as folder,
        started(command, Path(folder, "log")) as (process, url),
        sync_playwright() as driver,
    ):
        browser = driver.chromium.launch(executable_path=program, args=["--no-sandbox"])
        client = Client(url)
        first_screens(browser, url, 1)  # Chromium's own start
        times = sorted(first_screens(browser, url, args.loads))
        print(f"first screen: median {statistics.median(times):.0f} ms, slowest {times[-1]:.0f} ms")
        rounds: dict[str, list[tuple[float, float, float]]] = {
            "no page": [],
            "board": [],
            "events": [],
        }
        for _ in range(args.rounds):
            for name, found in rounds.items():
                arms = {"board": lambda: board(browser, url), "events": lambda: events(url)}
                with arms.get(name, nullcontext)():
                    found.append(speed(client, process.pid, args.tokens))
        for name, found in rounds.items():
            ratios = [a[0] / b[0] for a, b in zip(found, rounds["no page"], strict=True)]
            mean, error = MeanRatio.of(ratios)
            web, chromium = (statistics.mean(one[i] for one in found) for i in (1, 2))
            print(
                f"{name}: {mean:.3f} ± {error:.3f} of the tokens/s; each second "
                f"{web:.1f} ms of the web process, {chromium:.1f} ms of Chromium"
            )
        browser.close()


if __name__ == "__main__":
    main()
