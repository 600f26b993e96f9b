from __future__ import annotations

import asyncio
from collections.abc import Coroutine

import pytest
from tests.planted import noted
from tests.unit.gateway.router.fakes import FakeChildren, estimates, loaded, pool_of, preset, use

from headstart.gateway.router.pooled_model import LOADED, SLEEPING, UNLOADED, PooledModel
from headstart.gateway.router.presets import Estimate
from headstart.types.errors import BackendError, CapacityError, ModelError


@pytest.fixture
async def children() -> FakeChildren:
    return FakeChildren()


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def no_size(preset: object) -> Estimate:
    return Estimate({})


async def begun(asking: Coroutine[None, None, PooledModel]) -> asyncio.Task[PooledModel]:
    """A request that waits for what it needs."""
    task = asyncio.create_task(asking)
    await settle()
    return task


async def test_requests_for_a_model_that_is_loading_wait_together(children) -> None:
    pool = pool_of(children, "a")
    await asyncio.gather(*(pool.acquire(pool.models["a"]) for _ in range(5)))
    assert children.log == ["a started"]
    assert pool.models["a"].num_requests == 5


async def test_the_model_used_longest_ago_is_unloaded_for_another(children) -> None:
    pool = pool_of(children, "a", "b", "c", max_models=2)
    await use(pool, *"abac")
    assert loaded(pool) == {"a", "c"}
    assert children.log.index("b ended") < children.log.index("c started"), "before loading"


async def test_a_model_that_answered_last_is_not_the_one_used_longest_ago(children) -> None:
    """Issue 28, point 17: the end of a request is use as well as its beginning."""
    pool = pool_of(children, "a", "b", "c", max_models=2)
    await pool.acquire(pool.models["a"])
    await use(pool, "b")
    pool.release(pool.models["a"])
    await use(pool, "c")
    assert loaded(pool) == {"a", "c"}


async def test_a_request_that_only_reads_state_is_no_use_of_a_model(children) -> None:
    pool = pool_of(children, "a", "b", "c", max_models=2)
    await use(pool, *"ab")
    await pool.acquire(pool.models["a"], wakes=False)
    pool.release(pool.models["a"], is_use=False)
    await use(pool, "c")
    assert loaded(pool) == {"b", "c"}


async def test_a_model_that_never_comes_to_rest_gives_way_at_last(children, monkeypatch) -> None:
    pool = pool_of(children, "a", "b", max_models=1)
    a = pool.models["a"]
    await pool.acquire(a)
    other = await begun(use(pool, "b"))
    await use(pool, "a")  # nobody has waited for long
    monkeypatch.setattr("headstart.gateway.router.pool.PATIENCE", 0.0)
    pool._advance()
    late = await begun(use(pool, "a"))
    assert (loaded(pool), late.done()) == ({"a"}, False), "who is answered stays, who comes waits"
    pool.release(pool.models["a"])
    await other
    await late
    assert children.log == ["a started", "a ended", "b started", "b ended", "a started"]


async def test_who_gives_up_waiting_gives_the_model_back(children, monkeypatch) -> None:
    monkeypatch.setattr("headstart.gateway.router.pool.PATIENCE", 0.0)
    pool = pool_of(children, "a", "b", max_models=1)
    await pool.acquire(pool.models["a"])
    waiting = await begun(use(pool, "b"))
    late = await begun(use(pool, "a"))
    assert not late.done()
    waiting.cancel()
    await late
    assert loaded(pool) == {"a"}


async def test_many_that_wait_for_one_model_cost_one_other(children) -> None:
    pool = pool_of(children, "a", "b", "c", max_models=2)
    await use(pool, "b")
    await pool.acquire(pool.models["a"])
    await asyncio.gather(*(use(pool, "c") for _ in range(3)))
    pool.release(pool.models["a"])
    await settle()
    assert loaded(pool) == {"a", "c"}


async def test_who_waits_is_served_in_the_order_of_arrival(children) -> None:
    pool = pool_of(children, "a", "b", "c", max_models=1)
    await pool.acquire(pool.models["a"])
    tasks = [await begun(use(pool, name)) for name in "bc"]
    pool.release(pool.models["a"])
    await asyncio.gather(*tasks)
    assert [line for line in children.log if "started" in line][1:] == ["b started", "c started"]


async def test_who_leaves_the_queue_costs_no_model(children) -> None:
    pool = pool_of(children, "a", "b", max_models=1)
    await pool.acquire(pool.models["a"])
    (await begun(use(pool, "b"))).cancel()
    await settle()
    pool.release(pool.models["a"])
    await settle()
    assert (loaded(pool), children.log) == ({"a"}, ["a started"])


