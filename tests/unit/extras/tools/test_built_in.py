"""The built-in tools, on this machine and through a program that stands in for docker and ssh."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headstart.config import ToolsConfig
from headstart.extras.tools import grep_child, search
from headstart.extras.tools.command import CommandLimits, run_command
from headstart.extras.tools.routes import HostedTools
from headstart.types.errors import ConfigError, HeadstartError

# `docker run --rm -i --cidfile FILE IMAGE sh` and `docker exec -i ID COMMAND...`
FAKE_ENGINE = """#!/bin/sh
if [ "$1" = run ]; then echo c0ffee > "$5"; exec sh; fi
[ "$3" = c0ffee ] || exit 1
shift 3; exec "$@"
"""


def run_tool(
    name: str, _place: Mapping[str, Any] | None = None, _runtime: str = "", **arguments: Any
) -> Any:
    told: list[str] = []

    async def use() -> Any:
        box = HostedTools(ToolsConfig(tools="all", tools_runtime=_runtime or None), {})
        try:
            tool = (await box.tools())[name]
            return await box.call(tool, arguments, told.append, **_place or {})
        finally:
            await box.close()

    return asyncio.run(use())


@pytest.fixture
def engine(tmp_path, monkeypatch):
    """What `docker` runs; gives the name of a runtime that it starts."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "docker").write_text(FAKE_ENGINE)
    (folder / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return "docker:image"


def test_nothing_but_the_loop_asks_how_a_program_ended(monkeypatch):
    """Its exit code is told once: who asks too takes it away."""
    monkeypatch.setattr(subprocess.Popen, "poll", lambda self: pytest.fail("asked"))
    command = run_tool("exec_shell_command", command="exit 3")
    assert command == {"plain_text_response": "\n[exit code: 3]"}


@pytest.mark.parametrize("is_remote", [False, True])
def test_files_are_written_read_edited_and_found(tmp_path, engine, is_remote):
    place, runtime = {"folder": str(tmp_path / "work")}, engine if is_remote else ""
    (tmp_path / "work").mkdir()

    def use(name: str, **arguments: Any) -> Any:
        return run_tool(name, place, runtime, **arguments)

    written = use("write_file", path="a/b.txt", content="one\ntwo\nthree\n")
    assert written == {"result": "file written successfully", "path": "a/b.txt", "bytes": 14}
    assert (tmp_path / "work/a/b.txt").read_text() == "one\ntwo\nthree\n"
    assert use("read_file", path="a/b.txt", start_line=2, end_line=2) == {
        "plain_text_response": "two\n"
    }
    edits = [{"old_text": "two", "new_text": "2"}]
    assert use("edit_file", path="a/b.txt", edits=edits)["edits_applied"] == 1
    found = use("grep_search", path=".", pattern="^2|thr", return_line_numbers=True)
    assert found["plain_text_response"].splitlines()[:2] == ["a/b.txt:2:2", "a/b.txt:3:three"]
    listed = use("file_glob_search", path=".", type="all")
    assert listed["entries"] == [{"path": "a", "type": "dir"}, {"path": "a/b.txt", "type": "file"}]
    command = use("exec_shell_command", command="cat a/b.txt; exit 3")
    assert command == {"plain_text_response": "one\n2\nthree\n\n[exit code: 3]"}
    assert "Linux" in use("get_info")["os"]


@pytest.mark.parametrize("is_remote", [False, True])
def test_a_file_that_cannot_be_written_whole_stays_as_it_is(tmp_path, engine, is_remote):
    file, runtime = tmp_path / "a", engine if is_remote else ""
    file.write_text("old")
    edits = [{"old_text": "old", "new_text": "new" * 2**20}]
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, before[1]))  # as if the disk were full
    try:
        written = run_tool("write_file", None, runtime, path=str(file), content="x" * 2**21)
        edited = run_tool("edit_file", None, runtime, path=str(file), edits=edits)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert written == edited == {"error": f"cannot write {file}"}
    assert file.read_text() == "old"
    assert {one.name for one in tmp_path.iterdir()} == {"a", "bin"}


