"""The environment of programs: without keys and tokens, unless requested."""

from __future__ import annotations

import os
import re

SHARED = re.compile(
    "PATH|HOME|USER|LOGNAME|SHELL|TERM|LANG|LANGUAGE|LC_.*|TZ|TMPDIR|XDG_.*|LD_LIBRARY_PATH|"
    # how docker, podman and ssh reach other machines
    "DOCKER_.*|CONTAINER_.*|SSH_AUTH_SOCK"
)


def shared_environment() -> dict[str, str]:
    """The variables that commands, container programs and MCP servers inherit."""
    return {name: value for name, value in os.environ.items() if SHARED.fullmatch(name)}
