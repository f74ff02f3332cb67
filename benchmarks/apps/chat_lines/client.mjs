// What a chat page does with its backend, with the AI SDK. It ends with the status 1 at the first thing that differs.
// node client.mjs URL
import assert from "node:assert/strict";
import { DefaultChatTransport, readUIMessageStream } from "ai";

const url = process.argv[2];
const api = `${url}/api/chat`;
const [ada, bob] = ["ada", "bob"].map((name) => ({ authorization: `Bearer the-example-key-of-${name}` }));
const PATIENCE_MS = 20_000;

const name = () => `c${Math.random().toString(16).slice(2, 14)}`;
const pause = () => new Promise((resolve) => setTimeout(resolve, 50));
const text = (message) => message.parts.map((part) => part.text ?? "").join("");
const asked = (prompt) => ({ id: name(), role: "user", parts: [{ type: "text", text: prompt }] });

const transport = new DefaultChatTransport({
  api,
  headers: ada,
  prepareSendMessagesRequest: ({ id, messages, trigger, messageId }) => ({
    body: { id, trigger, messageId, message: messages.at(-1) },
  }),
});

async function until(condition) {
  const deadline = performance.now() + PATIENCE_MS;
  for (;;) {
    const value = await condition();
    if (value) return value;
    assert.ok(performance.now() < deadline, `it took too long: ${condition}`);
    await pause();
  }
}

async function call(path, { headers = ada, method = "GET", body } = {}) {
  const options = { method, headers: { ...headers, "content-type": "application/json" }, body: JSON.stringify(body) };
  const response = await fetch(url + path, options);
  const document = await response.text();
  return { status: response.status, body: response.ok && document ? JSON.parse(document) : undefined };
}

const conversation = async (id) => (await call(`/api/conversations/${id}`)).body;

// Follows a stream of parts, and calls a function with each state of the message.
async function followed(stream, onState = () => {}) {
  let last;
  for await (const state of readUIMessageStream({ stream, onError: () => {} })) onState((last = structuredClone(state)));
  return last;
}

const begin = (chatId, message, { trigger = "submit-message", messageId, abortSignal } = {}) =>
  transport.sendMessages({ chatId, messages: [message], trigger, messageId, abortSignal });

const send = async (...options) => followed(await begin(...options));

// Begins a slow response, and returns when its first words are here.
async function slow(chatId) {
  const abort = new AbortController();
  const stream = await begin(chatId, asked("slow"), { abortSignal: abort.signal });
  let state;
  const ended = followed(stream, (each) => (state = each)).catch(() => {});
  await until(() => state && text(state).length > 20);
  return { abort, ended, first: text(state) };
}

