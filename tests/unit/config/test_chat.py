from __future__ import annotations

import pytest

from headstart.config import ChatConfig
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