async def test_models_share_the_bytes_of_a_device(children) -> None:
    pool = pool_of(children, "a", "b", "c", measure=estimates(a=4, b=5, c=6))
    await use(pool, *"ab")
    assert loaded(pool) == {"a", "b"}
    await use(pool, "c")
    assert loaded(pool) == {"a", "c"}, "4 + 6 of 10; without b there was no need for a to go"
    assert children.children["c"].arguments == ("--fit=off",)


async def test_a_model_that_cannot_be_estimated_fails_for_all_who_wait(children) -> None:
    async def measure(preset):
        raise ModelError("the file is damaged")

    pool = pool_of(children, "a", measure=measure)
    results = await asyncio.gather(*(use(pool, "a") for _ in range(2)), return_exceptions=True)
    assert all(isinstance(one, BackendError) and "damaged" in str(one) for one in results)
    assert pool.models["a"].failure


async def test_a_model_that_cannot_be_loaded_says_why_and_may_be_tried_again(children) -> None:
    children.failures["a"] = [{"message": "no tensors"}, None]
    pool = pool_of(children, "a")
    with pytest.raises(BackendError, match="a could not be loaded: no tensors"):
        await use(pool, "a")
    model = pool.models["a"]
    assert (model.status, model.exit_code, model.failure) == (UNLOADED, 2, "no tensors")
    await use(pool, "a")
    assert not model.failure


async def test_models_are_not_loading_while_their_sizes_are_asked_two_at_a_time(children) -> None:
    asked, told = [], asyncio.Event()

    async def measure(preset):
        asked.append(preset.name)
        await told.wait()
        return await estimates(a=1, b=1, c=1)(preset)

    pool = pool_of(children, *"abc", measure=measure)
    waiting = [await begun(use(pool, name)) for name in "abc"]
    assert (pool.models["a"].status, children.log, asked) == (UNLOADED, [], ["a", "b"])
    told.set()
    await asyncio.gather(*waiting)
    assert loaded(pool) == {*"abc"}


async def test_a_damaged_model_costs_no_other_its_place(children) -> None:
    children.failures["b"] = [{"message": "damaged"}]
    pool = pool_of(children, "a", "b")
    await use(pool, "a")
    with pytest.raises(BackendError, match="damaged"):
        await use(pool, "b")
    assert loaded(pool) == {"a"}


async def test_a_model_without_memory_is_loaded_at_the_next_request_with_less_beside_it(children):
    """Where no size is known, all fit by number, and an idle model would be in the way for ever."""
    pool = pool_of(children, "a", "b", "c", measure=no_size)
    await use(pool, *"ab")
    a = children.children["a"]
    a.stop = lambda: None  # it saves its prompts
    children.failures["c"] = [{"message": "no memory"}, None]
    with pytest.raises(BackendError, match=r"no memory; a is unloaded in case .*, try again"):
        await use(pool, "c")
    again = await begun(use(pool, "c"))
    a.end(0)
    await again
    assert loaded(pool) == {"b", "c"}, "one failure, one victim"
    assert children.log[3:] == ["c ended", "a ended", "c started"], "not beside what still ends"


async def test_a_model_that_fails_for_the_same_reason_costs_one_other_until_it_was_loaded(children):
    pool = pool_of(children, *"abcd", measure=no_size)
    await use(pool, *"abc")
    bad = {"message": "bad template"}
    children.failures["d"] = [bad, bad, bad, {"message": "no memory"}, None, bad]
    for staying in ("bc", "bc", "bc", "c"):
        with pytest.raises(BackendError, match="could not be loaded"):
            await use(pool, "d")
        await asyncio.sleep(0)  # what is unloaded ends
        assert loaded(pool) == {*staying}
    await use(pool, "d")
    await pool.unloaded(pool.models["d"])
    with pytest.raises(BackendError, match="bad template; c is unloaded"):
        await use(pool, "d")


async def test_a_request_for_a_model_that_is_ending_waits_for_its_next_start(children) -> None:
    pool = pool_of(children, "a")
    await use(pool, "a")
    pool.unload(pool.models["a"])
    await use(pool, "a")
    assert children.log == ["a started", "a ended", "a started"]


async def test_a_model_that_is_unloaded_while_it_loads_tells_those_who_wait(children) -> None:
    children.gate.clear()
    pool = pool_of(children, "a")
    waiting = await begun(use(pool, "a"))
    pool.unload(pool.models["a"])
    with pytest.raises(BackendError, match="it was unloaded"):
        await waiting
    assert not pool.models["a"].failure


