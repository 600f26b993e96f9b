"""Slot files over HTTP: where each tenant's are, and how many there may be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.server.fake_worker import FakeWorker
from tests.server.serving import serving

from headstart.config import ServerConfig
from headstart.types.errors import RequestError
from headstart.types.request import Event, ReplyEvent, SlotAction

MIB = 2**20


class SlotWorker(FakeWorker):
    """Saves a MiB, and restores what there is."""

    def submit(self, request: Any, deliver: Any) -> None:
        assert isinstance(request, SlotAction)
        path = Path(request.path)
        event: Event | RequestError = ReplyEvent(request.request_id, (1, MIB, 0.0))
        if request.action == "save":
            path.write_bytes(bytes(MIB))
        elif not path.exists():
            event = RequestError(f"{path.name} does not exist")
        deliver(event)


def act(client: httpx2.Client, action: str, name: str, **headers: str) -> httpx2.Response:
    body = {"filename": name}
    return client.post(f"/slots/0?action={action}", json=body, headers=headers)


def config(folder: Path, **settings: Any) -> ServerConfig:
    return ServerConfig(slot_save_path=str(folder), **settings)


@pytest.mark.parametrize(
    ("settings", "first", "second"),
    [
        ({"api_key": "a,b"}, {"x-api-key": "a"}, {"x-api-key": "b"}),
        (
            {"api_key": "a", "tenant_header": "x-tenant"},
            {"x-api-key": "a", "x-tenant": "1"},
            {"x-api-key": "a", "x-tenant": "2"},
        ),
    ],
)
def test_tenants_do_not_see_each_others_files(tmp_path, settings, first, second):
    with serving(SlotWorker(), config(tmp_path, **settings)) as client:
        assert act(client, "restore", "it", **first).status_code == 400
        assert act(client, "save", "it", **first).status_code == 200
        assert act(client, "restore", "it", **first).status_code == 200
        assert act(client, "restore", "it", **second).status_code == 400
        assert act(client, "save", "it", **second).status_code == 200
    assert len(list(tmp_path.glob("*/it"))) == 2
    assert not (tmp_path / "it").exists()


@pytest.mark.parametrize(("key", "headers"), [(None, {}), ("a", {"x-api-key": "a"})])
def test_a_single_tenants_files_are_in_the_folder_itself(tmp_path, key, headers):
    with serving(SlotWorker(), config(tmp_path, api_key=key)) as client:
        assert act(client, "save", "it", **headers).status_code == 200
    assert [one.name for one in tmp_path.iterdir()] == ["it"]


def test_new_names_are_limited_and_old_ones_are_not(tmp_path):
    with serving(SlotWorker(), config(tmp_path, api_key="a,b", tenant_slot_files=2)) as client:
        a, b = {"x-api-key": "a"}, {"x-api-key": "b"}
        assert [act(client, "save", name, **a).status_code for name in "123"] == [200, 200, 429]
        message = act(client, "save", "3", **a).json()["error"]["message"]
        assert "you have 2 slot files and may have 2" in message
        assert "--tenant-slot-files" in message
        assert act(client, "save", "2", **a).status_code == 200
        assert act(client, "save", "3", **b).status_code == 200
    assert len(list(tmp_path.glob("*/*"))) == 3


def test_bytes_are_limited(tmp_path):
    with serving(SlotWorker(), config(tmp_path, tenant_slot_files_mb=2)) as client:
        assert [act(client, "save", name).status_code for name in "123"] == [200, 200, 429]
        assert "2 MiB" in act(client, "save", "3").json()["error"]["message"]
        assert act(client, "save", "1").status_code == 200
