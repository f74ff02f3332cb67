// CopilotKit: its core, as its React components use it, and its runtime, whose agents are models.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { createServer } from "node:http";
import { fileURLToPath } from "node:url";
import { HttpAgent } from "@ag-ui/client";
import { CopilotKitCore } from "@copilotkit/core";
import { buildSync } from "esbuild";
import { chromium } from "playwright-core";
import { z } from "zod";
import { hasRoute, name, run, untilRunning, untilStopped, url } from "./cases.mjs";

process.env.COPILOTKIT_TELEMETRY_DISABLED = "true"; // read when the runtime is imported
const { CopilotRuntime } = await import("@copilotkit/runtime/v2");
const { createCopilotNodeListener } = await import("@copilotkit/runtime/v2/node");
globalThis.window ??= globalThis; // otherwise the core takes Node for a server that renders pages

const served = () => hasRoute("/ag-ui/{model}");
const models = ["echo", "agent", "stateful"];
const agents = Object.fromEntries(models.map((model) => [model, new HttpAgent({ url: `${url}/ag-ui/${model}` })]));
const runtime = new CopilotRuntime({ agents });
const bundle = buildSync({
  entryPoints: [fileURLToPath(new URL("copilotkit_page.jsx", import.meta.url))],
  bundle: true,
  write: false,
  outdir: "page",
  format: "esm",
  jsx: "automatic",
  loader: { ".woff": "empty", ".woff2": "empty", ".ttf": "empty" },
  define: { "process.env.NODE_ENV": '"production"' },
}).outputFiles.find(({ path }) => path.endsWith(".js")).text;
const html = '<meta charset="utf-8"><div id="page"></div><script type="module" src="/page.js"></script>';
const files = { "/": ["text/html", html], "/page.js": ["text/javascript", bundle] };
const listener = createCopilotNodeListener({ runtime, basePath: "/copilotkit" });
const server = createServer((request, response) => {
  const file = files[request.url.split("?")[0]];
  if (file === undefined) return listener(request, response);
  response.writeHead(200, { "content-type": file[0] }).end(file[1]);
});
await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
const origin = `http://127.0.0.1:${server.address().port}`;
const runtimeUrl = `${origin}/copilotkit`;

const executablePath = execFileSync("which", ["chromium"], { encoding: "utf8" }).trim();
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });

// A core and its agent, as the React components use them, with a message of the user.
async function asked(content, model = "echo", tools = []) {
  const core = new CopilotKitCore({ runtimeUrl, tools });
  while (core.getAgent(model) === undefined) await new Promise((resolve) => setTimeout(resolve, 20));
  const agent = core.getAgent(model);
  agent.threadId = name();
  agent.addMessage({ id: name(), role: "user", content });
  return { core, agent };
}

// A tab with the page.
async function tab(agent = "echo") {
  const page = await browser.newPage();
  page.setDefaultTimeout(20_000);
  await page.goto(`${origin}/?agent=${agent}`);
  return page;
}

async function send(page, text) {
  await page.getByTestId("copilot-chat-textarea").fill(text);
  await page.getByTestId("copilot-send-button").click();
}

const said = (page, text) => page.getByTestId("copilot-assistant-message").getByText(text).first().waitFor();

const texts = ({ messages }) => messages.map(({ role, content }) => `${role}: ${content ?? ""}`);

await run({
  async text() {
    await served();
    const { core, agent } = await asked("hello ä world");
    await core.runAgent({ agent });
    assert.deepEqual(texts(agent), ["user: hello ä world", "assistant: hello ä world"]);
    agent.addMessage({ id: name(), role: "user", content: "more" });
    await core.runAgent({ agent });
    assert.deepEqual(texts(agent).slice(2), ["user: more", "assistant: more"]);
  },

  async reasoning() {
    await served();
    const { core, agent } = await asked("/reason hello");
    await core.runAgent({ agent });
    assert.deepEqual(texts(agent).slice(1), ["reasoning: let me think ", "assistant: hello"]);
  },

  async "tools of the page"() {
    await served();
    const calls = [];
    const handler = async (input) => (calls.push(input), "it rains");
    const look_up = { name: "look_up", description: "Looks up.", parameters: z.object({ text: z.string() }), handler };
    const { core, agent } = await asked("/tool", "echo", [look_up]);
    await core.runAgent({ agent });
    assert.deepEqual(calls, [{ text: "hello" }]);
    assert.equal(agent.messages.at(-1).content, "the tool returned it rains");
  },

  async "tools of the model"() {
    await served();
    const { core, agent } = await asked("hello", "agent");
    await core.runAgent({ agent });
    assert.deepEqual(texts(agent).slice(1), [
      "assistant: I look.",
      'tool: {"found": [1]}',
      "tool: nothing",
      "assistant: I found one.",
    ]);
  },

  async "state and context"() {
    await served();
    const { core, agent } = await asked("hello", "stateful");
    agent.setState({ count: 1 });
    core.addContext({ description: "page", value: "/cart" });
    const seen = [];
    agent.subscribe({ onCustomEvent: ({ event }) => void seen.push(event.value) });
    await core.runAgent({ agent });
    assert.deepEqual([agent.state, seen], [{ count: 2 }, ["/cart"]]);
  },

  async approval() {
    await served();
    const { core, agent } = await asked("/approve");
    await core.runAgent({ agent });
    const [{ id }] = agent.pendingInterrupts;
    await core.runAgent({ agent, resume: [{ interruptId: id, status: "resolved", payload: { approved: true } }] });
    assert.equal(agent.messages.at(-1).content, "the tool returned done");
  },

  async error() {
    await served();
    const { core, agent } = await asked("/fail");
    const errors = [];
    core.subscribe({ onError: ({ error }) => void errors.push(String(error)) });
    await core.runAgent({ agent }).catch((error) => errors.push(String(error)));
    assert.match(errors.join(), /asked to fail/);
  },

  async stop() {
    await served();
    const word = name();
    const { core, agent } = await asked(`${word} /forever`);
    const ended = core.runAgent({ agent }).catch(() => {});
    await untilRunning(word);
    core.stopAgent({ agent });
    await ended;
    await untilStopped(word);
  },

  async "page: text"() {
    await served();
    const page = await tab();
    await send(page, "hello ä world");
    await said(page, "hello ä world");
    await send(page, "more words");
    await said(page, "more words");
  },

  async "page: tool of the page"() {
    await served();
    const page = await tab();
    await send(page, "/tool");
    await said(page, "the tool returned it rains on hello");
  },

  async "page: approval"() {
    await served();
    const page = await tab();
    await send(page, "/approve");
    await page.getByRole("button", { name: "Approve" }).click();
    await said(page, "the tool returned done");
  },

  async "page: stop"() {
    await served();
    const [page, word] = [await tab(), name()];
    await send(page, `${word} /forever`);
    await said(page, word);
    await page.getByTestId("copilot-send-button").click();
    await untilStopped(word);
  },
});
