// Talks to a server with the AI SDK of a node_modules folder, and prints what the chats have seen as one JSON document.
// node ai_sdk.mjs NODE_MODULES URL
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { pathToFileURL } from "node:url";

const [, , folder, url] = process.argv;
const { version, exports, module } = JSON.parse(readFileSync(join(folder, "ai", "package.json"), "utf8"));
const entry = exports["."];
const sdk = await import(pathToFileURL(join(folder, "ai", entry.import ?? entry.default ?? module)));

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

  get seen() {
    const { isAbort, isError, finishReason } = this.finished ?? {};
    const messages = this.messages.map(({ id, role, parts }) => ({ id, role, parts }));
    return { status: this.status, error: this.error?.message, messages, isAbort, isError, finishReason };
  }
}

const api = `${url}/api/chat`;
const tools = { weather: { description: "Returns the weather", parameters: { type: "object" } } };

async function asked(text, { body, path = "/api/chat", ...options } = {}) {
  const chat = new Chat({ transport: new sdk.DefaultChatTransport({ api: url + path, body }), ...options });
  await chat.sendMessage({ text });
  return chat;
}

const begun = (messages) => messages.at(-1).parts.some((part) => part.type === "text" && part.text.length > 20);

const scenarios = {
  text: async () => (await asked("hello ä world")).seen,
  version6: async () => (await asked("hello /length", { path: "/plain" })).seen,
  reasoning: async () => (await asked("/reason yes")).seen,
  agent: async () => (await asked("go", { body: { model: "agent" } })).seen,
  refused: async () => (await asked("/fail")).seen,
  broken: async () => (await asked("word /break")).seen,

  async conversation() {
    const chat = await asked("first");
    await chat.sendMessage({ text: "second" });
    await chat.regenerate();
    return chat.seen;
  },

  async tool() {
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
    return chat.seen;
  },

  async reader() {
    const transport = new sdk.DefaultChatTransport({ api });
    const message = { id: "m", role: "user", parts: [{ type: "text", text: "one two" }] };
    const stream = await transport.sendMessages({ chatId: "r", messages: [message], trigger: "submit-message" });
    let last;
    for await (const state of sdk.readUIMessageStream({ stream })) last = state;
    return last;
  },

  async textProtocol() {
    const chat = new Chat({ transport: new sdk.TextStreamChatTransport({ api: `${api}/text` }) });
    await chat.sendMessage({ text: "plain words" });
    return chat.seen;
  },

  async resumed() {
    const transport = new sdk.DefaultChatTransport({ api });
    const first = new Chat({ id: "resumed", transport });
    const sending = first.sendMessage({ text: "word /forever" });
    await first.state.until(begun);
    await first.stop();
    await sending;

    const second = new Chat({ id: "resumed", transport });
    second.state.messages = first.messages.slice(0, 1);
    const resuming = second.resumeStream();
    await second.state.until(begun);
    const stop = await fetch(`${api}/resumed/stop`, { method: "POST" });
    await resuming;

    const third = new Chat({ id: "resumed", transport });
    await third.resumeStream();
    const text = ({ messages }) => messages.at(-1).parts.at(-1).text;
    return {
      first: first.seen,
      second: second.seen,
      third: third.seen,
      stop: await stop.json(),
      replayed: text(second).startsWith(text(first)),
    };
  },

  async replaced() {
    const transport = new sdk.DefaultChatTransport({ api });
    const [first, second] = [0, 1].map(() => new Chat({ id: "replaced", transport }));
    const sending = first.sendMessage({ text: "word /forever" });
    await first.state.until(begun);
    await second.sendMessage({ text: "instead" });
    await sending;
    return { first: first.seen, second: second.seen };
  },

  async aborted() {
    const chat = new Chat({ transport: new sdk.DefaultChatTransport({ api: `${url}/plain` }) });
    const sending = chat.sendMessage({ text: "word /forever" });
    await chat.state.until(begun);
    await chat.stop();
    await sending;
    return chat.seen;
  },
};

const seen = { version };
for (const [name, scenario] of Object.entries(scenarios)) seen[name] = await scenario();
console.log(JSON.stringify(seen));
