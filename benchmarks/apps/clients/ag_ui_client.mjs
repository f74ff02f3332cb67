// The client of AG-UI.
import assert from "node:assert/strict";
import { HttpAgent, randomUUID } from "@ag-ui/client";
import { hasRoute, name, run, untilRunning, untilStopped, url } from "./cases.mjs";

const served = () => hasRoute("/ag-ui/{model}");
const user = (content) => ({ id: randomUUID(), role: "user", content });
const tools = [{ name: "look_up", description: "Looks up.", parameters: { type: "object" } }];

function agent(content, model = "echo", fields = {}) {
  return new HttpAgent({ url: `${url}/ag-ui/${model}`, initialMessages: [user(content)], ...fields });
}

const texts = ({ messages }) => messages.map(({ role, content }) => `${role}: ${content ?? ""}`);

await run({
  async text() {
    await served();
    const asked = agent("hello ä world");
    const deltas = [];
    const { newMessages } = await asked.runAgent({}, {
      onTextMessageContentEvent: ({ event }) => void deltas.push(event.delta),
    });
    assert.deepEqual(deltas, ["hello", " ä", " world"]);
    assert.deepEqual(newMessages.map(({ content }) => content), ["hello ä world"]);
  },

  async usage() {
    await served();
    let usage;
    await agent("hello world").runAgent({}, { onRunFinishedEvent: ({ event }) => void ({ usage } = event) });
    assert.deepEqual([usage[0].inputTokens, usage[0].outputTokens], [2, 2]);
  },

  async "several messages"() {
    await served();
    const asked = agent("one");
    await asked.runAgent();
    asked.addMessage(user("two"));
    await asked.runAgent();
    assert.deepEqual(texts(asked), ["user: one", "assistant: one", "user: two", "assistant: two"]);
  },

  async reasoning() {
    await served();
    const asked = agent("/reason hello");
    await asked.runAgent();
    assert.deepEqual(texts(asked).slice(1), ["reasoning: let me think ", "assistant: hello"]);
  },

  async "tools of the client"() {
    await served();
    const asked = agent("/tool");
    let pending;
    await asked.runAgent({ tools }, { onRunFinishedEvent: (run) => void (pending = run.pendingToolCallIds) });
    const [call] = asked.messages.at(-1).toolCalls;
    assert.deepEqual([pending, call.function], [[call.id], { name: "look_up", arguments: '{"text": "hello"}' }]);
    asked.addMessage({ id: randomUUID(), role: "tool", toolCallId: call.id, content: "it rains" });
    await asked.runAgent({ tools });
    assert.equal(asked.messages.at(-1).content, "the tool returned it rains");
  },

  async "tools of the model"() {
    await served();
    const asked = agent("hello", "agent");
    await asked.runAgent();
    assert.deepEqual(texts(asked).slice(1), [
      "assistant: I look.",
      'tool: {"found": [1]}',
      "tool: nothing",
      "assistant: I found one.",
    ]);
    assert.deepEqual(asked.messages[1].toolCalls.map(({ id }) => id), ["c1", "c2"]);
    asked.addMessage(user("again"));
    await asked.runAgent();
    assert.equal(asked.messages.at(-1).content, "I found one.");
  },

  async approval() {
    await served();
    for (const [approved, text] of [[true, "the tool returned done"], [false, "the tool returned too late"]]) {
      const asked = agent("/approve");
      await asked.runAgent();
      const [{ id, reason, toolCallId }] = asked.pendingInterrupts;
      assert.equal(reason, "tool_call");
      const payload = approved ? { approved } : { approved, reason: "too late" };
      await asked.runAgent({ resume: [{ interruptId: id, status: "resolved", payload }] });
      const result = asked.messages.find(({ role }) => role === "tool");
      assert.deepEqual([result.toolCallId, asked.messages.at(-1).content], [toolCallId, text]);
      assert.equal(asked.pendingInterrupts.length, 0);
    }
  },

  async status() {
    await served();
    const steps = [];
    await agent("/status hello").runAgent({}, {
      onStepStartedEvent: ({ event }) => void steps.push(event.stepName),
      onStepFinishedEvent: ({ event }) => void steps.push(event.stepName),
    });
    assert.deepEqual(steps, ["Thinking", "Thinking"]);
  },

  async "state, context and data"() {
    await served();
    const asked = agent("hello", "stateful", { initialState: { count: 1 } });
    const seen = [];
    const context = [{ description: "page", value: "/cart" }];
    await asked.runAgent({ context }, { onCustomEvent: ({ event }) => void seen.push([event.name, event.value]) });
    assert.deepEqual([asked.state, seen], [{ count: 2 }, [["page", "/cart"]]]);
  },

  async "error before the first event"() {
    await served();
    const failed = await agent("/fail").runAgent().catch((error) => error);
    assert.deepEqual([failed.status, failed.payload.code], [503, "asked_to_fail"]);
  },

  async "error after the first event"() {
    await served();
    let error;
    const asked = agent("hello /break");
    await asked.runAgent({}, { onRunErrorEvent: ({ event }) => void (error = event) }).catch(() => {});
    assert.deepEqual([error.message, error.code], ["the model was asked to break", "model_error"]);
  },

  async abort() {
    await served();
    const word = name();
    const asked = agent(`${word} /forever`);
    const ended = asked.runAgent().catch(() => {});
    await untilRunning(word);
    asked.abortRun();
    await ended;
    await untilStopped(word);
  },
});
