"""The documents cover every flag, metric, error and speculator, and their code runs."""

from __future__ import annotations

import inspect
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
from tests.rules.source import ROOT

from headstart.app.cli.settings import all_settings
from headstart.config import ToolsConfig
from headstart.gateway.router.metrics import METRICS as ROUTER_METRICS
from headstart.server.app import endpoints
from headstart.server.extra_routes import endpoints_of, load_extras
from headstart.server.metrics import METRICS
from headstart.speculators import SPECULATORS
from headstart.types import errors

DOCS = ROOT / "docs"
PAGES: dict[str, str] = runpy.run_path(str(DOCS / "generate.py"))["pages"]()
DOCUMENTS = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.glob("*.md"))]
PAGES_OF_FOLDERS = [ROOT / folder / "README.md" for folder in ("benchmarks", "training")]
API = (DOCS / "api.md").read_text("utf-8")
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
ADDRESS = re.compile(r"(?:127\.0\.0\.1|localhost):8080")


def code_blocks() -> list[tuple[str, str]]:
    blocks = []
    for path in DOCUMENTS:
        if path.exists():
            found = BLOCK.findall(path.read_text("utf-8"))
            blocks += [(f"{path.name}-{i}", code) for i, code in enumerate(found, 1)]
    return blocks


def example_files() -> list[Path]:
    return sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.parametrize("name", PAGES)
def test_a_generated_page_is_up_to_date(name: str) -> None:
    path = DOCS / name
    assert path.exists(), "run docs/generate.py"
    assert path.read_text("utf-8") == PAGES[name], "run docs/generate.py"


def test_every_flag_has_its_line() -> None:
    flags = {
        flag
        for row in PAGES["flags.md"].splitlines()
        for flag in re.findall(r"`(--[\w.-]+)`", row.partition(" | ")[0])
    }
    assert {setting.flag for setting in all_settings()} <= flags


def test_every_setting_explains_itself() -> None:
    assert [s.flag for s in all_settings() if not s.option.help] == []


def test_every_metric_has_its_line() -> None:
    names = [one.name for one in METRICS] + [one.name for one in ROUTER_METRICS]
    shown = re.findall(r"^\| `([\w:]+)", PAGES["metrics.md"], re.MULTILINE)
    assert [name for name in names if name not in shown] == []


def test_every_error_class_has_its_line() -> None:
    classes = [
        name
        for name, one in inspect.getmembers(errors, inspect.isclass)
        if one.__module__ == errors.__name__ and name != "HeadstartError"
    ]
    assert [name for name in classes if f"| `{name}` |" not in PAGES["errors.md"]] == []


def test_every_speculator_has_its_line() -> None:
    text = (DOCS / "speculators.md").read_text("utf-8")
    assert [name for name in SPECULATORS if f"`{name}`" not in text] == []


def test_every_reason_for_no_draft_has_its_line() -> None:
    folders = [ROOT / "src/headstart" / name for name in ("scheduler", "speculators")]
    files = [file for folder in folders for file in folder.glob("*.py")]
    files.append(ROOT / "src/headstart/control/model_planner.py")
    code = "\n".join(file.read_text("utf-8") for file in files)
    said = (
        r'(?:reason=|(?:reason|bound) = (?:[^"\n]*, )?|reason\)? or |'
        r'(?:miss|drop|drop_drafts)\([^"\n]*|(?:FAILED|BELOW_BREAK_EVEN|CLOSED|REFUSED) = )'
    )
    reasons = set(re.findall(rf'\b{said}"(\w.+?)"', code))
    assert {
        "no match",
        "outbid",
        "off",
        "illegal under the constraint",
        "control failed",
    } <= reasons
    text = (DOCS / "speculators.md").read_text("utf-8").partition("## Why a step had no draft")[2]
    assert [reason for reason in sorted(reasons) if reason not in text] == []


def test_the_readme_names_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    assert "make serve" in text
    assert "make test" in text


def test_the_readme_promises_the_speeds_of_its_table() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    ratios = [float(line.split("|")[-2].split("±")[0]) for line in text.splitlines() if "±" in line]
    assert f"{min(ratios)} to {max(ratios)} times" in text


def test_the_readme_shows_a_speculator_that_keeps_the_contract(tmp_path: Path) -> None:
    """As a file that `make check` looks at like one of the package."""
    code = (ROOT / "examples/bigram.py").read_text("utf-8")
    assert f"```python\n{code}```" in (ROOT / "README.md").read_text("utf-8")
    check = (
        "\nfrom headstart.testing import check_speculator\n"
        "drafted, accepted = check_speculator(BigramSpeculator)\n"
        "assert drafted > accepted > 0"
    )
    (tmp_path / "bigram.py").write_text(code + check, "utf-8")
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    subprocess.run([sys.executable, tmp_path / "bigram.py"], env=environment, check=True)


