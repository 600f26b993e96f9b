"""The page of a router: which model it talks to."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import httpx2
from tests.page.support import Window, expect
from tests.server.server_process import Server, until

from headstart.app import demo

if TYPE_CHECKING:
    from playwright.sync_api import Route

TARGET = demo.path(demo.TARGET)


REMEMBER_STATUS = """globalThis.statuses = [];
new MutationObserver(() => {
  const text = document.querySelector("#status")?.textContent;
  if (text) statuses.push(text);
}).observe(document, { subtree: true, childList: true, characterData: true });"""


def long_answer(route: Route) -> None:
    more = {"ignore_eos": True, "max_tokens": 200}
    route.continue_(post_data=json.dumps(route.request.post_data_json | more))


def router_of(folder: Path, **models: Path) -> Server:
    preset = folder / "models.ini"
    sections = "".join(f"[{name}]\nmodel = {path}\n" for name, path in models.items())
    preset.write_text(f"[*]\nc = 512\nnp = 1\nn = 8\n{sections}")
    return Server(["--models-preset", str(preset)], folder)


def test_a_router_offers_its_models_and_the_page_talks_to_the_chosen_one(window: Window, tmp_path):
    with router_of(tmp_path, one=TARGET, two=TARGET) as server:
        window.open(server.url)
        page = window.page
        chosen = page.locator("#models")
        expect(chosen.locator("option")).to_have_text([re.compile("^one"), re.compile("^two")])
        expect(chosen).to_have_value("one")
        window.ask("def f(")
        page.fill("#prompt", "typed before")
        page.select_option("#models", "two")
        expect(page.locator("#status")).to_have_text("")
        expect(page.locator("#prompt")).to_have_value("typed before")
        window.ask("def g(")
        facts = page.locator(".message.assistant .facts")
        for place, model in enumerate(["one", "two"]):  # each answer names its model
            facts.nth(place).locator("summary").click()
            expect(facts.nth(place).locator("dd").first).to_have_text(model)
        expect(chosen).to_have_value("two")
        listed = httpx2.get(f"{server.url}/models", trust_env=False).json()["data"]
        loaded = {one["id"] for one in listed if one["status"]["value"] == "loaded"}
        assert loaded == {"one", "two"}
        page.focus("#models")
        expect(chosen.locator("option").first).to_have_text("one (loaded)")


def test_a_model_is_changed_while_another_answers_and_both_answers_are_found_again(
    window: Window, tmp_path: Path
) -> None:
    page = window.page
    window.expected = ("503", "404")  # the model is being loaded; it does not have the request yet
    page.route("**/v1/chat/completions", long_answer)
    page.add_init_script(REMEMBER_STATUS)
    with router_of(tmp_path, one=TARGET, two=TARGET) as server:
        window.open(server.url)
        window.ask("def f(", wait=False).locator(".block").first.wait_for()
        page.select_option("#models", "two")
        page.get_by_role("button", name="New conversation").click()
        page.locator("#welcome").wait_for()
        page.fill("#prompt", "def g(")
        page.press("#prompt", "Enter")
        page.locator(".message.assistant").wait_for()
        until(
            lambda: any(
                re.fullmatch(r"two is being loaded… \d+ %", text)
                for text in page.evaluate("globalThis.statuses")
            ),
            "the page says how far the model is loaded",
        )
        window.reload()  # one answer is written, the other waits for its model
        for question, model in (("Def g(", "two"), ("Def f(", "one")):
            page.get_by_role("button", name=question, exact=True).click()
            facts = window.answer().locator(".facts summary")
            expect(facts).to_have_text(re.compile(f"^{model} · 200 tokens"))
        listed = httpx2.get(f"{server.url}/models", trust_env=False).json()["data"]
        assert {one["status"]["value"] for one in listed} == {"loaded"}


def test_a_request_that_is_repeated_goes_to_the_model_that_was_asked(window: Window, tmp_path):
    window.expected = ("ERR_FAILED", "404")  # it did not arrive
    page = window.page
    asked: list[Route] = []

    def answer(route: Route) -> None:
        asked.append(route)
        if len(asked) > 1:
            route.continue_()

    page.route("**/v1/chat/completions", answer)
    with router_of(tmp_path, one=TARGET, two=TARGET) as server:
        window.open(server.url)
        window.ask("def f(", wait=False)
        until(lambda: page.evaluate("true") and bool(asked), "it is on its way")
        page.select_option("#models", "two")
        expect(page.locator("#status")).to_have_text("")
        asked[0].abort()
        expect(window.answer().locator(".facts summary")).to_have_text(re.compile("^one · "))
        assert [route.request.post_data_json["model"] for route in asked] == ["one", "one"]


def test_a_model_that_cannot_be_loaded_leaves_the_choice_of_another(window: Window, tmp_path):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(TARGET.read_bytes()[:100_000])
    window.expected = ("502",)
    page = window.page
    with router_of(tmp_path, broken=broken, one=TARGET) as server:
        page.goto(server.url)
        page.locator("#status", has_text="could not be loaded").wait_for()
        page.select_option("#models", "one")
        expect(page.locator("#speculation")).not_to_be_empty()
        window.ask("def f(")
        window.reload()
        expect(page.locator("#models")).to_have_value("one")


def test_the_list_shows_how_far_a_download_is_and_says_why_one_failed(window: Window, tmp_path):
    coming = {"id": "org/new:Q4", "status": {"value": "downloading"}}
    events = [
        {"event": "download_progress", "data": {"a": {"done": 1, "total": 4}}},
        {"event": "download_progress", "data": {"b": {"done": 2, "total": 8}}},
    ]
    failed = {"event": "download_failed", "model": "org/other:Q4", "data": {"message": "no space"}}
    told = [one | {"model": "org/new:Q4"} for one in events] + [failed]
    page = window.page

    def list_models(route: Route) -> None:
        listed = httpx2.get(f"{server.url}/models", trust_env=False).json()
        route.fulfill(json=listed | {"data": [*listed["data"], coming]})

    body = "".join(f"data: {json.dumps(one)}\n\n" for one in told)
    page.route(re.compile("/models(\\?.*)?$"), list_models)
    page.route("**/models/sse*", lambda route: route.fulfill(body=body))
    with router_of(tmp_path, one=TARGET) as server:
        page.goto(server.url)
        page.get_by_text("org/other:Q4 was not downloaded: no space").first.wait_for()
        window.is_ready()
        last = page.locator("#models option").last
        expect(last).to_have_text("org/new:Q4 (downloading 25 %)")
        expect(last).to_be_disabled()
