// Parses answers with llama.cpp's own chat parser, for record_llama_server_parses.py.
//
// One JSON object a line in: template, messages, tools, tool_choice, parallel_tool_calls,
// enable_thinking, reasoning_format, text. One out: message or error, and how the answer begins.

#include "chat.h"
#include "json.h"
#include "peg-parser.h"

#include <iostream>
#include <string>

static common_json parse(const common_json & job) {
    auto text = [&](const char * key) { return job.at(key).get<std::string>(); };
    auto templates = common_chat_templates_init(nullptr, text("template"), "", "");
    common_chat_templates_inputs inputs;
    inputs.messages            = common_chat_msgs_parse_oaicompat(job.at("messages"));
    inputs.tools               = common_chat_tools_parse_oaicompat(job.at("tools"));
    inputs.tool_choice         = common_chat_tool_choice_parse_oaicompat(text("tool_choice"));
    inputs.parallel_tool_calls = job.at("parallel_tool_calls").get<bool>();
    inputs.enable_thinking     = job.at("enable_thinking").get<bool>();
    inputs.reasoning_format    = common_reasoning_format_from_name(text("reasoning_format"));
    inputs.chat_template_kwargs["preserve_reasoning"] = "true";
    auto params = common_chat_templates_apply(templates.get(), inputs);
    common_json result = common_json::object();
    result["generation_prompt"] = params.generation_prompt;
    result["grammar_lazy"]      = params.grammar_lazy;
    common_json triggers = common_json::array();
    for (const auto & trigger : params.grammar_triggers) {
        triggers.push_back(trigger.value);
    }
    result["triggers"] = triggers;
    common_json tokens = common_json::array();
    for (const auto & token : params.preserved_tokens) {
        tokens.push_back(token);
    }
    result["preserved_tokens"] = tokens;
    common_chat_parser_params syntax(params);
    syntax.reasoning_format = inputs.reasoning_format;
    syntax.parser.load(params.parser);
    try {
        auto message = common_chat_parse(job.at("text").get<std::string>(), false, syntax);
        result["message"] = message.to_json_oaicompat();
    } catch (const std::exception & error) {
        result["error"] = std::string(error.what());
    }
    return result;
}

int main() {
    for (std::string line; std::getline(std::cin, line);) {
        try {
            std::cout << parse(common_json::parse(line)).dump() << std::endl;
        } catch (const std::exception & error) {
            common_json result = common_json::object();
            result["error"] = std::string("cannot make a parser: ") + error.what();
            std::cout << result.dump() << std::endl;
        }
    }
}
