from __future__ import annotations

import pickle

import pytest

from headstart.types.constraint import MAX_TEXT_BYTES, Constraint, ConstraintKind
from headstart.types.errors import InvalidParameterError
from headstart.types.request import Request
from headstart.types.sampling_params import SamplingParams


def test_a_request_with_a_constraint_crosses_the_process_border() -> None:
    constraint = Constraint(kind=ConstraintKind.JSON_SCHEMA, text="{}", triggers=(b"</think>",))
    sampling = SamplingParams(logit_bias={})
    request = Request(request_id="1", prompt=[1], sampling=sampling, constraint=constraint)
    assert pickle.loads(pickle.dumps(request)) == request


def test_a_constraint_that_is_too_long_is_refused_with_both_sizes() -> None:
    with pytest.raises(
        InvalidParameterError, match=rf"{MAX_TEXT_BYTES + 1} bytes.*{MAX_TEXT_BYTES}"
    ):
        Constraint(kind=ConstraintKind.REGEX, text="a" * (MAX_TEXT_BYTES + 1))


@pytest.mark.parametrize("trigger", [b"", b"a" * 257])
def test_a_trigger_has_a_length(trigger: bytes) -> None:
    with pytest.raises(InvalidParameterError, match=f"{len(trigger)} bytes"):
        Constraint(kind=ConstraintKind.JSON_OBJECT, triggers=(trigger,))


def test_what_is_said_about_triggers_needs_one() -> None:
    with pytest.raises(InvalidParameterError, match="includes_trigger"):
        Constraint(kind=ConstraintKind.JSON_OBJECT, includes_trigger=True)
