"""The `headstart` command: finds a subcommand, runs it, prints our errors as one line.

Exit codes: 0 done, 1 failed (as in llama-server), 130 interrupted.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

from headstart.types.errors import ConfigError, HeadstartError, closest

if TYPE_CHECKING:
    from headstart.app.cli.command import Command

COMMANDS = {
    "serve": "start the server",
    "generate": "continue a prompt and show which tokens were drafted",
    "bench": "measure what drafts give on this machine",
    "backend": "download libllama for this machine, so that nothing is compiled",
    "verify": "compare texts with speculation and without, on this machine",
    "devices": "list what libllama can compute on",
    "router": "pass requests to several servers",
    "cluster": "start replicas on Ray Serve, as many as the load needs",
    "rpc-worker": "compute part of a model for a server on another machine",
    "rpc-build": "build what --rpc needs where libllama came without it",
    "cache": "list or remove the prompts on this disk",
    "distill": "tune a draft model on recorded texts, where that pays",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return _dispatch(arguments)
    except HeadstartError as error:
        print(f"headstart: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        sys.stderr.close()  # the reader left; the interpreter must not complain about it at exit
        return 1
    except OSError as error:  # of a file that the caller named, or the system's
        if error.errno is None:  # Python's own, such as that of a wait: our fault
            raise
        print(f"headstart: error: {error}", file=sys.stderr)
        return 1


def _dispatch(arguments: list[str]) -> int:
    command = arguments[0] if arguments else "--help"
    if command in ("-h", "--help", "--usage", "help"):
        if not arguments[1:]:
            print(_help())
            return 0
        command, arguments = arguments[1], [arguments[1], "--help"]
    if command in ("-V", "version"):
        command, arguments = "--version", ["--version"]
    as_llama_server = command.startswith("-")
    if as_llama_server:
        command, arguments = "serve", ["serve", *arguments]
    if command.lower().endswith(".gguf"):
        command, arguments = "serve", ["serve", "--model", *arguments]
    # imported here: the engine process imports this module if the command is a script
    from headstart.app.cli.command import PageRequested

    if command not in COMMANDS:
        raise ConfigError(
            f"there is no command {command!r}{closest(command, COMMANDS)} (all commands: headstart "
            "--help)"
        )
    try:
        if as_llama_server:
            from headstart.app.cli.serve import AS_LLAMA_SERVER

            return AS_LLAMA_SERVER(arguments[1:])
        return find_command(command)(arguments[1:])
    except PageRequested as page:
        print(page)
        return 0


def find_command(name: str) -> Command:
    """The command of a name."""
    module = f"headstart.app.cli.{name}"
    if find_spec(module) is None:
        own = {"rpc-worker": "rpc.worker", "rpc-build": "rpc.build"}
        module = f"headstart.extras.{own.get(name, f'{name}.command')}"
    command: Command = importlib.import_module(module).COMMAND
    return command


def _help() -> str:
    commands = "\n".join(f"  {name:<10} {about}" for name, about in COMMANDS.items())
    return f"""Usage: headstart COMMAND [flags], or headstart model.gguf [flags] to serve a model

Serve GGUF language models with speculative decoding: the same text, sooner.

Commands
{commands}

headstart COMMAND --help lists the flags of a command; headstart --version the versions.
Try: headstart serve"""
