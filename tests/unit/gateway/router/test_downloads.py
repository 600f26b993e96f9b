"""Downloads through the router: told of, refused, cancelled; and models that are removed."""

from __future__ import annotations

import asyncio

from tests.unit.gateway.router.fakes import FakeStore, cached, loaded, preset, use
from tests.unit.gateway.router.test_app import router

from headstart.gateway.router import downloads

NAME = "org/model:F16"


async def events_of(routed, *, until: str) -> list[dict[str, object]]:
    queue = routed.queue
    found: list[dict[str, object]] = []
    while not found or found[-1]["event"] != until:
        found.append(await asyncio.wait_for(queue.get(), 60))
    return found


async def names(client) -> dict[str, str]:
    listed = (await client.get("/models")).json()["data"]
    return {one["id"]: one["status"]["value"] for one in listed}


async def test_a_download_is_told_of_and_adds_a_model_without_touching_others() -> None:
    presets = [preset("a")]
    store = FakeStore(presets)
    async with router("a", max_models=1, presets=presets, store=store) as routed:
        await use(routed.pool, "a")
        routed.queue = routed.pool.events.listen()
        answer = await routed.client.post("/models", json={"model": NAME})
        assert (answer.status_code, answer.json()) == (200, {"success": True})
        events = await events_of(routed, until="download_finished")
        progress = {"x": {"done": 1, "total": 2}}
        assert {"model": NAME, "event": "download_progress", "data": progress} in events
        assert await names(routed.client) == {"a": "loaded", NAME: "unloaded"}
        again = await routed.client.post("/models", json={"model": NAME})
        assert (again.status_code, "already exists" in again.text) == (400, True)


async def test_what_fails_is_told_with_the_reason() -> None:
    store = FakeStore([])
    store.lines, store.code = [{"error": "the disk is full"}], 1
    async with router(presets=[], store=store) as routed:
        routed.queue = routed.pool.events.listen()
        for name, says in ((None, "user/repo:QUANT"), ("model", "there is no model")):
            answer = await routed.client.post("/models", json={"model": name})
            assert (answer.status_code, says in answer.text) == (400, True)
        await routed.client.post("/models", json={"model": NAME})
        (failed,) = await events_of(routed, until="download_failed")
        assert failed["data"] == {"message": "the disk is full"}
        assert await names(routed.client) == {}


async def test_a_download_can_be_cancelled_and_only_so_many_run_at_once(monkeypatch) -> None:
    monkeypatch.setattr(downloads, "MAX_AT_ONCE", 1)
    store = FakeStore([])
    store.code = None
    async with router(presets=store.presets, store=store) as routed:
        routed.queue = routed.pool.events.listen()
        assert (await routed.client.post("/models", json={"model": NAME})).status_code == 200
        assert await names(routed.client) == {NAME: "downloading"}
        for name, says in ((NAME, "already"), ("org/other", "1 models are being downloaded")):
            answer = await routed.client.post("/models", json={"model": name})
            assert (answer.status_code, says in answer.text) == (400, True)
        assert (await routed.client.delete("/models", params={"model": NAME})).status_code == 200
        events = await events_of(routed, until="model_remove")
        assert "download_failed" in [one["event"] for one in events]
        assert await names(routed.client) == {}


async def test_a_removed_model_is_unloaded_and_gone() -> None:
    presets = [cached(NAME), preset("a")]
    store = FakeStore(presets)
    async with router(cached(NAME), "a", presets=presets, store=store) as routed:
        await use(routed.pool, NAME)
        assert loaded(routed.pool) == {NAME}
        client = routed.client
        assert (await client.delete("/models", params={"model": NAME})).json() == {"success": True}
        assert (store.removed, await names(client)) == ([NAME], {"a": "unloaded"})
        kept = await client.delete("/models", params={"model": "a"})
        assert (kept.status_code, "was not downloaded" in kept.text) == (400, True)
        assert (await client.delete("/models", params={"model": "x"})).status_code == 404
