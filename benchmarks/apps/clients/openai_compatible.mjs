// The AI SDK on a server, with the provider for servers that have the API of OpenAI.
import assert from "node:assert/strict";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { embedMany, generateText, jsonSchema, stepCountIs, streamText, tool } from "ai";
import { name, refusals, run, untilRunning, untilStopped, url } from "./cases.mjs";

const provider = createOpenAICompatible({ name: "assistant", baseURL: `${url}/v1`, apiKey: "any", includeUsage: true });
const model = provider("echo");
const weather = tool({
  description: "Returns the weather",
  inputSchema: jsonSchema({ type: "object", properties: { text: { type: "string" } } }),
  execute: async ({ text }) => `${text} rain`,
});

async function triedAgain(status) {
  const word = name();
  const { textStream } = streamText({ model, prompt: `/refuse ${status} ${word}`, maxRetries: 2 });
  let text = "";
  for await (const part of textStream) text += part;
  assert.equal(text, `${status} ${word}`);
  assert.equal(await refusals(word), 2);
}

await run({
  async text() {
    const { text, finishReason, usage } = await generateText({ model, prompt: "hello world" });
    assert.deepEqual([text, finishReason, usage.totalTokens], ["hello world", "stop", 4]);
  },

  async streaming() {
    const { textStream, finishReason, usage } = streamText({ model, prompt: "hello ä world" });
    const parts = [];
    for await (const part of textStream) parts.push(part);
    assert.deepEqual(parts, ["hello", " ä", " world"]);
    assert.deepEqual([await finishReason, (await usage).totalTokens], ["stop", 6]);
  },

  async reasoning() {
    const { text, reasoningText } = await generateText({ model, prompt: "/reason yes" });
    assert.deepEqual([text, reasoningText], ["yes", "let me think "]);
    const stream = streamText({ model, prompt: "/reason yes" });
    assert.deepEqual([await stream.text, await stream.reasoningText], ["yes", "let me think "]);
  },

  async tools() {
    const options = { model, prompt: "/tool", tools: { weather }, stopWhen: stepCountIs(2) };
    for (const answer of [await generateText(options), streamText(options)]) {
      assert.equal(await answer.text, "the tool returned hello rain");
      assert.equal((await answer.steps).length, 2);
    }
  },

  async "tools that the model runs"() {
    const options = { model: provider("agent"), prompt: "hello", tools: { weather }, stopWhen: stepCountIs(4) };
    for (const answer of [await generateText(options), streamText(options)]) {
      assert.equal(await answer.text, "I look.I found one.");
      assert.equal((await answer.steps).length, 1);
    }
  },

  async embeddings() {
    const { embeddings } = await embedMany({ model: provider.embeddingModel("lengths"), values: ["a", "abc"] });
    assert.deepEqual(embeddings, [[1, 0.5], [3, 0.5]]);
  },

  async errors() {
    await assert.rejects(generateText({ model: provider("missing"), prompt: "a" }), /does not exist/);
    const errors = [];
    const { textStream } = streamText({ model, prompt: "word /break", onError: ({ error }) => errors.push(error) });
    for await (const _ of textStream);
    assert.match(errors.map((error) => error.message ?? String(error)).join(), /asked to break/);
  },

  async abort() {
    const word = name();
    const controller = new AbortController();
    const { textStream } = streamText({ model, prompt: `${word} /forever`, abortSignal: controller.signal });
    const reading = (async () => {
      for await (const _ of textStream);
    })().catch(() => {});
    await untilRunning(word);
    controller.abort();
    await untilStopped(word);
    await reading;
  },

  "a 429 is tried again": () => triedAgain(429),
  "a 503 is tried again": () => triedAgain(503),
});
