// The client of Ollama for JavaScript.
import assert from "node:assert/strict";
import { Ollama } from "ollama";
import { hasRoute, name, run, untilRunning, untilStopped, url } from "./cases.mjs";

const user = (content) => [{ role: "user", content }];

async function client() {
  await hasRoute("/ollama/api/chat");
  return new Ollama({ host: `${url}/ollama` });
}

await run({
  async models() {
    const ollama = await client();
    const { models } = await ollama.list();
    assert.deepEqual(models.map((model) => model.name), ["echo", "agent", "lengths"]);
    assert.ok((await ollama.show({ model: "echo" })).capabilities.includes("completion"));
  },

  async chat() {
    const { message, done_reason } = await (await client()).chat({ model: "echo", messages: user("hello world") });
    assert.deepEqual([message.content, done_reason], ["hello world", "stop"]);
  },

  async streaming() {
    const stream = await (await client()).chat({ model: "echo", messages: user("hello ä world"), stream: true });
    const texts = [];
    for await (const { message } of stream) texts.push(message.content);
    assert.deepEqual(texts, ["hello", " ä", " world", ""]);
  },

  async thinking() {
    const { message } = await (await client()).chat({ model: "echo", messages: user("/reason hello"), think: true });
    assert.deepEqual([message.thinking, message.content], ["let me think ", "hello"]);
  },

  async "tools of the client"() {
    const ollama = await client();
    const tools = [{ type: "function", function: { name: "look_up", parameters: { type: "object" } } }];
    const messages = user("/tool look_up");
    const { message } = await ollama.chat({ model: "echo", messages, tools });
    assert.deepEqual(message.tool_calls[0].function.arguments, { text: "hello" });
    messages.push(message, { role: "tool", content: "it rains", tool_name: "look_up" });
    const answer = await ollama.chat({ model: "echo", messages, tools });
    assert.equal(answer.message.content, "the tool returned it rains");
  },

  async generate() {
    const { response } = await (await client()).generate({ model: "echo", prompt: "hello world" });
    assert.equal(response, "hello world");
  },

  async embeddings() {
    const { embeddings } = await (await client()).embed({ model: "lengths", input: ["tea"] });
    assert.deepEqual(embeddings, [[3, 0.5]]);
  },

  async errors() {
    const ollama = await client();
    await assert.rejects(ollama.chat({ model: "other", messages: user("hello") }), /does not exist/);
    const stream = await ollama.chat({ model: "echo", messages: user("hello /break"), stream: true });
    await assert.rejects(async () => {
      for await (const _ of stream);
    }, /asked to break/);
  },

  async stop() {
    const ollama = await client();
    const word = name();
    const stream = await ollama.chat({ model: "echo", messages: user(`${word} /forever`), stream: true });
    const reading = assert.rejects(async () => {
      for await (const _ of stream);
    }, /abort/i);
    await untilRunning(word);
    stream.abort();
    await reading;
    await untilStopped(word);
  },
});