def test_links_between_documents_lead_somewhere() -> None:
    broken = [
        f"{path.relative_to(ROOT)}: {target}"
        for path in [*DOCUMENTS, *PAGES_OF_FOLDERS]
        for target in re.findall(r"\]\((?!https?://|#|mailto:)([^)#\s]+)", path.read_text("utf-8"))
        if not (path.parent / target).exists()
    ]
    assert broken == []


def test_links_to_a_heading_lead_to_one() -> None:
    """Anchors as GitHub makes them: small letters, hyphens for spaces, no other marks."""
    broken = []
    for path in [*DOCUMENTS, *PAGES_OF_FOLDERS]:
        for file, anchor in re.findall(r"\]\(([\w./-]*)#([^)\s]+)\)", path.read_text("utf-8")):
            text = ((path.parent / file) if file else path).read_text("utf-8")
            heads = re.findall(r"^#+ (.*)", text, re.MULTILINE)
            if anchor not in [re.sub(r"[^\w -]", "", h).lower().replace(" ", "-") for h in heads]:
                broken.append(f"{path.name}: {file}#{anchor}")
    assert broken == []


def test_the_readme_leads_to_every_document() -> None:
    reached, left = set(), [ROOT / "README.md"]
    while left:
        path = left.pop()
        if path.suffix == ".md" and path.exists() and path not in reached:
            reached.add(path)
            targets = re.findall(r"\]\(([^):#\s]+)", path.read_text("utf-8"))
            left += [(path.parent / target).resolve() for target in targets]
    assert [path.name for path in DOCUMENTS if path not in reached] == []


@pytest.mark.parametrize(("name", "code"), [pytest.param(n, c, id=n) for n, c in code_blocks()])
def test_a_python_block_of_the_documents_runs(name: str, code: str, tmp_path, request) -> None:
    _run(code, tmp_path / f"{name}.py", request)


@pytest.mark.parametrize("path", [pytest.param(p, id=p.name) for p in example_files()])
def test_an_example_runs(path: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    _run(path.read_text("utf-8"), tmp_path / path.name, request)


def _run(code: str, script: Path, request: pytest.FixtureRequest) -> None:
    """Run code in a process of its own; what talks to 127.0.0.1:8080 gets a real server."""
    if ADDRESS.search(code):
        code = ADDRESS.sub(request.getfixturevalue("server_address"), code)
    script.write_text(code, "utf-8")
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    result = subprocess.run(
        [sys.executable, str(script)],
        cwd=script.parent,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.returncode == 0, result.stderr


def test_every_path_has_its_section_with_a_request_an_answer_and_its_errors() -> None:
    sections = dict(re.findall(r"^## (\S+ \S+)\n(.*?)(?=^## |\Z)", API, re.DOTALL | re.MULTILINE))
    every = [
        *endpoints(),
        *endpoints_of(load_extras(ToolsConfig(tools="all", ui_mcp_proxy=True), {})),
    ]
    kinds = re.compile(r":(path|int)(?=\})")
    assert sections.keys() == {
        f"{endpoint.method} {kinds.sub('', endpoint.paths[0])}" for endpoint in every
    }
    for endpoint in every:
        section = sections[f"{endpoint.method} {kinds.sub('', endpoint.paths[0])}"]
        assert all(f"`{path.replace(':path}', '}')}`" in section for path in endpoint.paths[1:])
        assert "    curl " in section
        assert "\nErrors: " in section


def test_a_file_that_is_named_exists() -> None:
    """In documents, docstrings and comments: `scheduler/step.py`, `benchmarks.replay`."""
    texts = [*DOCUMENTS, *PAGES_OF_FOLDERS, *(ROOT / "scripts").glob("*[!.h]")]
    texts += [path for name in ("src", "benchmarks") for path in (ROOT / name).rglob("*.py")]
    stale = []
    for path in filter(Path.is_file, texts):
        text = path.read_text("utf-8")
        names = re.findall(r"(?<![\w./-])((?:[a-z_]+/)+\w+\.py)\b", text)
        modules = re.findall(r"(?<![\w./-])benchmarks(?:\.[a-z]\w*)+(?!\()", text)
        names += [f"{module.replace('.', '/')}.py" for module in modules]
        roots = (ROOT, ROOT / "src", ROOT / "src/headstart", path.parent)
        stale += [
            f"{path.relative_to(ROOT)}: {name}"
            for name in names
            if not any((root / name).exists() for root in roots)
        ]
    assert stale == []
