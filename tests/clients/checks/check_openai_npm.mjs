// The openai package of npm: chat, stream, tools, responses.
import assert from "node:assert";
import OpenAI from "openai";

const client = new OpenAI({ baseURL: `${process.env.SERVER_URL}/v1`, apiKey: "-", maxRetries: 0 });
const ask = { model: "demo", messages: [{ role: "user", content: "Say hello." }], temperature: 0 };

const answer = await client.chat.completions.create({ ...ask, max_tokens: 12 });
assert(answer.choices[0].message.content);
let text = "";
for await (const part of await client.chat.completions.create({ ...ask, max_tokens: 12, stream: true })) {
    text += part.choices[0]?.delta?.content ?? "";
}
assert.strictEqual(text, answer.choices[0].message.content);
const parameters = { type: "object", properties: { city: { enum: ["Bonn", "Rome"] } }, required: ["city"] };
const called = await client.chat.completions.create({
    ...ask, max_tokens: 200, tool_choice: "required",
    tools: [{ type: "function", function: { name: "get_weather", parameters } }],
});
const call = called.choices[0].message.tool_calls[0];
assert(["Bonn", "Rome"].includes(JSON.parse(call.function.arguments).city));
const response = await client.responses.create({ model: "demo", input: "Say hello.", max_output_tokens: 12 });
assert(response.output_text);
console.log("ok");
