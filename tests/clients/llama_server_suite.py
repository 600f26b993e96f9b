"""Runs llama-server's own pytest suite, unmodified, against Headstart or llama-server.

    python tests/clients/llama_server_suite.py SUITE [--llama-server BINARY] [--out FILE] [-k WORDS]

SUITE is the folder tools/server/tests of a llama.cpp source tree. Its models come from a hub; here
the embedded demo model stands in for every one of them, on both servers, so a test that wants
the text of a certain model fails on both and says nothing; --encoder and --reranker name models for
the tests of embeddings and scores (tests/models.py writes tiny ones). Needs the packages of SUITE's
requirements.txt. A router finds the demo model in a cache of the hub under the names that the tests
use; what they download fails. With --llama-server the outcomes of that binary are written, else
Headstart's;
`--compare A B` prints what passes in A and not in B.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

WRAPPER = """#!{python}
# Stands in for llama-server: puts the demo model in place of those of the hub.
import http.server
import os
import sys

arguments = sys.argv[1:]
names_model = any(a in ("--hf-repo", "--model-url", "--model", "-m") for a in arguments)
command, kept = {command!r}, []
if not names_model and {router!r}:
    command, kept = {router!r}, ["--models-max", "4"]
while arguments:
    argument = arguments.pop(0)
    if argument in ("--hf-repo", "--model-url"):
        files = [file for name, file in {others!r} if name in " ".join(sys.argv)]
        kept += ["--model", *(files or [{model!r}])[:1]]
    if argument in ("--hf-repo", "--hf-file", "--model-url", "--mmproj-url"):
        arguments.pop(0)
    elif argument != "--offline" or not names_model:
        kept.append(argument)


class Healthy(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()


with open({count!r}, "a") as file:
    file.write("x")
if os.path.getsize({count!r}) <= {presets}:
    # before the tests each model is started once, to download it: nothing to download here
    port = int(sys.argv[sys.argv.index("--port") + 1])
    http.server.HTTPServer(("127.0.0.1", port), Healthy).serve_forever()
os.execv(command[0], [*command, *kept])
"""
# models of the router's tests, as the cache of the hub has them
CACHED = {
    "ggml-org/tinygemma3-GGUF": "tinygemma3-Q8_0.gguf",
    "ggml-org/test-model-stories260K": "stories260K-F32.gguf",
    "ggml-org/test-model-stories260K-infill": "stories260K-infill-F32.gguf",
}
PRESETS = 8  # models that the suite starts before its tests
# The suite copies headers into a dictionary and looks them up as llama-server spells them, which
# HTTP does not require: a pytest plugin for both servers.
HEADER_NAMES = """
from requests.structures import CaseInsensitiveDict

CaseInsensitiveDict.__iter__ = lambda self: iter([name.title() for name, _ in self._store.values()])
"""


def main() -> int:
    """Run the suite and write {test: outcome}, or compare two such files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suite", type=Path, nargs="?")
    parser.add_argument("--llama-server", type=Path)
    parser.add_argument("--headstart", default=f"{sys.executable} -m headstart", help="command")
    parser.add_argument("--model", type=Path, default=_demo())
    parser.add_argument("--encoder", type=Path, help="model of the tests of embeddings")
    parser.add_argument("--reranker", type=Path, help="model of the tests of reranking")
    parser.add_argument("--out", type=Path, default=Path("outcomes.json"))
    parser.add_argument("-k", default="")
    parser.add_argument("--passed-in", type=Path, help="only tests that passed in these outcomes")
    parser.add_argument("--compare", type=Path, nargs=2)
    options = parser.parse_args()
    if options.compare:
        return compare(*options.compare)
    binary = options.llama_server
    command = [str(binary)] if binary else shlex.split(options.headstart)
    with tempfile.TemporaryDirectory() as folder:
        outcomes = run(options, command, Path(folder))
    options.out.write_text(json.dumps(outcomes, indent=1, sort_keys=True), "utf-8")
    print({kind: list(outcomes.values()).count(kind) for kind in sorted(set(outcomes.values()))})
    return 0


def run(options: argparse.Namespace, command: list[str], folder: Path) -> dict[str, str]:
    """Outcome by test; a skipped test is one that its author skips."""
    wrapper = folder / "llama-server"
    wrapper.write_text(
        WRAPPER.format(
            python=sys.executable, model=str(options.model), command=command, presets=PRESETS,
            count=str(folder / "count"), others=_others(options),
            router=[] if options.llama_server else _router(command),
        )
    )  # fmt: skip
    wrapper.chmod(0o755)
    report = folder / "report.xml"
    (folder / "header_names.py").write_text(HEADER_NAMES)
    _fill_cache(folder / "hub", options.model)
    (options.suite / "tmp").mkdir(exist_ok=True)  # the tests write into what is the cache there
    environment = os.environ | {
        "LLAMA_SERVER_BIN_PATH": str(wrapper),
        "LLAMA_CACHE": str(folder / "hub"),
        "PYTHONPATH": os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH")))),
    }
    if options.llama_server:
        environment["LD_LIBRARY_PATH"] = str(options.llama_server.resolve().parent)
    chosen = ["-k", options.k] if options.k else []
    if options.passed_in:
        chosen += _passed(options.passed_in)
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "header_names",
         "--tb=short",
         f"--junitxml={report}", "-o", "junit_family=xunit1", *chosen],
        cwd=options.suite,
        env=environment,
        check=False,
    )  # fmt: skip
    return _outcomes(report)