def test_a_connection_that_breaks_leaves_a_file_as_it_is(tmp_path, engine):
    docker, file = tmp_path / "bin" / "docker", tmp_path / "a"
    docker.write_text(FAKE_ENGINE.replace('exec "$@"', 'head -c 3 | "$@"'))
    file.write_text("old")
    written = run_tool("write_file", None, engine, path=str(file), content="new text")
    assert written == {"error": f"cannot write {file}"}
    assert file.read_text() == "old"


def test_a_written_file_keeps_its_permissions_and_the_links_to_it(tmp_path, engine):
    file, link = tmp_path / "run.sh", tmp_path / "link"
    file.write_text("old")
    file.chmod(0o751)
    link.symlink_to("run.sh")
    assert run_tool("write_file", path=str(link), content="new")["bytes"] == 3
    assert (link.is_symlink(), file.read_text(), file.stat().st_mode & 0o777) == (
        True, "new", 0o751,
    )  # fmt: skip
    for place in (tmp_path / "bin", Path("/dev/null")):  # neither is a file
        assert "cannot write" in run_tool("write_file", path=str(place), content="")["error"]


def running(program: str) -> list[int]:
    """Processes whose command line names the program."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if program.encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="needs a child subreaper")
@pytest.mark.parametrize(
    ("leave", "timeout"),
    [
        ("setsid {0}; true", 1),
        ("setsid -f {0}; sleep 60", 1),
        ("setsid -f {0} > /dev/null 2>&1", 60),
        ("(setsid -f setsid -f {0} &) ; sleep 60", 1),
        ("setsid -f {0}; kill -9 $$", 1),
    ],
)
def test_no_process_of_a_command_survives_it(tmp_path, leave, timeout):
    """Issue 28, point 11."""
    program = tmp_path / "survivor"
    program.write_text("#!/bin/sh\nsleep 50")
    program.chmod(0o755)
    try:
        begin = time.monotonic()
        run_tool("exec_shell_command", command=leave.format(program), timeout=timeout)
        assert time.monotonic() - begin < 10
        assert running(str(program)) == []
    finally:
        for process in running(str(program)):
            os.kill(process, signal.SIGKILL)


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("(sleep 0.5; echo late) & echo begun; exit 4", "begun\nlate\n\n[exit code: 4]"),
        ("exec > /dev/null 2>&1; sleep 0.5; exit 5", "\n[exit code: 5]"),
        ("while kill -USR1 $PPID; do :; done & kill -15 $$", "\n[exit code: -15]"),
    ],
)
def test_output_of_what_a_command_leaves_behind_is_waited_for(command, says):
    assert run_tool("exec_shell_command", command=command) == {"plain_text_response": says}


async def test_a_program_gets_all_of_its_input_though_it_has_closed_its_output(tmp_path):
    command = ("sh", "-c", 'exec > "$0"; cat', str(tmp_path / "a"))
    limits = CommandLimits(seconds=10, output_bytes=10)
    assert (await run_command(command, limits, given=bytes(2**20), merges_errors=False)).is_success
    assert (tmp_path / "a").stat().st_size == 2**20


def test_a_command_does_not_see_the_servers_keys(monkeypatch):
    for name in ("HEADSTART_API_KEY", "HF_TOKEN", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "secret")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    shown = run_tool("exec_shell_command", command="env")["plain_text_response"]
    assert "secret" not in shown
    assert "LC_ALL=C.UTF-8" in shown
    assert f"PATH={os.environ['PATH']}" in shown


def test_a_command_that_takes_too_long_is_killed_with_what_it_started(tmp_path):
    command = f"(sleep 200; touch {tmp_path}/late) & echo begun; sleep 200"
    answer = run_tool("exec_shell_command", command=command, timeout=1)["plain_text_response"]
    assert "begun" in answer
    assert "[exit due to timed out]" in answer


def test_output_beyond_the_limit_is_cut_and_the_command_goes_on(tmp_path):
    command = f"head -c 300000 /dev/zero | tr '\\0' x; touch {tmp_path}/done"
    answer = run_tool("exec_shell_command", command=command)["plain_text_response"]
    assert len(answer) < 17000
    assert "[output truncated]" in answer
    assert (tmp_path / "done").exists()


def test_a_pattern_without_end_ends(monkeypatch, tmp_path):
    (tmp_path / "a").write_text("a" * 60)
    monkeypatch.setattr(search, "GREP_LIMITS", CommandLimits(seconds=0.5, output_bytes=1000))
    failed = run_tool("grep_search", path=str(tmp_path), pattern="(a+)+$x")
    assert "narrow" in failed["error"]


def test_a_search_holds_little_of_a_large_file(tmp_path):
    file = tmp_path / "a"
    with file.open("wb") as writer:
        writer.write(b"one\ntwo\nthree\nfour\n")
        writer.truncate(100 << 20)  # one more line of zeros
    task = {
        "pattern": "two|four", "ignore_case": False, "context": 1, "numbers": True,
        "max_results": 100, "files": [("a", str(file), None)],
    }  # fmt: skip
    limit = partial(resource.setrlimit, resource.RLIMIT_AS, (64 << 20, 64 << 20))
    done = subprocess.run(
        [sys.executable, "-I", grep_child.__file__],
        input=json.dumps(task).encode(),
        capture_output=True,
        preexec_fn=limit,
        check=True,
    )
    lines = done.stdout.split(b"\n")
    assert lines[:6] == [b"a-1-one", b"a:2:two", b"a-3-three", b"--", b"a-3-three", b"a:4:four"]
    assert b"Total matches: 2" in lines


def test_a_large_file_is_read_in_parts_and_whole_in_base64(tmp_path):
    file = tmp_path / "a"
    file.write_text("line\n" * 5000)
    assert "start_line" in run_tool("read_file", path=str(file))["error"]
    lines = run_tool("read_file", path=str(file), start_line=4999, end_line=6000, append_loc=True)
    assert lines == {"plain_text_response": "4999→line\n5000→line\n"}
    whole = run_tool("read_file", {"wants_base64": True}, path=str(file))
    assert whole["size_bytes"] == 25000


@pytest.mark.parametrize("is_remote", [False, True])
def test_lines_of_an_enormous_file_are_read_without_the_rest(tmp_path, engine, is_remote):
    """Issue 28, point 11: reading line 1 took three times the size of the file."""
    file = tmp_path / "a"
    with file.open("wb") as large:
        large.write(b"one\ntwo\n" + b"x" * 20_000 + b"\n")
        large.truncate(2**30)  # a hole, which takes no space

    def read(**arguments: Any) -> str:
        runtime = engine if is_remote else ""
        return run_tool("read_file", None, runtime, path=str(file), **arguments)[
            "plain_text_response"
        ]

    tracemalloc.start()
    assert read(start_line=1, end_line=1) == "one\n"
    assert read(start_line=2, end_line=10**30) == "two\n[output truncated]"
    assert read(start_line=3, end_line=3) == "[output truncated]"
    assert read(start_line=3, end_line=2) == ""
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()


@pytest.mark.parametrize("size", range(16 * 1024 - 2, 16 * 1024 + 3))
@pytest.mark.parametrize("end", ["", "\n", "\nz", "\n\n"])
def test_the_limit_of_an_answer_counts_whole_lines(tmp_path, size, end):
    file, line = tmp_path / "a", "x" * (size - 2)
    file.write_text(f"a\n{line}{end}")
    kept, num_bytes = "", 0
    for text in f"a\n{line}{end}".removesuffix("\n").split("\n"):
        num_bytes += len(text) + 1
        kept += f"{text}\n" if num_bytes <= 16 * 1024 else "[output truncated]"
        if num_bytes > 16 * 1024:
            break
    answer = run_tool("read_file", path=str(file), start_line=1, end_line=9)
    assert answer == {"plain_text_response": kept}


def test_a_file_that_is_too_large_to_read_is_not_cut_by_an_edit(tmp_path):
    file = tmp_path / "a"
    with file.open("wb") as large:
        large.write(b"once")
        large.truncate(2**26 + 1)
    edits = [{"old_text": "once", "new_text": "twice"}]
    failed = run_tool("edit_file", path=str(file), edits=edits)
    assert "more than 64 MiB" in failed["error"]
    assert file.stat().st_size == 2**26 + 1


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({}, "path is missing"),
        ({"path": 1}, "must be of type str"),
        ({"path": "/no/such/file"}, "no such file"),
        ({"path": "/dev/zero"}, "no such file"),
        ({"path": "a\0b"}, "no such file"),
    ],
)
def test_what_cannot_be_read_is_told(arguments, reason):
    assert reason in run_tool("read_file", **arguments)["error"]


@pytest.mark.parametrize(
    ("runtime", "reason"),
    [
        ("ssh:-oProxyCommand=touch x", "invalid ssh target"),
        ("ssh:", "invalid ssh target"),
        ("docker-container:--privileged", "invalid container id"),
        ("docker:image", "container that runs"),
        ("elsewhere:a", "unknown tool runtime"),
    ],
)
def test_a_runtime_is_never_an_option_and_never_this_machine_instead(tmp_path, runtime, reason):
    command = f"touch {tmp_path}/escaped"
    with pytest.raises(HeadstartError, match=reason):
        run_tool("exec_shell_command", {"runtime": runtime}, command=command)
    assert not (tmp_path / "escaped").exists()
    if runtime != "docker:image":
        with pytest.raises(ConfigError, match=reason):
            HostedTools(ToolsConfig(tools_runtime=runtime), {})


def test_only_tools_that_were_named_are_there():
    async def names(config: ToolsConfig) -> list[str]:
        return list(await HostedTools(config, {}).tools())

    assert asyncio.run(names(ToolsConfig(tools="read_file, get_info"))) == ["read_file", "get_info"]
    assert len(asyncio.run(names(ToolsConfig(tools="all")))) == 7
    with pytest.raises(ConfigError, match="use read_file"):
        HostedTools(ToolsConfig(tools="read_files"), {})


@pytest.mark.parametrize("is_remote", [False, True])
def test_a_listing_has_links_to_files_and_names_as_they_are(tmp_path, engine, is_remote):
    work = tmp_path / "work"
    (work / "node_modules/x").mkdir(parents=True)
    for name in ("ü.txt", "a\nb.txt", "node_modules/x/c.txt"):
        (work / name).write_text("here\n")
    (work / "link.txt").symlink_to("ü.txt")
    (work / "loop").symlink_to(".")

    def found(**arguments: Any) -> set[str]:
        place = {"folder": str(work)}
        runtime = engine if is_remote else ""
        answer = run_tool("file_glob_search", place, runtime, **{"path": ".", **arguments})
        return {one["path"] for one in answer["entries"]}

    files = {"ü.txt", "a\nb.txt", "link.txt"}
    assert found() == files
    refused = run_tool("grep_search", path=str(work), pattern="a", exclude="[" * 4097)
    assert "4097 characters, more than 4096" in refused["error"]
    assert found(type="all") == files | {"node_modules", "loop"}
    subprocess.run(["git", "init", "-q", work], check=True)
    (work / ".gitignore").write_text("node_modules\n*.txt\nloop\n")
    # git runs this program for the repository of whoever wrote the folder
    program = f"touch {tmp_path}/ran; false"
    subprocess.run(["git", "-C", work, "config", "core.fsmonitor", program], check=True)
    assert found() == {".gitignore"}
    bare = work / "bare"  # a repository that may come as files of another one
    subprocess.run(["git", "init", "-q", "--bare", bare], check=True)
    for key, value in (("bare", "false"), ("worktree", "."), ("fsmonitor", program)):
        subprocess.run(["git", "config", "-f", bare / "config", f"core.{key}", value], check=True)
    assert "HEAD" in found(path="bare")
    # a listing of the index fetches a folder that a partial clone has left out
    (work / "more").mkdir()
    (work / "more/d.txt").touch()
    script = """
        git config --unset core.fsmonitor
        git add -f more && git -c user.name=a -c user.email=a commit -qm a
        git sparse-checkout set --cone --sparse-index
        folder=$(git rev-parse HEAD:more | sed 's|..|.git/objects/&/|') && rm -f "$folder"
        git config core.repositoryformatversion 1 && git config extensions.partialClone a
        git config remote.a.promisor true && git config remote.a.url ssh://a/a
        git config protocol.ssh.allow always && git config core.sshCommand "$0"
    """
    subprocess.run(["sh", "-ec", script, program], check=True, cwd=work, capture_output=True)
    found()
    assert not (tmp_path / "ran").exists()
