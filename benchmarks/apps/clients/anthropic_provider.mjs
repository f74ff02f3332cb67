// The AI SDK with its provider for Anthropic's API.
import assert from "node:assert/strict";
import { createAnthropic } from "@ai-sdk/anthropic";
import { generateText, jsonSchema, stepCountIs, streamText, tool } from "ai";
import { hasRoute, name, run, untilRunning, untilStopped, url } from "./cases.mjs";

globalThis.AI_SDK_LOG_WARNINGS = false; // it warns of models that it does not know

const model = createAnthropic({ baseURL: `${url}/v1`, apiKey: "any" });
const ask = (prompt, options = {}) => ({ model: model("echo"), prompt, maxOutputTokens: 100, maxRetries: 0, ...options });
const served = () => hasRoute("/v1/messages");
const look_up = tool({
  inputSchema: jsonSchema({ type: "object", properties: { text: { type: "string" } } }),
  execute: async ({ text }) => `${text} is a word`,
});

async function all(stream) {
  const items = [];
  for await (const item of stream) items.push(item);
  return items;
}

await run({
  async text() {
    await served();
    const { text, finishReason, usage } = await generateText(ask("hello world"));
    assert.deepEqual([text, finishReason, usage.totalTokens], ["hello world", "stop", 4]);
  },

  async streaming() {
    await served();
    const { textStream, reasoningText } = streamText(ask("/reason hello ä world"));
    assert.deepEqual(await all(textStream), ["hello", " ä", " world"]);
    assert.equal(await reasoningText, "let me think ");
  },

  async tools() {
    await served();
    const { textStream, steps } = streamText(ask("/tool", { tools: { look_up }, stopWhen: stepCountIs(3) }));
    assert.equal((await all(textStream)).join(""), "the tool returned hello is a word");
    assert.equal((await steps).length, 2);
  },

  async "tools that the model runs"() {
    await served();
    const { text, toolCalls } = await generateText(ask("hello", { model: model("agent"), tools: { look_up } }));
    assert.deepEqual([text, toolCalls], ["I look.I found one.", []]);
  },

  async errors() {
    await served();
    await assert.rejects(generateText(ask("hello", { model: model("missing") })), { statusCode: 404 });
  },

  async "abort of a stream"() {
    await served();
    const word = name();
    const abort = new AbortController();
    const options = { abortSignal: abort.signal, maxOutputTokens: 100_000 };
    const reading = all(streamText(ask(`${word} /forever`, options)).textStream);
    await untilRunning(word);
    abort.abort();
    await reading.catch(() => {});
    await untilStopped(word);
  },
});
