from __future__ import annotations

from datetime import datetime

import pytest

from headstart.config import ServerConfig
from headstart.engine.chat_templates import built_in_templates
from headstart.text.chat_template import CHATML, ChatTemplate, template_by_hand
from headstart.text.messages import content_text
from headstart.types.errors import ConfigError, ModelError, RequestError

USER = {"role": "user", "content": "hi <b>"}


def render(source, messages=(USER,), **arguments):
    template = ChatTemplate(source, bos_token="<s>", now=lambda: datetime(2024, 2, 29))
    return template.render(messages, **arguments)


def test_no_template_means_chatml_and_a_stop_for_its_marker():
    template = ChatTemplate(None)
    assert template.is_fallback
    assert template.stop == ("<|im_end|>",)
    assert template.render([USER]) == "<|im_start|>user\nhi <b><|im_end|>\n<|im_start|>assistant\n"
    assert ChatTemplate("x").stop == ()


def test_the_name_chatml_means_that_template_and_not_the_word():
    template = ChatTemplate("chatml")
    assert (template.source, template.stop, template.is_fallback) == (
        CHATML,
        ("<|im_end|>",),
        False,
    )
    assert "hi <b>" in template.render([USER])


@pytest.mark.parametrize(
    ("source", "shows"),
    [
        (None, True),
        ("{{ messages[0].content }}", True),
        ("{{ messages[0].content | upper }}", True),
        ("{% for p in messages[0].content %}{{ p.text }}{% endfor %}", True),
        ("{{ raise_exception('a system message first') }}", True),  # it may show others
        ("llama3", True),
        ("llama9", False),
        ("{{ messages[0].role }}", False),
    ],
)
def test_a_template_that_loses_every_message_is_noticed(source, shows):
    assert ChatTemplate(source, built_in=built_in_templates()).shows_messages is shows


@pytest.mark.parametrize("name", sorted(built_in_templates()))
def test_no_template_known_by_name_loses_the_system_message(name):
    messages = [{"role": "system", "content": "probe-S"}, {"role": "user", "content": "probe-U"}]
    text = ChatTemplate(name, built_in=built_in_templates()).render(messages)
    assert -1 < text.find("probe-S") < text.find("probe-U")


def test_a_template_by_hand_may_show_no_message_but_must_be_jinja(tmp_path):
    (tmp_path / "empty").touch()
    assert template_by_hand(ServerConfig(chat_template="llama9")) == "llama9"
    assert template_by_hand(ServerConfig(chat_template_file=str(tmp_path / "empty"))) is None
    with pytest.raises(ModelError, match="line 2 of the chat template is not valid Jinja"):
        template_by_hand(ServerConfig(chat_template="a\n{% if %}"))


def test_a_template_file_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "latin").write_bytes(b"\xff{{ messages[0].content }}")
    for name, says in (("missing", "No such file"), ("latin", "codec can't decode")):
        with pytest.raises(
            ConfigError, match=rf"--chat-template-file .*{name} cannot be read: .*{says}"
        ):
            template_by_hand(ServerConfig(chat_template_file=str(tmp_path / name)))


def test_the_template_by_hand_is_the_file_else_the_text_else_none(tmp_path):
    (tmp_path / "file").write_text("{{ messages[0].content }}!")
    text = "{{ messages[0].content }}"
    assert template_by_hand(ServerConfig()) is None
    assert template_by_hand(ServerConfig(chat_template="")) is None
    assert template_by_hand(ServerConfig(chat_template=text)) == text
    assert template_by_hand(ServerConfig(chat_template_file=str(tmp_path / "file"))) == text + "!"


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (
            "{%- for m in messages %}\n    {% if true %}\n"
            "{{ m.content }}|{{ m | tojson }}\n    {% endif %}\n{% endfor %}",
            'hi <b>|{"role": "user", "content": "hi <b>"}\n',  # no blank lines, nothing is escaped
        ),
        ('{{ {"a": "é"} | tojson }}{{ ["x"] | map("upper") | tojson }}', '{"a": "é"}["X"]'),
        ('{{ {"b": 1, "a": 2} | tojson(indent=1, sort_keys=true) }}', '{\n "a": 2,\n "b": 1\n}'),
        ("{% for i in [1, 2] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "1"),
        ("{% generation %}a{{ bos_token }}{% endgeneration %}", "a<s>"),
        ("{{ 'a' + none + missing + 1 }}", "a1"),
        ("{{ strftime_now('%Y-%m-%d') }}", "2024-02-29"),
        ("{{ date_string }}, {{ datetime }}", "29 Feb 2024, Feb 29 2024"),
    ],
)
def test_templates_may_write_what_they_do_elsewhere(source, text):
    assert render(source) == text


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('only users here') }}",
        "{{ messages[9].content.x }}",
        "{{ 1 // 0 }}",
        "{{ messages.__class__.__mro__[1].__subclasses__() }}",
        "{% for i in range(10**9) %}{% endfor %}",
        "{{ 'x'.format.__globals__.os }}",
        "{{ 1 + none }}",
    ],
)
def test_whatever_a_template_does_wrong_is_the_requests_fault(source):
    own = "only users here" if "only users here" in source else ""
    with pytest.raises(RequestError, match=f"the chat template cannot render .*{own}"):
        render(source)


