// The AI SDK in a page: the chats of `useChat`, without React.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import * as sdk from "ai";
import { hasRoute, name, run, untilStopped, url } from "./cases.mjs";

const { version } = JSON.parse(readFileSync(new URL("node_modules/ai/package.json", import.meta.url), "utf8"));

class State {
  status = "ready";
  error = undefined;
  messages = [];
  waiting = [];

  pushMessage = (message) => this.changed([...this.messages, message]);
  popMessage = () => this.changed(this.messages.slice(0, -1));
  replaceMessage = (index, message) => this.changed(this.messages.with(index, structuredClone(message)));
  snapshot = (thing) => structuredClone(thing);

  changed(messages) {
    this.messages = messages;
    this.waiting = this.waiting.filter(({ condition, resolve }) => !condition(messages) || resolve());
  }

  until(condition) {
    return new Promise((resolve) => this.waiting.push({ condition, resolve }));
  }
}

class Chat extends sdk.AbstractChat {
  constructor(options) {
    const state = new State();
    super({ ...options, state, onFinish: (finished) => (this.finished = finished) });
    this.state = state;
  }

  get text() {
    return this.messages.at(-1).parts.findLast(({ type }) => type === "text").text;
  }

  // The parts of the last message, with the keys that matter.
  get parts() {
    const keys = ["type", "text", "state", "input", "output", "errorText"];
    const known = (part) => keys.filter((key) => part[key] !== undefined).map((key) => [key, part[key]]);
    return this.messages.at(-1).parts.map((part) => Object.fromEntries(known(part)));
  }

  isReady() {
    assert.deepEqual([this.status, this.error?.message], ["ready", undefined]);
  }
}

const api = `${url}/api/chat`;
const tools = { weather: { description: "Returns the weather", parameters: { type: "object" } } };
const STEP = { type: "step-start" };
const said = (text) => ({ type: "text", text, state: "done" });

async function asked(text, { body, path = "/api/chat", ...options } = {}) {
  const chat = new Chat({ transport: new sdk.DefaultChatTransport({ api: url + path, body }), ...options });
  await chat.sendMessage({ text });
  return chat;
}

const begun = (messages) => messages.at(-1).parts.some((part) => part.type === "text" && part.text.length > 20);

