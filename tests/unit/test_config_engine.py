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
