"""Answers go on: in another conversation, after a reload, when the server comes back."""

from __future__ import annotations

from tests.page.support import Window, worker_that_writes, writes
from tests.server.serving import serving


def test_an_answer_goes_on_while_another_conversation_is_open(window: Window) -> None:
    worker = worker_that_writes("Half of it", hold=True)
    window.expected = ("404 (Not Found)",)
    with serving(worker) as client:
        window.open(str(client.base_url))
        page = window.page
        window.ask("First question", wait=False).get_by_text("Half of it").wait_for()
        page.get_by_role("button", name="New conversation").click()
        page.locator("#welcome").wait_for()
        worker.script = writes("Something else")
        assert "Something else" in window.ask("Second question").inner_text()
        assert worker.cancelled.empty()
        page.get_by_role("button", name="First question", exact=True).click()
        running = page.locator(".message.assistant.running", has_text="Half of it")
        running.wait_for()
        page.get_by_role("button", name="Stop", exact=True).click()
        assert worker.cancelled.get(timeout=10)
        assert "Stopped." in window.answer().inner_text()


def test_a_deleted_conversation_takes_its_running_answer_with_it(window: Window) -> None:
    worker = worker_that_writes("Half of it", hold=True)
    window.expected = ("404 (Not Found)",)
    with serving(worker) as client:
        window.open(str(client.base_url))
        page = window.page
        window.ask("First question", wait=False).get_by_text("Half of it").wait_for()
        page.get_by_role("button", name="More on First question").click()
        page.get_by_role("menuitem", name="Delete").click()
        assert worker.cancelled.get(timeout=10)
        page.locator("#welcome").wait_for()
        page.reload()
        page.wait_for_selector("body[data-ready]")
        assert page.locator("#conversations li").count() == 0


def test_what_is_sent_meanwhile_is_asked_when_the_answer_is_over(window: Window) -> None:
    worker = worker_that_writes("Done.", hold=True)
    with serving(worker) as client:
        window.open(str(client.base_url))
        page = window.page
        window.ask("First question", wait=False).get_by_text("Done.").wait_for()
        window.ask("Second question", wait=False)
        page.locator("#queued", has_text="Second question").wait_for()
        assert len(worker.requests) == 1
        worker.go_on()
        page.locator(".message.user", has_text="Second question").wait_for()
        assert "Done." in window.answer().inner_text()
        assert not page.locator("#queued").is_visible()
        assert b"Second question" in bytes(worker.requests[1].prompt)


def test_what_is_queued_comes_back_into_the_field_when_the_answer_is_stopped(
    window: Window,
) -> None:
    window.expected = ("404 (Not Found)",)
    with serving(worker_that_writes("Half of it", hold=True)) as client:
        window.open(str(client.base_url))
        page = window.page
        window.ask("First question", wait=False).get_by_text("Half of it").wait_for()
        window.ask("Second question", wait=False)
        page.locator("#queued", has_text="Second question").wait_for()
        page.keyboard.press("Escape")
        window.until("document.querySelector('#prompt').value === 'Second question'")
        assert not page.locator("#queued").is_visible()
