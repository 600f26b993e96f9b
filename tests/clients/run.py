"""Real clients against a real server: make test-clients.

    python -m tests.clients.run [NAME ...] [--command "llama-server -m model.gguf"]

Each client gets an environment of its own in build/clients, made once, and a script of
tests/clients/checks, which finds the server's address in SERVER_URL. The server is Headstart with
the embedded demo model, or what --command names; one with a chat template that shows calls of tools
and thoughts is at TOOLS_URL. Exit code 1 if a check fails; clients that cannot
be installed (no network, no npm) are told apart.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from headstart.extras.bench.client import running

ROOT = Path(__file__).parents[2]
CHECKS = Path(__file__).parent / "checks"
ENVIRONMENTS = ROOT / "build" / "clients"
CHECK_SECONDS = 180.0
# what is installed for each check; those of a .mjs come from npm, an empty one needs only Python
CLIENTS: dict[str, tuple[str, ...]] = {
    "openai": ("openai==3.54.0",),
    "anthropic": ("anthropic==2.12.0",),
    "ollama": ("ollama==0.6.3",),
    "litellm": ("litellm==1.106.2",),
    "langchain": ("langchain==1.4.7", "langchain-core==1.7.2", "langchain-openai==1.7.3"),
    "pydantic_ai": ("pydantic-ai-slim[openai]==2.68.0",),
    "instructor": ("instructor==1.17.0",),
    "llm": ("llm==0.36", "llm-llama-server==0.2"),
    "openai_agents": ("openai-agents==0.24.0",),
    "llama_index": ("llama-index-llms-openai-like==0.8.1",),
    "openai_npm": ("openai@6.49.0",),
    "recorded": (),
    "llama_benchy": ("llama-benchy==0.4.0",),
    "aiperf": ("aiperf==0.13.0",),
}
HEAVY = ("aiperf",)  # 1.2 GB in 140 packages: only if it is named
FLAGS = ("-c", "4096", "--alias", "demo", "--no-webui", "--log-level", "warning")
TEMPLATE = Path(__file__).parent / "tools.jinja"


class MissingError(Exception):
    """A client cannot be installed here."""


def main() -> int:
    """Run the checks; print one line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*CLIENTS, []], default=[])
    parser.add_argument("--command", default=f"{sys.executable} -m headstart serve")
    options = parser.parse_args()
    outcomes = []
    command = shlex.split(options.command)
    with server(command) as url, server([*command, "--chat-template-file", str(TEMPLATE)]) as tools:
        for name in options.names or [one for one in CLIENTS if one not in HEAVY]:
            outcomes.append(outcome := check(name, {"SERVER_URL": url, "TOOLS_URL": tools}))
            print(f"{name:14} {outcome}", flush=True)
    return int(any(outcome.startswith("failed") for outcome in outcomes))


def check(name: str, urls: Mapping[str, str]) -> str:
    """Install one client and run its check."""
    try:
        command = install(name)
    except MissingError as error:
        return f"not installed: {error}"
    environment = os.environ | urls | {"OPENAI_API_KEY": "-", "NO_PROXY": "127.0.0.1"}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=CHECK_SECONDS
        )
    except subprocess.TimeoutExpired:
        return f"failed: not over after {CHECK_SECONDS:.0f} s"
    if done.returncode:
        print(done.stdout + done.stderr, file=sys.stderr)
    return "failed" if done.returncode else "passed"


def install(name: str) -> list[str]:
    """Make the client's environment unless it is there; returns the command of its check.

    Raises:
        MissingError: it cannot be had.
    """
    packages = CLIENTS[name]
    folder = ENVIRONMENTS / f"{name}-{'-'.join(packages)}".replace("/", "-").strip("-")
    is_npm = name.endswith("_npm")
    if not folder.is_dir():
        try:
            (_install_npm if is_npm else _install_python)(folder, packages)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
    if is_npm:  # node looks for packages from the folder of the script upwards
        script = shutil.copy(CHECKS / f"check_{name}.mjs", folder)
        return ["node", str(script)]
    return [str(folder / "bin" / "python"), str(CHECKS / f"check_{name}.py")]


def _install_python(folder: Path, packages: Sequence[str]) -> None:
    venv.create(folder, with_pip=bool(packages))
    if packages:
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "-q", *packages]
        _call([*pip, "--disable-pip-version-check"])


def _install_npm(folder: Path, packages: Sequence[str]) -> None:
    if shutil.which("npm") is None:
        raise MissingError("there is no npm")
    folder.mkdir(parents=True)
    _call(["npm", "install", "--silent", "--prefix", str(folder), *packages])


def _call(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise MissingError(done.stderr.strip().splitlines()[-1] if done.stderr else "no reason")


@contextmanager
def server(command: Sequence[str]) -> Iterator[str]:
    """Run the server; gives its address once it is ready."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"HEADSTART_CACHE": folder}
        log = Path(folder) / "log"
        with running([*command, *FLAGS], log, environment=environment) as client:
            yield client.url


if __name__ == "__main__":
    raise SystemExit(main())
