"""Whatever JSON comes, the answer is 200 or a 4xx in the error shape."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headstart.server.schemas import ChatBody, CompletionBody, NativeBody

ROUTES = {
    "/v1/chat/completions": ChatBody,
    "/v1/completions": CompletionBody,
    "/completion": NativeBody,
}
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=9)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=5,
)


@pytest.mark.parametrize("path", ROUTES)
@settings(
    max_examples=40,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.data())
def test_no_body_makes_the_server_fail(client, path, data):
    body_class: Any = ROUTES[path]
    names = st.sampled_from([*body_class.model_fields, "speculative.n_max", "speculative.type"])
    body = {"messages": [{"role": "user", "content": "a"}], "prompt": "a"} | data.draw(
        st.dictionaries(names, VALUES, max_size=4)
    )
    try:
        response = client.post(path, json=body)
    except (ValueError, UnicodeEncodeError):
        return  # the client cannot write it
    if response.status_code != 200:
        error = response.json()["error"]
        assert response.status_code == error["code"] == 400
        assert error["message"]
