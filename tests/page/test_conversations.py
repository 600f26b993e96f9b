"""Conversations: each with its settings, found again, renamed, exported, cut; and in German."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.images import SOUND_CELLS, picture, projector, wav
from tests.page.support import Window, expect, worker_that_writes
from tests.server.fake_worker import FakeWorker
from tests.server.server_process import Server
from tests.server.serving import serving

from headstart.config import ToolsConfig
from headstart.server.extra_routes import load_extras

if TYPE_CHECKING:
    from playwright.sync_api import Route

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJg"
    "gg=="
)

# a click and messages, all before the page does anything else
CLICK_AND_SAY = """([selector, ...texts]) => {
  document.querySelector(selector).click();
  const field = document.querySelector("#prompt");
  for (const text of texts) { field.value = text; field.form.requestSubmit(); }
}"""


def test_each_conversation_has_its_own_settings_and_presets_fill_them(window: Window) -> None:
    worker = FakeWorker()
    page = window.show(worker)
    page.get_by_role("button", name="Settings", exact=True).click()
    system, temperature = (page.get_by_label("System prompt"), page.locator("#setting-temperature"))
    system.fill("Be brief.")
    temperature.fill("0.25")
    window.ask("First")
    page.get_by_role("button", name="New conversation").click()
    page.locator("#welcome").wait_for()
    expect(system).to_have_value("")
    expect(temperature).to_have_value("")
    window.ask("Second")
    page.get_by_role("button", name="First", exact=True).click()
    page.locator(".message.user", has_text="First").wait_for()
    expect(system).to_have_value("Be brief.")
    expect(temperature).to_have_value("0.25")
    page.evaluate("window.prompt = () => 'brief'")
    page.get_by_role("button", name="Save as…").click()
    page.get_by_role("button", name="New conversation").click()
    page.locator("#welcome").wait_for()
    expect(system).to_have_value("Be brief.")  # new ones have the chosen preset
    page.get_by_label("Preset", exact=True).select_option("")
    expect(system).to_have_value("")
    window.ask("Third")
    sent = [b"Be brief." in bytes(request.prompt) for request in worker.requests]
    assert sent == [True, False, False]
    assert [request.sampling.temperature for request in worker.requests] == [0.25, 0.8, 0.8]


def test_reasoning_can_be_switched_and_bounded(window: Window) -> None:
    bodies: list[Any] = []
    page = window.show()
    page.on(
        "request",
        lambda one: bodies.append(one.post_data_json) if "completions" in one.url else None,
    )
    page.get_by_role("button", name="Settings", exact=True).click()
    page.get_by_label("Reasoning", exact=True).select_option("false")
    page.get_by_label("Most reasoning tokens").fill("0")
    window.ask("Question")
    assert bodies[0]["chat_template_kwargs"] == {"enable_thinking": False}
    assert bodies[0]["reasoning_budget_tokens"] == 0


def test_conversations_are_found_by_what_was_said_in_them(window: Window) -> None:
    page = window.show(worker_that_writes("A needle in it"))
    window.ask("Haystack")
    page.get_by_role("button", name="New conversation").click()
    page.route("**/v1/chat/completions", lambda route: route.fulfill(body="data: [DONE]\n\n"))
    window.ask("Other")
    titles = page.locator("#conversations .title")
    expect(titles).to_have_text(["Other", "Haystack"])
    page.get_by_label("Search").fill("NEEDLE")
    expect(titles).to_have_text(["Haystack"])
    page.get_by_label("Search").fill("nowhere")
    page.get_by_text("Nothing found").wait_for()


def test_a_conversation_is_renamed_and_exported_as_markdown(window: Window, tmp_path: Path) -> None:
    page = window.show(worker_that_writes("It is **bold**."))
    window.ask("What is it?")
    page.get_by_role("button", name="More on What is it?").click()
    page.get_by_role("menuitem", name="Rename").click()
    page.get_by_label("Title").fill("A better title")
    page.get_by_label("Title").press("Enter")
    page.get_by_role("button", name="More on A better title").click()
    with page.expect_download() as download:
        page.get_by_role("menuitem", name="Export as Markdown").click()
    file = tmp_path / "chat.md"
    download.value.save_as(file)
    assert download.value.suggested_filename == "A better title.md"
    text = file.read_text("utf-8")
    assert text == "# A better title\n\n## You\n\nWhat is it?\n\n## tiny\n\nIt is **bold**.\n"
    window.reload()
    page.get_by_role("button", name="A better title", exact=True).wait_for()


def test_a_deleted_message_goes_with_all_that_follows(window: Window) -> None:
    worker = worker_that_writes("Hello")
    page = window.show(worker)
    window.ask("First")
    window.ask("Second")
    messages = page.locator(".message .body > .text")
    second = page.locator(".message.user", has_text="Second")
    second.get_by_role("button", name="Delete").click()
    expect(messages).to_have_text(["First", "Hello"])
    window.reload()
    expect(messages).to_have_text(["First", "Hello"])
    window.ask("Third")
    assert b"Second" not in bytes(worker.requests[-1].prompt)


def test_what_is_said_right_after_a_click_goes_where_the_user_sees_it(window: Window) -> None:
    worker = worker_that_writes("Hello")
    page = window.show(worker)
    window.ask("First")
    window.ask("Second")
    page.evaluate("window.confirm = () => true")
    page.evaluate(CLICK_AND_SAY, [".user:nth-child(3) [aria-label=Delete]", "Third", "Fourth"])
    expect(page.locator(".user .body > .text")).to_have_text(["First", "Third", "Fourth"])
    window.answer()
    page.evaluate(CLICK_AND_SAY, ["#new", "Fifth"])
    expect(page.locator(".user .body > .text")).to_have_text(["Fifth"])
    window.answer()
    prompts = [bytes(request.prompt).decode() for request in worker.requests[2:]]
    said = ("First", "Second", "Third", "Fourth", "Fifth")
    assert [[word for word in said if word in prompt] for prompt in prompts] == [
        ["First", "Third"],
        ["First", "Third", "Fourth"],
        ["Fifth"],
    ]


def test_a_setting_can_be_written_while_an_answer_ends(window: Window) -> None:
    worker = worker_that_writes("Done", hold=True)
    page = window.show(worker)
    window.ask("Go on", wait=False).get_by_text("Done").wait_for()
    page.get_by_role("button", name="Settings", exact=True).click()
    page.get_by_label("System prompt").press_sequentially("Be ")
    with page.expect_response("**/props"):
        worker.go_on()
        window.answer()
    page.keyboard.type("brief.")
    expect(page.get_by_label("System prompt")).to_have_value("Be brief.")


def test_images_go_to_a_model_that_takes_them_and_to_no_other(window: Window, tmp_path) -> None:
    image = tmp_path / "pixel.png"
    image.write_bytes(PIXEL)
    bodies: list[Any] = []

    def answer(route: Route) -> None:
        bodies.append(route.request.post_data_json)
        route.fulfill(body="data: [DONE]\n\n")

    with serving() as client:
        page = window.page
        window.open(str(client.base_url))
        page.set_input_files("#file", image)
        page.get_by_text("pixel.png is an image, and this model takes none").wait_for()
        page.set_input_files("#file", {"name": "a.mp3", "mimeType": "audio/mpeg", "buffer": b"a"})
        page.get_by_text("a.mp3 is a sound, and this model hears none").wait_for()
        props = client.get("/props").json() | {"modalities": {"vision": True}}
        page.route("**/props", lambda route: route.fulfill(json=props))
        page.route("**/v1/chat/completions", answer)
        page.route("**/input_tokens", lambda route: route.fulfill(json={"input_tokens": 20}))
        window.reload()
        page.set_input_files("#file", image)
        page.locator("#attachments .chip", has_text="pixel.png").wait_for()
        window.ask("What is it?")
    picture, text = bodies[0]["messages"][0]["content"]
    assert text == {"type": "text", "text": "What is it?"}
    assert picture["image_url"]["url"].startswith("data:image/png;base64,")


def test_images_and_sounds_are_counted_sent_and_shown_in_the_history(window: Window, tmp_path):
    mmproj = projector(tmp_path / "mmproj.gguf", "janus_pro", 256, hears=True)
    for name, data in (("a.png", picture(1)), ("b.wav", wav(1)), ("c.wav", wav(1)[:50])):
        (tmp_path / name).write_bytes(data)
    with Server(["--mmproj", str(mmproj), "-c", "1024", "-t", "1"], tmp_path) as server:
        page, chips = window.page, window.page.locator("#attachments .chip")
        window.open(server.url)
        counts: list[str] = []
        page.on(
            "request", lambda one: counts.append(one.url) if "input_tokens" in one.url else None
        )
        page.set_input_files("#file", [tmp_path / name for name in ("a.png", "b.wav")])
        expect(chips.first).to_have_text("a.png16 tokens")  # which its cells are
        expect(chips.last).to_have_text(f"b.wav{SOUND_CELLS} tokens")
        window.expected = ("400 (Bad Request)",)
        page.set_input_files("#file", tmp_path / "c.wav")
        expect(chips.last).to_contain_text("a sound takes 0.0 seconds")
        page.get_by_role("button", name="Remove c.wav").click()
        expect(chips).to_have_count(2)
        window.ask("What is it?")
        assert len(counts) == 3 * 2  # each file once, with and without it
        window.reload()
        for element, is_shown in (("img", "naturalWidth > 0"), ("audio", "readyState > 0")):
            expect(page.locator(f".message.user .chip {element}")).to_be_visible()
            window.until(f"document.querySelector('.message.user {element}').{is_shown}")


def test_a_chosen_tool_is_run_when_the_user_says_so(window: Window, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("what the file says")
    function = {"name": "read_file", "arguments": json.dumps({"path": str(tmp_path / "a.txt")})}
    call = {"tool_calls": [{"index": 0, "id": "c", "function": function}]}
    answers = iter([{"content": "Hello."}, call, {"content": "I read it."}])
    bodies: list[Any] = []
    held: list[Route] = []

    def answer(route: Route) -> None:
        bodies.append(route.request.post_data_json)
        chunk = json.dumps({"choices": [{"index": 0, "delta": next(answers)}]})
        route.fulfill(body=f"data: {chunk}\n\ndata: [DONE]\n\n")

    def hold(route: Route) -> None:
        held.append(route) if route.request.method == "POST" else route.continue_()

    with serving(extras=load_extras(ToolsConfig(tools="all", ui_mcp_proxy=True), {})) as client:
        page = window.page
        props = client.get("/props").json() | {"settings": [{"name": "tools", "value": "all"}]}
        page.route("**/props", lambda route: route.fulfill(json=props))
        page.route("**/v1/chat/completions", answer)
        page.route("**/tools", hold)
        window.open(str(client.base_url))
        window.ask("First")
        page.get_by_role("button", name="New conversation").click()
        page.locator("#welcome").wait_for()
        page.get_by_role("button", name="Settings", exact=True).click()
        page.get_by_label("Read file").check()
        window.ask("What does the file say?")
        assert [one["function"]["name"] for one in bodies[1]["tools"]] == ["read_file"]
        run = page.get_by_role("button", name="Run", exact=True)
        run.click()
        expect(run).to_be_disabled()
        page.get_by_role("button", name="First", exact=True).click()
        expect(window.answer()).to_contain_text("Hello.")
        page.get_by_role("button", name="What does the file say?", exact=True).click()
        expect(run).to_be_disabled()  # of the same message, shown anew
        page.get_by_role("button", name="First", exact=True).click()
        expect(window.answer()).to_contain_text("Hello.")
        with page.expect_request("**/v1/chat/completions"):
            held.pop().continue_()
        expect(page.locator(".message")).to_have_count(2)  # it goes on where it was called
        page.get_by_role("button", name="What does the file say?", exact=True).click()
        page.locator(".message.assistant", has_text="I read it.").wait_for()
        assert "what the file says" in bodies[2]["messages"][2]["content"]
        assert bodies[2]["messages"][1]["tool_calls"][0]["id"] == "c"
        assert not held
        page.get_by_text("Result").click()
        expect(page.get_by_text("what the file says")).to_be_visible()


def test_files_are_pasted_and_dropped(window: Window) -> None:
    window.show()
    for kind, selector, field in (
        ("ClipboardEvent", "#prompt", "clipboardData"),
        ("DragEvent", "#chat", "dataTransfer"),
    ):
        window.page.evaluate(
            """([kind, selector, field]) => {
              const data = new DataTransfer();
              data.items.add(new File(["text"], `${field}.txt`, { type: "text/plain" }));
              const name = kind === "DragEvent" ? "drop" : "paste";
              const event = new globalThis[kind](name,
                { [field]: data, bubbles: true, cancelable: true });
              document.querySelector(selector).dispatchEvent(event);
            }""",
            [kind, selector, field],
        )
        window.page.locator("#attachments .chip", has_text=f"{field}.txt").wait_for()


def test_the_page_speaks_the_browsers_language(window: Window, server: Server) -> None:
    browser = window.page.context.browser
    assert browser is not None
    with serving(worker_that_writes("Hallo")) as client:
        context = browser.new_context(locale="de-CH")
        german = Window(context.new_page(), 1)
        german.open(str(client.base_url))
        page = german.page
        expect(page.locator("html")).to_have_attribute("lang", "de")
        page.get_by_role("button", name="Neues Gespräch").wait_for()
        page.get_by_placeholder("Frag etwas").fill("Hallo")
        page.keyboard.press("Enter")
        expect(page.locator(".facts")).to_contain_text("erstes nach")
        german.open(server.url)  # what the server knows of its texts, too
        said = re.compile("weder von Entwürfen noch von anderen Anfragen")
        expect(page.locator("#speculation")).to_have_attribute("title", said)
        context.close()


def test_the_page_says_that_texts_are_recorded(window: Window) -> None:
    def record(route: Route) -> None:
        answer = route.fetch()
        settings = [{"name": "record_texts", "value": "/texts", "origin": "flag"}]
        route.fulfill(response=answer, json=answer.json() | {"settings": settings})

    window.show()
    expect(window.page.locator("#status")).to_be_empty()
    window.page.route("**/props", record)
    window.page.reload()
    expect(window.page.locator("#status")).to_contain_text("may keep prompts and answers")


def test_the_pages_of_the_api_and_the_manifest_are_there(window: Window) -> None:
    with serving() as client:
        page = window.page
        page.goto(f"{client.base_url}/docs")
        window.is_ready()
        row = page.locator("#paths details", has_text="Answer chat messages.")
        row.locator("summary").click()
        expect(row).to_contain_text("most tokens; -1 no limit")
        page.goto(str(client.base_url))
        window.is_ready()
        devtools = page.context.new_cdp_session(page)
        errors = devtools.send("Page.getInstallabilityErrors")["installabilityErrors"]
        assert {one["errorId"] for one in errors} <= {"in-incognito"}  # as windows of tests are
