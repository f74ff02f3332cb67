// The SDK of Anthropic for Node.
import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";
import { hasRoute, name, refusals, run, untilRunning, untilStopped, url } from "./cases.mjs";

const sdk = (options = {}) => new Anthropic({ baseURL: url, apiKey: "any", maxRetries: 0, ...options });
const { messages, models, beta } = sdk();
const said = (content) => [{ role: "user", content }];
const body = (content, fields = {}) => ({ model: "echo", max_tokens: 100, messages: said(content), ...fields });
const tools = [{ name: "look_up", input_schema: { type: "object" } }];
const served = () => hasRoute("/v1/messages");

async function all(stream) {
  const items = [];
  for await (const item of stream) items.push(item);
  return items;
}

async function triedAgain(status) {
  await served();
  const word = name();
  const stream = sdk({ maxRetries: 2 }).messages.stream(body(`/refuse ${status} ${word}`));
  assert.equal(await stream.finalText(), `${status} ${word}`);
  assert.equal(await refusals(word), 2);
}

await run({
  async models() {
    await served();
    assert.deepEqual((await all(models.list({ limit: 1 }))).map(({ id }) => id), ["echo", "agent"]);
    assert.equal((await models.retrieve("echo")).display_name, "echo");
  },

  async message() {
    await served();
    const { content, stop_reason, usage } = await messages.create(body("hello world", { system: "Be brief." }));
    assert.deepEqual([content[0].text, stop_reason], ["hello world", "end_turn"]);
    assert.deepEqual([usage.input_tokens, usage.output_tokens], [2, 2]);
  },

  async streaming() {
    await served();
    const events = await all(await messages.create(body("hello ä world", { stream: true })));
    const deltas = events.filter(({ type }) => type === "content_block_delta");
    assert.deepEqual(deltas.map(({ delta }) => delta.text), ["hello", " ä", " world"]);
    assert.deepEqual([events[0].type, events.at(-1).type], ["message_start", "message_stop"]);
  },

  async "helper for streams"() {
    await served();
    const stream = messages.stream(body("/reason hello world"));
    const thoughts = [];
    stream.on("thinking", (text) => thoughts.push(text));
    const { content, usage } = await stream.finalMessage();
    assert.deepEqual(content.map(({ type }) => type), ["thinking", "text"]);
    assert.equal(thoughts.join(""), "let me think ");
    assert.equal(usage.output_tokens, 2);
  },

  async tools() {
    await served();
    const asked = said("/tool");
    const first = await messages.stream(body("", { messages: asked, tools })).finalMessage();
    const [call] = first.content;
    assert.deepEqual([first.stop_reason, call.name, call.input], ["tool_use", "look_up", { text: "hello" }]);
    const result = { type: "tool_result", tool_use_id: call.id, content: [{ type: "text", text: "it rains" }] };
    asked.push({ role: "assistant", content: first.content }, ...said([result]));
    const { content } = await messages.create(body("", { messages: asked, tools }));
    assert.equal(content[0].text, "the tool returned it rains");
  },

  async "tools that the model runs"() {
    await served();
    const hidden = await messages.stream(body("hello", { model: "agent" })).finalMessage();
    assert.deepEqual([hidden.content.length, hidden.content[0].text], [1, "I look.I found one."]);
    const betas = ["mcp-client-2025-11-20"];
    const shown = await beta.messages.stream(body("hello", { model: "agent", betas })).finalMessage();
    const calls = shown.content.filter(({ type }) => type === "mcp_tool_use");
    assert.deepEqual(calls.map(({ input }) => input), [{ query: "x" }, {}]);
  },

  async "stop sequences"() {
    await served();
    const answer = await messages.stream(body("one two three", { stop_sequences: ["two"] })).finalMessage();
    assert.deepEqual([answer.stop_reason, answer.stop_sequence], ["stop_sequence", "two"]);
  },

  async "count of tokens"() {
    await served();
    assert.equal((await messages.countTokens({ model: "echo", messages: said("a b c") })).input_tokens, 3);
  },

  async errors() {
    await served();
    await assert.rejects(messages.create(body("a", { model: "missing" })), (error) => {
      assert.ok(error instanceof Anthropic.NotFoundError);
      assert.equal(error.error.error.type, "not_found_error");
      assert.ok(error.requestID);
      return true;
    });
    await assert.rejects(messages.stream(body("word /break")).finalMessage(), /asked to break/);
  },

  async "abort of a stream"() {
    await served();
    const word = name();
    const stream = messages.stream(body(`${word} /forever`, { max_tokens: 1_000_000 }));
    const ended = assert.rejects(stream.finalMessage());
    await untilRunning(word);
    stream.abort();
    await ended;
    await untilStopped(word);
  },

  "a 429 is tried again": () => triedAgain(429),

  "a full queue is tried again": () => triedAgain(503),

  async "API key"() {
    await served();
    const options = { baseURL: `${url}/protected` };
    const right = sdk({ ...options, apiKey: "the-key-of-the-clients" });
    assert.equal((await right.messages.create(body("hello"))).content[0].text, "hello");
    const wrong = sdk({ ...options, apiKey: "another-key-of-the-clients" });
    await assert.rejects(wrong.messages.create(body("hello")), Anthropic.AuthenticationError);
  },
});
