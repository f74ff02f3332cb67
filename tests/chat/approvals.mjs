// Approves a call of a tool with the chats of `useChat`, without React: in the tab that asked, or in one that was loaded.
// node approvals.mjs URL
import * as sdk from "ai";

const url = process.argv[2];

class State {
  status = "ready";
  error = undefined;
  messages = [];
  pushMessage = (message) => (this.messages = [...this.messages, message]);
  popMessage = () => (this.messages = this.messages.slice(0, -1));
  replaceMessage = (index, message) => (this.messages = this.messages.with(index, structuredClone(message)));
  snapshot = (thing) => structuredClone(thing);
}

class Chat extends sdk.AbstractChat {
  constructor(id, messages = []) {
    const state = new State();
    state.messages = messages;
    let finish;
    const finished = new Promise((resolve) => (finish = resolve));
    super({
      id,
      state,
      transport: new sdk.DefaultChatTransport({ api: `${url}/api/chat` }),
      sendAutomaticallyWhen: sdk.lastAssistantMessageIsCompleteWithApprovalResponses,
      onFinish: () => this.answers && finish(),
      onError: () => finish(),
    });
    this.finished = finished;
  }

  async answer(approved) {
    this.answers = true;
    const { approval } = this.messages.at(-1).parts.at(-1);
    await this.addToolApprovalResponse({ id: approval.id, approved, reason: approved ? undefined : "too much" });
    await this.finished;
  }
}

const stored = async (id) => (await (await fetch(`${url}/api/conversations/${id}`)).json()).messages;
const seen = {};

for (const [id, approved] of [["approved", true], ["denied", false]]) {
  const first = new Chat(id);
  await first.sendMessage({ text: "Pay it." });
  const second = new Chat(id, await sdk.validateUIMessages({ messages: await stored(id) }));
  await second.answer(approved);
  await first.answer(!approved);
  seen[id] = { shown: second.messages, stored: await stored(id), late: first.error.message };
  await sdk.validateUIMessages({ messages: seen[id].stored });
}
console.log(JSON.stringify(seen));
