"""What the draft model takes over from the target's settings, and what it does not."""

from __future__ import annotations

from headstart.config import DraftEngineConfig, EngineConfig


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
