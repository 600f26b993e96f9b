"""A setting that nobody reads is a promise that nobody keeps."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import get_type_hints

from tests.rules.source import PACKAGE

from headstart.config import Config

READ_TOGETHER = {
    "draft_engine": "laid over the target's settings as a whole",
    "chat": "read through the methods of its class",
    "sampling": "become the defaults of request fields of the same name",
}


def test_every_setting_is_read_outside_config_and_command_line() -> None:
    readers = [
        path.read_text("utf-8")
        for path in PACKAGE.rglob("*.py")
        if path.parent.name not in ("cli", "config") or path.name == "logs.py"
    ]
    text = "\n".join(readers)
    unread = [
        f"{part}.{field.name}"
        for part, kind in get_type_hints(Config).items()
        for field in fields(kind)
        if part not in READ_TOGETHER
        # a field of requests may have the same name
        and not re.search(rf"(?<!body)(?<!request)(?<!defaults)\.{field.name}\b", text)
    ]
    assert unread == []
