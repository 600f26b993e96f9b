"""The sampling rule: which token comes at which position, given logits, parameters and seed."""

from headstart.types.sampling_params import DEFAULT_SAMPLERS, SamplingParams

__all__ = ["DEFAULT_SAMPLERS", "SamplingParams"]
