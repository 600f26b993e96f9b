"""Every setting has one flag, one environment name and one parser."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from headstart.app.cli.command import COMMON, PageRequested
from headstart.app.cli.main import find_command
from headstart.app.cli.resolve import Resolved, resolve
from headstart.app.cli.serve import COMMAND
from headstart.app.cli.settings import all_settings
from headstart.config import Config
from headstart.types.errors import ConfigError

SETTINGS = all_settings()


def read(*argv: str) -> Resolved:
    return COMMAND.read(argv)


def test_no_two_settings_share_a_spelling() -> None:
    spellings = Counter(name for s in SETTINGS for name in (s.flag, *s.aliases))
    assert [name for name, n in spellings.items() if n > 1] == []


def test_a_spelling_of_llama_servers_is_declared_in_its_table_alone() -> None:
    """One name of a flag links to it where the setting has another; the rest follows."""
    repeated = [
        (setting.name, flag.names)
        for setting in SETTINGS
        for flag in setting.theirs
        if len({setting.flag, *setting.option.aliases}.intersection(flag.names)) > 1
    ]
    assert repeated == []


@pytest.mark.parametrize(
    ("argv", "is_unified"),
    [
        ("-c 4096 -np 4", False),
        ("-c 4096 -np 4 -kvu", True),
        ("-c 4096", True),
        ("-np 4", True),
        ("-c 4096 -np -1", True),
    ],
)
def test_slots_divide_a_context_that_was_given_with_their_number(argv, is_unified) -> None:
    assert read(*argv.split()).config().scheduler.kv_unified is is_unified


def test_nothing_given_is_the_default_config() -> None:
    assert resolve(SETTINGS, []).config() == Config()


@pytest.mark.parametrize(
    ("argv", "part", "name", "value"),
    [
        (["-m", "x.gguf"], "model", "model", "x.gguf"),
        (["--spec-draft-model", "d.gguf"], "model", "draft_model", "d.gguf"),
        (["-ngl", "99"], "engine", "gpu_layers", 99),
        (["-ngl", "all"], "engine", "gpu_layers", -1),
        (["-ngld", "auto"], "draft_engine", "draft_gpu_layers", -1),
        (["-c4096"], "engine", "context", 4096),
        (["--ctx-size=4096"], "engine", "context", 4096),
        (["-fa"], "engine", "flash_attn", "on"),
        (["-fa", "off"], "engine", "flash_attn", "off"),
        (["-fa", "1"], "engine", "flash_attn", "on"),
        (["--no-mmap"], "engine", "mmap", False),
        (["--mlock"], "engine", "mlock", True),
        (["--no-slots"], "server", "slots", False),
        (["-v"], "log", "log_level", "debug"),
        (["--log-verbose"], "log", "log_level", "debug"),
        (["--agent"], "tools", "tools", "all"),
        (["--agent"], "tools", "ui_mcp_proxy", True),
        (["--agent", "-no-ag"], "tools", "tools", ""),
        (["--spec-draft-n-max", "7"], "speculation", "draft_max", 7),
        (["--draft-p-min", "0.5"], "speculation", "draft_p_min", 0.5),
        (["--main-gpu", "-1"], "engine", "main_gpu", -1),
        (["-np", "-1"], "scheduler", "parallel", 4),
        (["-t", "-1"], "engine", "threads", None),
        (["-t", "0"], "engine", "threads", None),
        (["-fitc", "0"], "engine", "fit_ctx", 64),
        (["-fitt", "512,0"], "engine", "fit_target", "512,0"),
        (["-cms", "0"], "scheduler", "checkpoint_min_step", 64),
        (["--cache-reuse", "-1"], "scheduler", "cache_reuse", 0),
        (["--image-max-tokens", "-1"], "images", "image_max_tokens", 0),
        (["-cram", "-1"], "scheduler", "cache_ram", 2**30),  # half of what is free is less
        (["-tb", "-1"], "engine", "threads_batch", None),
        (["-td", "-1"], "draft_engine", "draft_threads", None),
        (["--spec-draft-threads-batch", "3"], "draft_engine", "draft_threads_batch", 3),
        (["--spec-draft-type-k", "q8_0"], "draft_engine", "draft_cache_type_k", "q8_0"),
        (["--spec-draft-type-v", "q8_0"], "draft_engine", "draft_cache_type_v", "q8_0"),
        (["-n", "5"], "sampling", "predict", 5),
        (["--n_predict", "5"], "sampling", "predict", 5),
        (["-s", "42"], "sampling", "seed", 42),
        (["-r", "a", "-r", "b"], "sampling", "reverse_prompt", "a\nb"),
        (["--api-key", "a,b", "--api-key", "c"], "server", "api_key", "a,b,c"),
        (["--lora", "", "--lora", "a", "--lora", "b"], "engine", "lora", "a,b"),
        (["--lora-scaled", "a:1", "--lora-scaled", "b:2"], "engine", "lora_scaled", "a:1,b:2"),
        (["-ot", "a=CPU", "-ot", "b=CPU"], "engine", "override_tensor", "a=CPU,b=CPU"),
        (
            ["-otd", "a=CPU", "-otd", "b=CPU"],
            "draft_engine",
            "draft_override_tensor",
            "a=CPU,b=CPU",
        ),
        (
            ["--override-kv", "a=int:1", "--override-kv", "b=int:2"],
            "engine",
            "override_kv",
            "a=int:1,b=int:2",
        ),
        (["--control-vector", "a", "--control-vector", "b"], "engine", "control_vector", "a,b"),
        (
            ["--control-vector-scaled", "a:1", "--control-vector-scaled", "b:2"],
            "engine",
            "control_vector_scaled",
            "a:1,b:2",
        ),
        (["--spec-type", "suffix", "--spec-type", "mtp"], "speculation", "spec_type", "suffix,mtp"),
        (["-a", "a", "-a", "b"], "model", "alias", "a,b"),
        (["--tags", "a", "--tags", "b"], "model", "tags", "a,b"),
        (["-lv", "1"], "log", "log_level", "error"),
        (["-lm", "mlock"], "engine", "mlock", True),
        (["-lm", "none"], "engine", "mmap", False),
        (["--fim-qwen-7b-spec"], "server", "port", 8012),
        (["--fim-qwen-7b-spec", "--port", "1"], "server", "port", 1),
        (["--no-prefill-assistant"], "chat", "prefill_assistant", False),
        (["--jinja", "-cb", "--no-warmup", "-np", "2"], "scheduler", "parallel", 2),
    ],
)
def test_a_flag_reaches_its_config_field(argv, part, name, value) -> None:
    assert getattr(getattr(read(*argv).config(), part), name) == value


@pytest.mark.parametrize(
    "argv",
    [
        ["--draft-min", "32"],
        ["--draft-min", "16", "--spec", "fixed"],
        ["--draft-min", "99", "--spec", "off"],
        ["--draft-min", "40", "--draft-max", "40"],
    ],
)
def test_the_shortest_draft_may_be_as_long_as_the_longest(argv: list[str]) -> None:
    assert read(*argv).config().speculation.draft_min == int(argv[1])


def test_a_flag_beats_the_environment_beats_the_file_beats_the_default(tmp_path, monkeypatch):
    file = tmp_path / "headstart.toml"
    file.write_text('port = 1\nmax-queue = 1\nparallel = 1\nhost = "::1"\n')
    monkeypatch.setenv("HEADSTART_PORT", "2")
    monkeypatch.setenv("HEADSTART_MAX_QUEUE", "2")
    monkeypatch.setenv("HEADSTART_HOST", "")  # empty is absent
    resolved = read("--config", str(file), "--port", "3")
    names = ("port", "max_queue", "parallel", "host", "timeout")
    assert [resolved.values[n] for n in names] == [3, 2, 1, "::1", 3600]
    origins = [resolved.origins[n] for n in names]
    assert origins == [
        "flag",
        "environment HEADSTART_MAX_QUEUE",
        f"file {file}",
        f"file {file}",
        "default",
    ]


def test_the_printed_config_is_a_config_file_that_gives_the_same_values(tmp_path: Path) -> None:
    resolved = read(
        "--port",
        "3",
        "--no-mmap",
        "--chat-template",
        '{"a": "\\x"}\n\t\x1b\x7f€😀',
        "--draft-p-min",
        "0.25",
    )
    file = tmp_path / "printed.toml"
    file.write_text(resolved.describe())
    assert read("--config", str(file)).values == resolved.values


def test_secrets_are_not_printed() -> None:
    servers = '{"mcpServers": {"a": {"command": "b", "env": {"KEY": "hunter2"}}}}'
    found = read("--api-key", "hunter2", "--hf-token", "hf_hunter2", "--mcp-servers-json", servers)
    for shown in (found.describe(), str(found.in_force())):
        assert "hunter2" not in shown
        assert shown.count("***") == 3


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--draft-mx", "3"], "--draft-max"),
        (["--no-slot"], "--no-slots"),
        (["-ngx", "3"], "-ngl"),
        (["-ctx", "3"], "no flag -ctx"),
        (["model.gguf"], "unexpected argument 'model.gguf'"),
        (["--port", "a"], "--port is 'a' but must be a whole number"),
        (["--draft-p-min", "a"], "must be a number"),
        (["--draft-p-min", "nan"], "--draft-p-min is 'nan' but must be a number"),
        (["--draft-p-min", "inf"], "must be a number"),
        (["--split-mode", "diagonal"], "one of none, layer, row, tensor"),
        (["--port"], "--port"),
        (["--port", "70000"], "from 0 to 65535"),
        (["--port", "-1"], "from 0 to 65535"),
        (["--ctx", "4096"], "did you mean --ctx-size"),
        (["--draft-min", "9", "--draft-max", "8"], "is 9 but no draft is longer than 8 tokens"),
        (["--draft-min", "33"], "no draft is longer than 32 tokens; lower it or raise --draft-max"),
        (["--draft-min", "17", "--spec", "fixed"], "no draft is longer than 16 tokens"),
        (["--batch", "-5"], "at least"),
        (["-ub", "1"], "--ubatch is 1 but must be at least 2, or 0"),
        (["-n", "-9"], "--predict is -9 but must be at least -2"),
        (["--fit-target", "1024,x"], "--fit-target is '1024,x' but must be MiB"),
        (["--draft-m", "3"], "no flag --draft-m"),
        (["--mirostat", "2"], "--mirostat 2 is not supported: Mirostat keeps a state"),
        (["-lv", "9"], "-lv 9 is not supported: use a number from 0 to 5"),
        (["--control-vector-layer-range", "1", "2"], "control vectors apply to all layers"),
        (["--model-url", "u"], "name its repository with --hf-repo"),
    ],
)
def test_a_mistake_is_named(argv: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(*argv).config()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("prot = 1", "did you mean port"),
        ("port = [1]", "port in .* must be a text, a number, true or false"),
        ("api_key = true", "api_key in .* is True but must be a text"),  # not the key "on"
        ("port = true", "must be a whole number"),
        ("port = 70000", "port in .* is 70000 but must be from 0 to 65535"),
        ("draft-p-min = nan", "must be a number"),
        ('mmap = "maybe"', "must be on or off"),
        ("port = ", "not valid TOML"),
    ],
)
def test_a_mistake_in_the_file_is_named(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "headstart.toml"
    file.write_text(content)
    with pytest.raises(ConfigError, match=message):
        read("--config", str(file))


def test_minus_one_is_llama_servers_default_in_the_file_too(tmp_path: Path) -> None:
    file = tmp_path / "headstart.toml"
    file.write_text("threads = -1\nparallel = -1")
    config = read("--config", str(file)).config()
    assert (config.engine.threads, config.scheduler.parallel) == (None, 4)


def test_a_config_file_takes_llama_servers_flags_too(tmp_path: Path) -> None:
    file = tmp_path / "headstart.toml"
    file.write_text("c = 96\nno-mmap = true\nagent = true\nverbosity = 4\nLLAMA_ARG_N_PARALLEL = 3")
    values = read("--config", str(file)).values
    names = ("context", "mmap", "tools", "log_level", "parallel")
    assert [values[name] for name in names] == [96, False, "all", "debug", 3]
    file.write_text("mirostat = 2")
    with pytest.raises(ConfigError, match="mirostat = 2 in the file"):
        read("--config", str(file))


def test_a_missing_config_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read the config file"):
        read("--config", str(tmp_path / "none.toml"))


def test_a_mistake_in_the_environment_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADSTART_PORT", "eighty")
    with pytest.raises(ConfigError, match="HEADSTART_PORT is 'eighty'"):
        read()


def test_a_value_out_of_range_names_its_source(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("LLAMA_ARG_N_PARALLEL", "0")
    with pytest.raises(ConfigError, match="LLAMA_ARG_N_PARALLEL is 0 but must be from 1 to 250"):
        read()


def test_one_config_file_may_hold_settings_of_other_commands(tmp_path: Path) -> None:
    file = tmp_path / "headstart.toml"
    file.write_text("port = 1\nthreads = 3")
    resolved = find_command("generate").read(["--config", str(file)])
    assert resolved.config().engine.threads == 3


@pytest.mark.parametrize("columns", ["40", "80", "200"])
def test_the_help_page_explains_every_setting_within_the_width(monkeypatch, columns: str) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    with pytest.raises(PageRequested) as page:
        read("--help-all")
    lines = str(page.value).splitlines()
    assert max(map(len, lines)) <= max(60, min(int(columns), 110))
    words = {word.strip("(),") for word in " ".join(lines).split()}
    for setting in SETTINGS:
        assert setting.flag in words or setting.flag.replace("--", "--[no-]", 1) in words
        assert columns != "200" or words.issuperset(setting.aliases)  # unbroken where there is room


def test_the_short_help_page_has_a_dozen_flags_and_says_where_the_others_are() -> None:
    with pytest.raises(PageRequested) as page:
        read("--help")
    text = str(page.value)
    assert len(re.findall(r"^ {2,6}-+\w.* ", text, re.MULTILINE)) in range(12, 20)
    assert all(f"--{name.replace('_', '-')} " in text for name in COMMON)
    shown = COMMON
    assert f"--help-all                      the other {len(SETTINGS) - len(shown)} " in text


def test_options_of_a_speculator_reach_it_and_its_other_defaults_stay_its_own() -> None:
    options = (
        read("--spec-ngram-simple-size-n", "7", "-lcs", "words.bin", "--spec-corpus", "c")
        .config()
        .speculation.options
    )
    assert options == {
        "ngram-simple": {"size_n": 7},
        "ngram-cache": {"lookup_cache_static": "words.bin"},
        "suffix": {"file": "c"},
    }
