"""GET /corpus/digest of a real server: which texts drafts may be copied from, by tenant."""

from __future__ import annotations

from collections.abc import Iterator

import httpx2
import pytest
from tests.server.server_process import Server, until

from headstart.structures.passages import Digest, hashes

ARGUMENTS = ("--context", "2048", "--threads", "1", "-np", "2", "--spec-type", "suffix")
CODE = "\n".join(f"def function_{i}(argument):\n    return argument + {i}" for i in range(20))
OTHER = " ".join(f"The number {i} has the square {i * i}." for i in range(40))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    arguments = (*ARGUMENTS, "--api-key", "mine,yours", "--spec-state", "none")
    with Server(arguments, tmp_path_factory.mktemp("cache")) as running:
        yield running


def known(client: httpx2.Client, text: str) -> float:
    digest = Digest.from_json(client.get("/corpus/digest").raise_for_status().json())
    assert digest is not None
    return digest.share_of(hashes(text.encode()))


def test_a_text_is_told_to_its_tenant_once_it_was_answered(server):
    with (
        server.client(Authorization="Bearer mine") as mine,
        server.client(Authorization="Bearer yours") as yours,
    ):
        assert known(mine, CODE) == 0
        body = {"prompt": f"Repeat:\n{CODE}", "max_tokens": 8}
        mine.post("/v1/completions", json=body).raise_for_status()
        until(lambda: known(mine, CODE) > 0.9, "the text is known")
        assert known(yours, CODE) == 0
        yours.post("/v1/completions", json=body | {"prompt": OTHER}).raise_for_status()
        until(lambda: known(yours, OTHER) > 0.9, "the other's is known to the other")
        assert known(mine, OTHER) == 0


def test_a_stranger_is_told_nothing(server):
    response = httpx2.get(f"{server.url}/corpus/digest", trust_env=False)
    assert response.status_code == 401