def _others(options: argparse.Namespace) -> list[tuple[str, str]]:
    """Part of a name, and what stands in for that model."""
    named = (("bert-bge-small", options.encoder), ("jina-reranker", options.reranker))
    return [(name, str(path.resolve())) for name, path in named if path]


def _router(command: list[str]) -> list[str]:
    """The command for a router: the one whose models are slow to load and to answer."""
    slow = Path(__file__).with_name("slow_router.py")
    return [command[0], str(slow), "serve"] if command[1:] == ["-m", "headstart"] else command


def _fill_cache(cache: Path, model: Path) -> None:
    for repo, file in CACHED.items():
        folder = cache / ("models--" + repo.replace("/", "--"))
        revision = "0" * 40
        for path in (folder / "refs", folder / "blobs", folder / "snapshots" / revision):
            path.mkdir(parents=True)
        (folder / "refs" / "main").write_text(revision)
        (folder / "snapshots" / revision / file).symlink_to(model)


def _passed(outcomes: Path) -> list[str]:
    """What pytest calls the tests that passed."""
    passed = [name for name, kind in json.loads(outcomes.read_text()).items() if kind == "passed"]
    return [name.replace(".", "/", 1).replace("::", ".py::", 1) for name in passed]


def _outcomes(report: Path) -> dict[str, str]:
    import xml.etree.ElementTree as ElementTree

    outcomes = {}
    for case in ElementTree.parse(report).iter("testcase"):
        kinds = {child.tag for child in case}
        outcome = next((k for k in ("skipped", "failure", "error") if k in kinds), "passed")
        outcomes[f"{case.get('classname')}::{case.get('name')}"] = outcome
    return outcomes


def compare(theirs: Path, ours: Path) -> int:
    """Print what passes there and not here, and the share of those that pass here too."""
    there, here = (json.loads(path.read_text("utf-8")) for path in (theirs, ours))
    passed = [name for name, outcome in there.items() if outcome == "passed"]
    missing = [name for name in passed if here.get(name) != "passed"]
    for name in missing:
        print(name, here.get(name, "not run"))
    print(f"{len(passed) - len(missing)} of {len(passed)} tests that pass there pass here")
    return 0


def _demo() -> Path:
    return Path(__file__).parents[2] / "src" / "headstart" / "app" / "demo" / "demo-target.gguf"


if __name__ == "__main__":
    raise SystemExit(main())
