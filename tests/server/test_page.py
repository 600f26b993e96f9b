"""The page's files: served without a key and before the model, and nothing else with them."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest
from tests.server.serving import serving

from headstart.config import ServerConfig
from headstart.server.page import OUR_PAGE, page_files
from headstart.types.errors import ConfigError

LIBRARIES = json.loads((OUR_PAGE / "vendor/libraries.json").read_text("utf-8"))
SCRIPTS = sorted((OUR_PAGE / "js").glob("*.js"))


def test_the_page_is_served_with_a_policy_that_allows_no_foreign_script(client):
    response = client.get("/")
    policy = response.headers["content-security-policy"]
    assert response.status_code == 200
    assert "<!doctype html>" in response.text
    assert "script-src 'self'" in policy
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert client.get("/js/main.js").headers["content-type"].startswith("text/javascript")


def test_unchanged_files_are_not_sent_again(client):
    tag = client.get("/css/base.css").headers["etag"]
    again = client.get("/css/base.css", headers={"If-None-Match": tag})
    assert (again.status_code, again.content) == (304, b"")
    assert again.headers["etag"] == tag


def test_a_file_that_changes_is_sent_anew_and_one_that_goes_is_not_found(tmp_path):
    file = tmp_path / "index.html"
    file.write_text("before")
    with serving(config=ServerConfig(path=str(tmp_path))) as client:
        first = client.get("/")
        file.write_text("afterwards")
        second = client.get("/", headers={"If-None-Match": first.headers["etag"]})
        assert (first.text, second.text) == ("before", "afterwards")
        file.unlink()
        assert client.get("/").status_code == 404


def test_a_part_of_a_file_is_sent_alone(tmp_path):
    (tmp_path / "small.txt").write_text("0123456789")
    with serving(config=ServerConfig(path=str(tmp_path))) as client:
        part = client.get("/small.txt", headers={"Range": "bytes=2-4"})
    assert (part.status_code, part.text) == (206, "234")


@pytest.mark.parametrize(
    "url", ["/..%2fserver/page.py", "/js/../../config.py", "/%2e%2e/config.py", "/js", "/vendor/"]
)
def test_only_the_listed_files_are_served(client, url):
    assert client.get(url).status_code == 404


def test_without_the_page_the_root_is_not_found():
    with serving(config=ServerConfig(page=False)) as client:
        assert client.get("/").status_code == 404


def test_another_page_is_served_by_its_own_rules(tmp_path):
    (tmp_path / "app").mkdir()
    (tmp_path / "index.html").write_text("<p>mine</p>")
    (tmp_path / "app/index.html").write_text("<p>inner</p>")
    with serving(config=ServerConfig(path=str(tmp_path))) as client:
        assert client.get("/").text == "<p>mine</p>"
        assert client.get("/app/").text == "<p>inner</p>"
        assert "content-security-policy" not in client.get("/").headers
        assert client.get("/js/main.js").status_code == 404


def test_a_path_that_is_no_folder_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="is not a folder"):
        page_files(ServerConfig(path=str(tmp_path / "missing")))


def imports_of(script: Path) -> list[Path]:
    """What a module loads before it runs."""
    text = script.read_text("utf-8")
    names = re.findall(r'^(?:import|export)\b[^";]*"(\.\.?/[^"]+)"', text, re.MULTILINE)
    return [(script.parent / name).resolve() for name in names]


def test_the_page_asks_at_once_for_every_module_that_main_js_imports():
    index = (OUR_PAGE / "index.html").read_text("utf-8")
    named = re.findall(r'(?:modulepreload" href|type="module" src)="([^"]+)"', index)
    needed = [OUR_PAGE / "js/main.js"]
    for script in needed:  # grows meanwhile
        needed += [other for other in imports_of(script) if other not in needed]
    assert sorted(named) == sorted(file.relative_to(OUR_PAGE).as_posix() for file in needed)


def test_every_file_that_the_page_names_exists():
    files = page_files(ServerConfig())
    index = (OUR_PAGE / "index.html").read_text("utf-8")
    named = ["/" + url for url in re.findall(r'(?:href|src)="([^"#]+)"', index)]
    for script in SCRIPTS:
        named += ["/" + file.relative_to(OUR_PAGE).as_posix() for file in imports_of(script)]
    assert [url for url in named if url not in files] == []


def test_nothing_on_the_page_comes_from_elsewhere():
    for file in [*SCRIPTS, *(OUR_PAGE / "css").glob("*.css"), OUR_PAGE / "index.html"]:
        text = file.read_text("utf-8").replace("http://www.w3.org/2000/svg", "")
        assert re.findall(r"(?:https?:)?//[a-z0-9.-]+\.[a-z]{2,}", text) == [], file.name


def test_the_libraries_are_those_of_the_list():
    for library in LIBRARIES:
        assert library["licence"]
        for file in library["files"]:
            data = (OUR_PAGE / "vendor" / file["to"]).read_bytes()
            assert hashlib.sha256(data).hexdigest() == file["sha256"], file["to"]
    listed = {file["to"] for library in LIBRARIES for file in library["files"]}
    present = {path.name for path in (OUR_PAGE / "vendor").iterdir() if path.suffix != ".ts"}
    assert present == listed | {"libraries.json"}
