"""What several settings mean together, and the log of a server."""

from __future__ import annotations

import subprocess
import sys

import pytest

from headstart.config import ChatConfig, DraftEngineConfig, EngineConfig
from headstart.types.errors import ConfigError


def test_flags_for_single_variables_become_template_arguments_and_the_json_goes_before_them():
    config = ChatConfig(reasoning="off", reasoning_effort="low", reasoning_preserve=False)
    assert config.template_arguments == {
        "enable_thinking": False,
        "preserve_reasoning": False,
        "reasoning_effort": "low",
    }
    config = ChatConfig(reasoning="off", chat_template_kwargs='{"enable_thinking": true, "x": [1]}')
    assert config.template_arguments == {"enable_thinking": True, "x": [1]}
    config = ChatConfig(reasoning="on", reasoning_effort="default")
    assert config.template_arguments == {"enable_thinking": True}
    assert ChatConfig().template_arguments == {}


@pytest.mark.parametrize("text", ["{", "[1]", "true"])
def test_template_arguments_that_are_no_json_object_are_refused(text):
    with pytest.raises(ConfigError, match=r"--chat-template-kwargs is .* must be a JSON object"):
        ChatConfig(chat_template_kwargs=text)


def test_the_draft_models_tensors_are_placed_by_its_own_flags() -> None:
    target = EngineConfig(override_tensor="ffn=CPU", cpu_moe=True, n_cpu_moe=3, threads=2)
    plain = DraftEngineConfig().applied_to(target, 1)
    assert (plain.override_tensor, plain.cpu_moe, plain.n_cpu_moe) == (None, False, 0)
    own = DraftEngineConfig(
        draft_override_tensor="attn=CPU", draft_cpu_moe=True, draft_n_cpu_moe=5
    ).applied_to(target, 1)
    assert (own.override_tensor, own.cpu_moe, own.n_cpu_moe) == ("attn=CPU", True, 5)
    assert own.threads == 2


def test_a_draft_model_takes_nothing_that_was_made_for_the_targets_weights() -> None:
    target = EngineConfig(
        lora="a", lora_scaled="a:1", control_vector="c", control_vector_scaled="c:1",
        override_kv="k=int:1", tensor_split="1,1", rpc="host:1", context=512, cache_type_k="q8_0",
    )  # fmt: skip
    plain = DraftEngineConfig().applied_to(target, 4)
    assert plain == EngineConfig(
        tensor_split="1,1", context=512, cache_type_k="q8_0", batch=512, swa_full=True,
        ctx_checkpoints=8, mtp=False,
    )  # fmt: skip
    exact = EngineConfig(context=512, exact=True)
    assert DraftEngineConfig().applied_to(exact, 4).context == 2048
    own = DraftEngineConfig(draft_device="CUDA1", draft_context=64, draft_gpu_layers=0)
    found = own.applied_to(target, 4)
    assert (found.device, found.tensor_split, found.context) == ("CUDA1", None, 64)
    assert found.gpu_layers == 0


@pytest.mark.skipif(sys.platform != "linux", reason="there is no /dev/full")
def test_a_log_file_on_a_full_disk_is_named_once_and_stops_nothing() -> None:
    code = """
import logging
from headstart.config.logs import LogConfig, start_logging
start_logging(LogConfig(log_file="/dev/full"))
for word in ("first", "second"):
    logging.warning(word)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    with open("/dev/full", "w") as full:
        silent = subprocess.run([sys.executable, "-c", code], stderr=full, timeout=60)
    assert silent.returncode == 0
    one, named, two = done.stderr.splitlines()
    assert (one[-5:], two[-6:], done.returncode) == ("first", "second", 0)
    assert named.startswith("--log-file /dev/full: [Errno 28]")