await run({
  async text() {
    const chat = await asked("hello ä world");
    assert.deepEqual(chat.parts, [STEP, said("hello ä world")]);
    assert.equal(chat.finished.isError, false);
    assert.match(chat.messages[1].id, /^msg_/);
    chat.isReady();
  },

  async "finish reason, from version 6 on"() {
    const { finished } = await asked("hello /length", { path: "/plain" });
    if (!version.startsWith("5.")) assert.equal(finished.finishReason, "length");
  },

  async reasoning() {
    const { parts } = await asked("/reason yes");
    assert.deepEqual(parts, [STEP, { type: "reasoning", text: "let me think ", state: "done" }, said("yes")]);
  },

  async "several messages, and one that is regenerated"() {
    const chat = await asked("first");
    await chat.sendMessage({ text: "second" });
    await chat.regenerate();
    const texts = chat.messages.map(({ parts }) => parts.map((part) => part.text ?? "").join(""));
    assert.deepEqual(texts, ["first", "first", "second", "second"]);
  },

  async "sources, and the status"() {
    const statuses = [];
    const chat = await asked("hello /status /source", { onData: ({ data }) => statuses.push(data.text) });
    assert.deepEqual(statuses, ["Thinking"]);
    assert.deepEqual(chat.parts.slice(0, 2), [STEP, said("hello")]);
    assert.equal(chat.messages.at(-1).parts[2].url, "https://example.com");
  },

  async "approval of a tool, from version 6 on"() {
    if (version.startsWith("5.")) return;
    const chat = new Chat({
      transport: new sdk.DefaultChatTransport({ api: `${url}/plain` }),
      sendAutomaticallyWhen: sdk.lastAssistantMessageIsCompleteWithApprovalResponses,
    });
    await chat.sendMessage({ text: "/approve" });
    const { approval, state } = chat.messages.at(-1).parts.at(-1);
    assert.equal(state, "approval-requested");
    const answered = chat.state.until((messages) => messages.at(-1).parts.some((part) => part.text?.includes("done")));
    await chat.addToolApprovalResponse({ id: approval.id, approved: true });
    await answered;
    assert.equal(chat.text, "the tool returned done");
    assert.deepEqual([chat.parts[1].state, chat.parts[1].output], ["output-available", "done"]);
  },

  async "approval through a reload, and by a second tab, from version 6 on"() {
    if (version.startsWith("5.")) return;
    await hasRoute("/stored/conversations");
    const [id, api] = [name(), `${url}/stored/chat`];
    const stored = async () => (await (await fetch(`${url}/stored/conversations/${id}`)).json()).messages;
    const [first, second] = [0, 1].map(() => {
      return new Chat({
        id,
        transport: new sdk.DefaultChatTransport({ api }),
        sendAutomaticallyWhen: sdk.lastAssistantMessageIsCompleteWithApprovalResponses,
      });
    });
    await first.sendMessage({ text: "/approve" });
    second.state.messages = await sdk.validateUIMessages({ messages: await stored() });
    const { approval } = second.messages.at(-1).parts.at(-1);
    const answered = second.state.until((messages) => messages.at(-1).parts.some((part) => part.text?.includes("done")));
    await second.addToolApprovalResponse({ id: approval.id, approved: true });
    await answered;
    const refused = new Promise((resolve) => (first.finishedWith = resolve));
    first.onError = ({ message }) => first.finishedWith(message);
    await first.addToolApprovalResponse({ id: approval.id, approved: false });
    assert.match(await refused, /answer/);
    assert.deepEqual(
      (await stored()).at(-1).parts.map(({ type, state }) => [type, state]),
      second.messages.at(-1).parts.map(({ type, state }) => [type, state]),
    );
  },

  async "tools of an MCP server"() {
    await hasRoute("/mcp/chat");
    const { parts } = await asked("2 3", { path: "/mcp/chat" });
    const call = { type: "tool-numbers_add", state: "output-available", input: { a: 2, b: 3 }, output: "5" };
    assert.deepEqual(parts, [STEP, call, STEP, said("The sum is 5.")]);
  },

  async "tools that the page runs"() {
    let sent;
    const again = new Promise((resolve) => (sent = resolve));
    const chat = new Chat({
      transport: new sdk.DefaultChatTransport({ api, body: { tools } }),
      sendAutomaticallyWhen: sdk.lastAssistantMessageIsCompleteWithToolCalls,
      onToolCall: ({ toolCall }) => {
        chat.addToolOutput({ tool: toolCall.toolName, toolCallId: toolCall.toolCallId, output: { ok: toolCall.input } });
      },
    });
    chat.state.until((messages) => messages.at(-1).parts.some((part) => part.text?.includes("hello"))).then(sent);
    await chat.sendMessage({ text: "/tool" });
    await again;
    const call = chat.parts[1];
    assert.deepEqual([call.type, call.output], ["tool-weather", { ok: { text: "hello" } }]);
    assert.equal(chat.text, 'the tool returned {"ok": {"text": "hello"}}');
    assert.equal(chat.messages.length, 2);
  },

  async "tools that the model runs"() {
    const { parts } = await asked("go", { body: { model: "agent" } });
    const found = { type: "tool-search", state: "output-available", input: { query: "x" }, output: { found: [1] } };
    const failed = { type: "tool-search", state: "output-error", input: {}, errorText: "nothing" };
    assert.deepEqual(parts, [STEP, said("I look."), found, failed, STEP, said("I found one.")]);
  },

  async "readUIMessageStream"() {
    const transport = new sdk.DefaultChatTransport({ api });
    const message = { id: "m", role: "user", parts: [{ type: "text", text: "one two" }] };
    const stream = await transport.sendMessages({ chatId: name(), messages: [message], trigger: "submit-message" });
    let last;
    for await (const state of sdk.readUIMessageStream({ stream })) last = state;
    assert.deepEqual(last.parts.map(({ type, text }) => [type, text]), [["step-start", undefined], ["text", "one two"]]);
  },

  async "text protocol"() {
    const chat = new Chat({ transport: new sdk.TextStreamChatTransport({ api: `${api}/text` }) });
    await chat.sendMessage({ text: "plain words" });
    assert.deepEqual(chat.parts, [STEP, said("plain words")]);
  },

  async errors() {
    const refused = await asked("/fail");
    assert.deepEqual([refused.status, refused.error.message], ["error", "the model was asked to fail"]);
    const broken = await asked("word /break");
    assert.deepEqual([broken.status, broken.error.message], ["error", "the model was asked to break"]);
    assert.deepEqual(broken.parts, [STEP, said("word")]);
  },

  async "resume and stop"() {
    const [id, word] = [name(), name()];
    const transport = new sdk.DefaultChatTransport({ api });
    const first = new Chat({ id, transport });
    const sending = first.sendMessage({ text: `${word} /forever` });
    await first.state.until(begun);
    await first.stop();
    await sending;
    assert.ok(first.finished.isAbort);

    const second = new Chat({ id, transport });
    second.state.messages = first.messages.slice(0, 1);
    const resuming = second.resumeStream();
    await second.state.until((messages) => begun(messages) && second.text.length > first.text.length);
    assert.deepEqual(await (await fetch(`${api}/${id}/stop`, { method: "POST" })).json(), { success: true, stopped: true });
    await resuming;
    await untilStopped(word);
    second.isReady();
    assert.equal(second.messages.length, 2);
    assert.equal(second.messages[1].id, first.messages[1].id);
    assert.equal(second.parts[1].state, "done");
    assert.ok(second.text.startsWith(first.text));

    const third = new Chat({ id, transport });
    await third.resumeStream();
    third.isReady();
    assert.deepEqual(third.messages, []);
  },

  async "a new message stops the last response"() {
    const [id, word] = [name(), name()];
    const transport = new sdk.DefaultChatTransport({ api });
    const [first, second] = [0, 1].map(() => new Chat({ id, transport }));
    const sending = first.sendMessage({ text: `${word} /forever` });
    await first.state.until(begun);
    await second.sendMessage({ text: "instead" });
    await sending;
    first.isReady();
    assert.deepEqual(second.parts, [STEP, said("instead")]);
    await untilStopped(word);
  },

  async "abort, without resume"() {
    const word = name();
    const chat = new Chat({ transport: new sdk.DefaultChatTransport({ api: `${url}/plain` }) });
    const sending = chat.sendMessage({ text: `${word} /forever` });
    await chat.state.until(begun);
    await chat.stop();
    await sending;
    chat.isReady();
    assert.ok(chat.finished.isAbort);
    await untilStopped(word);
  },
});