async def test_a_model_that_ends_once_it_is_loaded_is_not_held_by_those_who_waited(children):
    children.gate.clear()
    pool = pool_of(children, "a")
    waiting = await begun(use(pool, "a"))
    children.children["a"].on_state({"state": LOADED, "url": "http://127.0.0.1:1"})
    children.children["a"].end(3)
    with pytest.raises(BackendError, match="ended before it answered"):
        await waiting
    assert pool.models["a"].num_requests == 0


async def test_a_sleeping_model_needs_room_to_wake_up(children) -> None:
    mib = 2**20
    measure = estimates(a=600 * mib, b=600 * mib, usable=1000 * mib)
    pool = pool_of(children, "a", "b", measure=measure)
    await use(pool, "a")
    children.children["a"].on_state({"state": "sleeping"})
    await use(pool, "b")
    assert pool.models["a"].status == SLEEPING, "there is room for both while one sleeps"
    await use(pool, "a")
    assert children.log == ["a started", "b started", "b ended"]
    assert pool.models["a"].status == LOADED


async def test_a_model_that_is_idle_for_its_time_to_live_is_unloaded(children, monkeypatch) -> None:
    timers = noted(monkeypatch, asyncio.get_running_loop(), "call_later")
    a, c = (preset(name, idle_seconds=seconds) for name, seconds in (("a", 0.01), ("c", 9e4)))
    pool = pool_of(children, a, "b", c)
    await use(pool, *"abcccc")
    assert sum(seconds > 8e4 for seconds, *_ in timers) == 1, "not one per request"
    while loaded(pool) != {"b", "c"}:
        await asyncio.sleep(0.001)
    pool = pool_of(children, preset("d", idle_seconds=60))
    monkeypatch.setattr(pool, "_clock", lambda: 1000.0)
    await pool.acquire(model := pool.models["d"], wakes=False)  # as by GET /props?model=d
    pool.release(model, is_use=False)
    await asyncio.sleep(0.01)
    assert loaded(pool) == {"d"}


async def test_a_reload_unloads_what_has_changed_and_forgets_what_is_gone(children) -> None:
    pool = pool_of(children, "a", "b", "c")
    await use(pool, *"abc")
    await pool.reload([preset("a"), preset("b", arguments=("--x=1",)), preset("d")])
    assert (set(pool.models), loaded(pool)) == ({"a", "b", "d"}, {"a"})
    assert pool.models["b"].preset.ini == "[b]\nx = 1\n"


@pytest.mark.parametrize("is_loading", [False, True])
async def test_a_request_during_a_reload_has_the_model_with_its_new_settings(children, is_loading):
    children.gate.clear() if is_loading else None
    pool = pool_of(children, "a")
    early = await begun(use(pool, "a"))
    reload = asyncio.create_task(pool.reload([preset("a", arguments=("--x=1",))]))
    while not pool.models["a"].is_stopping:
        await asyncio.sleep(0)
    asking = asyncio.create_task(use(pool, "a"))
    children.gate.set()
    await asyncio.gather(early, reload, asking)
    assert children.log == ["a started", "a ended", "a started"]
    assert pool.models["a"].preset.arguments == ("--x=1",)


async def test_events_tell_what_happens(children) -> None:
    pool = pool_of(children, "a")
    queue = pool.events.listen()
    await use(pool, "a")
    pool.unload(pool.models["a"])
    await settle()
    await pool.close()
    seen = [queue.get_nowait() for _ in range(queue.qsize())]
    assert [one and (one["event"], one["data"]["status"]) for one in seen] == [
        ("model_status", "loading"), ("status_change", "loaded"), ("status_change", "unloaded"),
        None,
    ]  # fmt: skip


async def test_events_tell_how_far_a_model_is_loaded_as_llama_server_does(children) -> None:
    children.gate.clear()
    pool = pool_of(children, "a")
    waiting = await begun(use(pool, "a"))
    queue = pool.events.listen()
    pool._on_state(pool.models["a"], {"state": "loading", "progress": 0.25})
    progress = {"stages": ["text_model"], "current": "text_model", "value": 0.25}
    told = queue.get_nowait()
    assert told
    assert told["event"] == "status_change"
    assert told["data"] == {"status": "loading", "progress": progress}
    children.gate.set()
    await waiting
    await pool.close()


async def test_the_end_of_the_router_is_the_end_of_all(children) -> None:
    children.gate.clear()
    pool = pool_of(children, "a")
    waiting = await begun(use(pool, "a"))
    await pool.close()
    with pytest.raises(CapacityError, match="shutting down"):
        await waiting
    with pytest.raises(CapacityError, match="shutting down"):
        await use(pool, "a")
    assert children.log == ["a started", "a ended"]