const checks = {
  async "API keys"() {
    for (const headers of [{}, { authorization: "Bearer another-key-of-nobody" }]) {
      assert.equal((await call("/api/conversations", { headers })).status, 401);
      const body = { id: name(), message: asked("hello") };
      assert.equal((await call("/api/chat", { headers, method: "POST", body })).status, 401);
    }
  },

  async "a text, and the messages before"() {
    const id = name();
    assert.equal(text(await send(id, asked("hello"))), "0: hello after 0. ");
    assert.equal(text(await send(id, asked("again"))), "0: again after 2. ");
    const { messages } = await conversation(id);
    assert.deepEqual(messages.map(text), ["hello", "0: hello after 0. ", "again", "0: again after 2. "]);
    assert.deepEqual(messages.map(({ parent_id }) => parent_id), [null, ...messages.slice(0, 3).map(({ id }) => id)]);
  },

  async "tools that the model runs"() {
    const id = name();
    const message = await send(id, asked("weather"));
    const tool = message.parts.find(({ type }) => type === "tool-weather");
    assert.deepEqual([tool.state, tool.input, tool.output], ["output-available", { city: "Oslo" }, { weather: "rain" }]);
    const stored = (await conversation(id)).messages[1].parts.find(({ type }) => type === "tool-weather");
    assert.deepEqual([stored.state, stored.input, stored.output], [tool.state, tool.input, tool.output]);
  },

  async "titles, the list, and what another user sees"() {
    const id = name();
    await send(id, asked("hello"));
    await until(async () => (await conversation(id)).title === "About hello");
    assert.equal((await call("/api/conversations")).body[0].id, id);
    assert.deepEqual((await call("/api/conversations", { headers: bob })).body, []);
    assert.equal((await call(`/api/conversations/${id}`, { headers: bob })).status, 404);
    assert.equal((await call(`/api/conversations/${id}`, { method: "DELETE", headers: bob })).status, 404);
    assert.equal((await call(`/api/conversations/${id}`, { method: "PATCH", body: { title: "Mine" } })).status, 204);
    assert.equal((await conversation(id)).title, "Mine");
    assert.equal((await call(`/api/conversations/${id}`, { method: "DELETE" })).status, 204);
    assert.equal((await call(`/api/conversations/${id}`)).status, 404);
  },

  async "branches"() {
    const id = name();
    const question = asked("one");
    await send(id, question);
    await send(id, question, { trigger: "regenerate-message" });
    const both = (await conversation(id)).messages[1].siblings;
    assert.equal(both.length, 2);
    await send(id, asked("two"), { messageId: question.id });
    const edited = await conversation(id);
    assert.deepEqual(edited.messages.map(text), ["two", "0: two after 0. "]);
    assert.equal(edited.messages[0].siblings.length, 2);
    assert.equal((await call(`/api/conversations/${id}`, { method: "PATCH", body: { active_id: both[0] } })).status, 204);
    const { active_id, messages } = await conversation(id);
    assert.deepEqual([active_id, messages[0].id, messages[1].siblings], [both[0], question.id, both]);
    assert.equal(text(await send(id, asked("three"))), "0: three after 2. ");
  },

  async "resume in another tab"() {
    const id = name();
    const { ended, first } = await slow(id);
    const tabs = await Promise.all([1, 2, 3].map(() => transport.reconnectToStream({ chatId: id })));
    const messages = await Promise.all([ended, ...tabs.map((stream) => followed(stream))]);
    for (const message of messages) assert.ok(text(message).startsWith(first) && text(message).includes("99: slow"));
    assert.equal(await transport.reconnectToStream({ chatId: id }), null);
    assert.equal((await call(`/api/chat/${id}/stream`, { headers: bob })).status, 204);
  },

  async "a page that is closed"() {
    const id = name();
    const { abort, ended } = await slow(id);
    abort.abort();
    await ended;
    const { messages } = await until(async () => {
      const found = await conversation(id);
      return found.messages.length === 2 && found;
    });
    assert.ok(text(messages[1]).includes("99: slow"));
  },

  async "stop, from another tab"() {
    const id = name();
    const { ended } = await slow(id);
    assert.equal((await call(`/api/chat/${id}/stop`, { method: "POST", headers: bob })).body.stopped, false);
    assert.equal((await call(`/api/chat/${id}/stop`, { method: "POST" })).body.stopped, true);
    await ended;
    const [, stopped] = (await until(async () => {
      const found = await conversation(id);
      return found.messages.length === 2 && found;
    })).messages;
    assert.ok(stopped.metadata.incomplete && !text(stopped).includes("99: slow"));
  },

  async "a new question stops the last response"() {
    const id = name();
    const { ended } = await slow(id);
    assert.equal(text(await send(id, asked("instead"))).includes("instead"), true);
    await ended;
    const { messages } = await conversation(id);
    assert.equal(messages.length, 4);
    assert.ok(!text(messages[1]).includes("99: slow"));
  },
};

for (const [title, check] of Object.entries(checks)) {
  try {
    await check();
  } catch (error) {
    console.log(`${title}: ${error.stack}`);
    process.exit(1);
  }
}
console.log(`${Object.keys(checks).length} checks passed`);
process.exit(0);
