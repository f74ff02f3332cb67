// The AI SDK on a server, with the provider for OpenAI's own API, over responses and over chat completions.
import assert from "node:assert/strict";
import { createOpenAI } from "@ai-sdk/openai";
import { embedMany, generateText, jsonSchema, stepCountIs, streamText, tool } from "ai";
import { hasRoute, name, run, untilRunning, untilStopped, url } from "./cases.mjs";

globalThis.AI_SDK_LOG_WARNINGS = false; // it warns of models that it does not know

const provider = createOpenAI({ baseURL: `${url}/v1`, apiKey: "any" });
const MODES = { responses: (model) => provider.responses(model), "chat completions": (model) => provider.chat(model) };
const look_up = tool({
  inputSchema: jsonSchema({ type: "object", properties: { text: { type: "string" } } }),
  execute: async ({ text }) => `${text} is a word`,
});

async function all(stream) {
  const items = [];
  for await (const item of stream) items.push(item);
  return items;
}

const ofMode = (model) => ({
  async text() {
    const { text, finishReason, usage } = await generateText({ model: model("echo"), prompt: "hello world" });
    assert.deepEqual([text, finishReason, usage.totalTokens], ["hello world", "stop", 4]);
  },

  async streaming() {
    const { textStream, finishReason, usage } = streamText({ model: model("echo"), prompt: "hello ä world" });
    assert.deepEqual(await all(textStream), ["hello", " ä", " world"]);
    assert.deepEqual([await finishReason, (await usage).totalTokens], ["stop", 6]);
  },

  async tools() {
    const options = { model: model("echo"), prompt: "/tool", tools: { look_up }, stopWhen: stepCountIs(3) };
    for (const answer of [await generateText(options), streamText(options)]) {
      assert.equal(await answer.text, "the tool returned hello is a word");
      assert.equal((await answer.steps).length, 2);
    }
  },

  async "tools that the model runs"() {
    const options = { model: model("agent"), prompt: "hello", tools: { look_up }, stopWhen: stepCountIs(3) };
    for (const answer of [await generateText(options), streamText(options)]) {
      assert.equal(await answer.text, "I look.I found one.");
      assert.equal((await answer.steps).length, 1);
    }
  },

  async errors() {
    await assert.rejects(generateText({ model: model("missing"), prompt: "a", maxRetries: 0 }), { statusCode: 404 });
    const errors = [];
    await all(
      streamText({ model: model("echo"), prompt: "word /break", onError: ({ error }) => errors.push(error) }).textStream,
    );
    assert.match(JSON.stringify(errors.map((error) => error.message ?? error)), /asked to break/);
  },

  async "abort of a stream"() {
    const word = name();
    const abort = new AbortController();
    const providerOptions = { openai: { store: false } }; // a stored response continues for a while
    const options = { model: model("echo"), prompt: `${word} /forever`, abortSignal: abort.signal, providerOptions };
    const reading = all(streamText(options).textStream);
    await untilRunning(word);
    abort.abort();
    await reading.catch(() => {});
    await untilStopped(word);
  },
});

const cases = {
  async "responses: reasoning"() {
    const options = { model: provider("echo"), prompt: "/reason yes" };
    for (const answer of [await generateText(options), streamText(options)]) {
      assert.deepEqual([await answer.text, await answer.reasoningText], ["yes", "let me think "]);
    }
  },

  async "responses: earlier messages with reasoning"() {
    for (const store of [true, false]) {
      const options = { model: provider("echo"), providerOptions: { openai: { store } } };
      const { response } = await generateText({ ...options, prompt: "/reason yes" });
      const messages = [{ role: "user", content: "a" }, ...response.messages, { role: "user", content: "hello world" }];
      assert.equal((await generateText({ ...options, messages })).text, "hello world");
    }
  },

  async embeddings() {
    const { embeddings } = await embedMany({ model: provider.embedding("lengths"), values: ["a", "abc"] });
    assert.deepEqual(embeddings, [[1, 0.5], [3, 0.5]]);
  },
};
for (const [mode, model] of Object.entries(MODES)) {
  for (const [title, check] of Object.entries(ofMode(model))) cases[`${mode}: ${title}`] = check;
}

const served = (check) => async () => {
  await hasRoute("/v1/responses");
  await check();
};
await run(Object.fromEntries(Object.entries(cases).map(([title, check]) => [title, served(check)])));