def test_arguments_reach_the_template_but_cannot_replace_the_messages():
    source = "{{ enable_thinking }}{{ messages | length }}{{ add_generation_prompt is defined }}"
    arguments = {"enable_thinking": False, "messages": [], "add_generation_prompt": 5}
    assert render(source, add_generation_prompt=False, arguments=arguments) == "False1False"


def test_text_parts_are_joined_unless_the_template_reads_parts():
    parts = {
        "role": "user",
        "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
    }
    assert render("{{ messages[0].content }}", [parts]) == "a\nb"
    reads_parts = (
        "{% for m in messages %}{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endfor %}"
    )
    assert render(reads_parts, [parts, USER]) == "[a][b][hi <b>]"
    assert content_text(None) == ""
    empty, image = {"type": "text", "text": ""}, {"type": "media_marker", "text": "<image>"}
    a, b = ({"type": "text", "text": letter} for letter in "ab")
    # as in llama-server: nothing precedes the first text, and an image has no line of its own
    for said, expected in (
        ([empty, a, empty, b], "a\n\nb"),
        ([empty, image, a, b], "<image>a\nb"),
        ([a, image, empty, b], "a<image>\nb"),
    ):
        assert content_text(said) == expected


def test_developers_are_systems_but_for_gpt_oss():
    developer = {"role": "developer", "content": "x"}
    source = "{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}"
    assert render(source, [developer]) == "system: x"
    assert render(source + "{# <|channel|> #}", [developer]) == "developer: x"


def test_a_template_may_change_its_lists_without_changing_the_callers():
    messages = [dict(USER)]
    source = "{% set _ = messages.append(messages[0]) %}{{ messages | length }}"
    assert render(source, messages) == "2"
    assert messages == [USER]


def test_arguments_that_are_json_text_become_objects_where_the_template_reads_them():
    call = {"function": {"name": "f", "arguments": '{"arg": [1]}'}}
    messages = [USER, {"role": "assistant", "tool_calls": [call]}]
    reads = "{% for m in messages %}{% for c in m.tool_calls %}{{ c.function.arguments"
    end = " }}{% endfor %}{% endfor %}"
    assert render(f"{reads}.arg[0]{end}", messages) == "1"
    assert render(f"{reads} + '!'{end}", messages) == '{"arg": [1]}!'
    call["function"]["arguments"] = "{"
    with pytest.raises(RequestError, match="arguments of a call of f are not valid JSON"):
        render(f"{reads}.arg[0]{end}", messages)


def test_arguments_that_are_an_object_become_compact_json_where_the_template_reads_text():
    function = {"name": "f", "arguments": {"a": [1, "ü"], "b": {}}}
    message = {"role": "assistant", "tool_calls": [{"type": "function", "function": function}]}
    source = "{{ messages[-1].tool_calls[0].function.arguments ~ '' if messages else '' }}"
    assert render(source, [USER, message]) == '{"a":[1,"ü"],"b":{}}'


def test_a_system_message_that_is_refused_is_put_before_the_users():
    source = (
        "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}"
        "{% for m in messages %}[{{ m.content }}]{% endfor %}"
    )
    assert render(source, [{"role": "system", "content": "S"}, USER]) == "[S\nhi <b>]"
