"""Run llama-server's own test suite, unmodified and offline, against a server.

    python -m scripts.llama_server_suite SERVER SUITE [--out FILE] [-k WORDS]
    python -m scripts.llama_server_suite --compare THEIRS OURS

SERVER is llama-server's binary or a command ("python -m headstart"), SUITE the folder
tools/server/tests of a llama.cpp source tree. The suite finds its models in a cache of the hub, in
which the demo models and tiny generated ones stand under the names that it asks for; a test that
wants the text of a certain model, or downloads one, fails with any server; images that tests
download are random pixels. `--compare` prints what
passes in one file of outcomes and not in another. The packages that the suite needs are installed
into build/llama_server_suite once.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from xml.etree import ElementTree

from tests.images import picture, projector
from tests.models import tiny_bert

ROOT = Path(__file__).parents[1]
DEMO = ROOT / "src" / "headstart" / "app" / "demo"
ENVIRONMENT = ROOT / "build" / "llama_server_suite"
# repository -> files, and the model that stands in for each
MODELS = {
    "ggml-org/test-model-stories260K": {"stories260K-F32.gguf": "demo-target"},
    "ggml-org/test-model-stories260K-infill": {"stories260K-infill-F32.gguf": "demo-target"},
    "ggml-org/tinygemma3-GGUF": {
        "tinygemma3-Q8_0.gguf": "demo-target",
        "mmproj-tinygemma3.gguf": "projector",
    },
    "ggml-org/stories15M_MOE": {"stories15M_MOE-F16.gguf": "demo-target"},
    "ggml-org/models": {
        "tinyllamas/stories260K.gguf": "demo-target",
        "bert-bge-small/ggml-model-f16.gguf": "encoder",
        "jina-reranker-v1-tiny-en/ggml-model-f16.gguf": "reranker",
    },
}
DOWNLOADED = {"stories15M-q4_0.gguf": "demo-draft"}  # what the suite keeps in its folder tmp

# a plugin of pytest: what tests fetch from the hub
IMAGES = """
import pathlib, requests

def get(url, *others, **fields):
    file = pathlib.Path(url.rpartition("/")[2])
    if not file.exists():
        return fetch(url, *others, **fields)
    answer = requests.Response()
    answer.status_code, answer._content = 200, file.read_bytes()
    return answer

fetch, requests.get = requests.get, get
"""


def main() -> int:
    """Write {test: outcome}, or compare two such files."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("server", nargs="?")
    parser.add_argument("suite", type=Path, nargs="?")
    parser.add_argument("--out", type=Path, default=Path("outcomes.json"))
    parser.add_argument("-k", default="")
    parser.add_argument("--compare", type=Path, nargs=2)
    options = parser.parse_args()
    if options.compare:
        return compare(*options.compare)
    with tempfile.TemporaryDirectory() as folder:
        outcomes = run(options.server, options.suite.resolve(), Path(folder), options.k)
    options.out.write_text(json.dumps(outcomes, indent=1, sort_keys=True), "utf-8")
    kinds = sorted(set(outcomes.values()))
    print({kind: list(outcomes.values()).count(kind) for kind in kinds})
    return 0


def run(server: str, suite: Path, folder: Path, words: str) -> dict[str, str]:
    """The outcome of each test; a skipped one is skipped by its author."""
    wrapper, report = folder / "llama-server", folder / "report.xml"
    wrapper.write_text(f'#!/bin/sh\nexec {shlex.join(_absolute(server))} "$@"\n')
    wrapper.chmod(0o755)
    models = {path.stem: path for path in DEMO.glob("*.gguf")} | {
        "encoder": tiny_bert(folder / "encoder.gguf"),
        "reranker": tiny_bert(folder / "reranker.gguf", ranks=True),
        "projector": projector(folder / "projector.gguf", "gemma3", 256),
    }
    for repository, files in MODELS.items():
        _cache(folder / "hub", repository, {name: models[m] for name, m in files.items()})
    place = folder / "tools" / "server" / "tests"  # its templates are looked for from here
    shutil.copytree(suite, place, ignore=shutil.ignore_patterns("__pycache__", "tmp"))
    (folder / "models").symlink_to(suite.parents[2] / "models")
    (place / "tmp").mkdir()
    (place / "images_of_hub.py").write_text(IMAGES)
    for seed, name in enumerate(("11_truck.png", "91_cat.png")):
        (place / name).write_bytes(picture(seed, 32, 32))
    for name, model in DOWNLOADED.items():
        (place / "tmp" / name).symlink_to(models[model])
    environment = os.environ | {
        "LLAMA_SERVER_BIN_PATH": str(wrapper),
        "LLAMA_CACHE": str(folder / "hub"),
        "HEADSTART_CACHE": str(folder / "cache"),
        "LLAMA_ARG_OFFLINE": "1",
        "PORT": str(_port()),
        "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT))),
    }
    pytest = [str(_python(suite)), "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short"]
    pytest += ["-p", "images_of_hub"]
    chosen = ["-k", words] if words else []
    subprocess.run(
        [*pytest, f"--junitxml={report}", "-o", "junit_family=xunit1", *chosen],
        cwd=place,
        env=environment,
        check=False,
    )
    outcomes = {}
    for case in ElementTree.parse(report).iter("testcase"):
        found = {child.tag for child in case}
        outcome = next((k for k in ("skipped", "failure", "error") if k in found), "passed")
        outcomes[f"{case.get('classname')}::{case.get('name')}"] = outcome
    return outcomes


def _port() -> int:
    """The suite's own, which some of its tests expect, unless another server listens there."""
    with socket.socket() as found:
        is_free = bool(found.connect_ex(("127.0.0.1", 8080)))
    if is_free:
        return 8080
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _absolute(server: str) -> list[str]:
    command, *rest = shlex.split(server)
    return [str(Path(shutil.which(command) or command).absolute()), *rest]


def _cache(hub: Path, repository: str, files: dict[str, Path]) -> None:
    """Put files into a cache of the hub."""
    folder, revision = hub / ("models--" + repository.replace("/", "--")), "0" * 40
    for path in (folder / "refs", folder / "blobs"):
        path.mkdir(parents=True)
    (folder / "refs" / "main").write_text(revision)
    for name, model in files.items():
        path = folder / "snapshots" / revision / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(model)


def _python(suite: Path) -> Path:
    """The interpreter of an environment with the suite's packages."""
    python = ENVIRONMENT / "bin" / "python"
    if not python.exists():
        venv.create(ENVIRONMENT, with_pip=True)
        pip = [python, "-m", "pip", "install", "-q", "-r", suite / "requirements.txt"]
        subprocess.run(pip, check=True)
    return python


def compare(theirs: Path, ours: Path) -> int:
    """Print what passes there and not here, and how much passes in both."""
    there, here = (json.loads(path.read_text("utf-8")) for path in (theirs, ours))
    passed = [name for name, outcome in there.items() if outcome == "passed"]
    missing = [name for name in passed if here.get(name) != "passed"]
    for name in missing:
        print(name, here.get(name, "not run"))
    print(f"{len(passed) - len(missing)} of {len(passed)} tests that pass there pass here")
    return 0


if __name__ == "__main__":
    sys.exit(main())
