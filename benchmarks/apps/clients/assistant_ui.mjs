// assistant-ui in Chromium: a page of its components with `useChat` of React.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { fileURLToPath } from "node:url";
import { buildSync } from "esbuild";
import { chromium } from "playwright-core";
import { hasRoute, name, run, untilRunning, untilStopped, url } from "./cases.mjs";

const bundle = buildSync({
  entryPoints: [fileURLToPath(new URL("assistant_ui_page.jsx", import.meta.url))],
  bundle: true,
  write: false,
  format: "esm",
  jsx: "automatic",
  define: { "process.env.NODE_ENV": '"production"' },
}).outputFiles[0].text;
const executablePath = execFileSync("which", ["chromium"], { encoding: "utf8" }).trim();
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });

// A tab with the page, which has the origin of the server.
async function tab({ api = "/api/chat", id = name(), model = "echo" } = {}) {
  const page = await browser.newPage();
  page.setDefaultTimeout(15_000);
  const address = `${url}/assistant-ui`;
  await page.route(`${address}.js`, (route) => route.fulfill({ contentType: "text/javascript", body: bundle }));
  await page.route(`${address}?*`, (route) => {
    route.fulfill({
      contentType: "text/html",
      body: '<meta charset="utf-8"><div id="page"></div><script type="module" src="/assistant-ui.js"></script>',
    });
  });
  await page.goto(`${address}?${new URLSearchParams({ api, id, model })}`);
  await page.getByLabel("Message").waitFor();
  return page;
}

async function send(page, text) {
  await page.getByLabel("Message").fill(text);
  await page.getByRole("button", { name: "Send" }).click();
}

const said = (page, text) => page.locator(".assistant").last().getByText(text).waitFor();
const ready = (page) => page.getByRole("status").getByText("ready").waitFor();
const press = (page, label) => page.getByRole("button", { name: label }).last().click();
const count = (page, kind) => page.locator(kind).count();

await run({
  async "text and reasoning"() {
    const page = await tab();
    await send(page, "/reason hello ä world");
    await said(page, "hello ä world");
    await said(page, "let me think");
    await ready(page);
    await send(page, "second");
    await said(page, "second");
    assert.equal(await count(page, ".assistant"), 2);
  },

  async "source"() {
    const page = await tab();
    await send(page, "hello /source");
    await said(page, "https://example.com");
  },

  async "tools that the model runs"() {
    const page = await tab({ model: "agent" });
    await send(page, "go");
    await said(page, 'search {"query":"x"}: {"found":[1]}');
    await said(page, "search {}: failed: ");
    await said(page, "I found one.");
    assert.equal(await count(page, ".assistant"), 1);
  },

  async errors() {
    const page = await tab();
    await send(page, "/fail");
    await page.getByRole("alert").getByText("the model was asked to fail").waitFor();
  },

  async "stop, without resume"() {
    const [page, word] = [await tab({ api: "/plain" }), name()];
    await send(page, `${word} /forever`);
    await said(page, word);
    await press(page, "Stop");
    await untilStopped(word);
    await ready(page);
  },

  async "reload during a response, and stop"() {
    await hasRoute("/stored/conversations");
    const [id, word] = [name(), name()];
    const page = await tab({ api: "/stored/chat", id });
    await send(page, `${word} /forever`);
    await said(page, word);
    await page.reload();
    await said(page, word);
    await untilRunning(word);
    await press(page, "Stop");
    await ready(page);
    await untilStopped(word);
    await page.reload();
    await said(page, word);
    assert.equal(await count(page, ".assistant"), 1);
  },

  async "approval through a reload, in another tab"() {
    await hasRoute("/stored/conversations");
    const id = name();
    const page = await tab({ api: "/stored/chat", id });
    await send(page, "/approve");
    await page.getByRole("button", { name: "Approve" }).waitFor();
    await page.reload();
    await page.getByRole("button", { name: "Approve" }).waitFor();
    const other = await tab({ api: "/stored/chat", id });
    await press(other, "Approve");
    await said(other, "the tool returned done");
    await said(other, 'send {"text":"hello"}: done');
    await page.reload();
    await said(page, "the tool returned done");
    assert.equal(await count(page, "button:text('Approve')"), 0);
  },

  async "another response, and an edited message"() {
    await hasRoute("/stored/conversations");
    const id = name();
    const page = await tab({ api: "/stored/chat", id });
    await send(page, "first");
    await said(page, "first");
    await ready(page);
    await send(page, "second");
    await said(page, "second");
    await ready(page);
    await press(page, "Retry");
    await said(page, "2/2");
    await ready(page);
    await page.locator(".user").last().hover();
    await press(page, "Edit");
    await page.getByLabel("Edited").fill("third");
    await press(page, "Save");
    await said(page, "third");
    await ready(page);
    const { messages } = await (await fetch(`${url}/stored/conversations/${id}?all=true`)).json();
    const texts = messages.map(({ parts }) => parts.findLast(({ type }) => type === "text").text);
    assert.deepEqual(texts.sort(), ["first", "first", "second", "second", "second", "third", "third"]);
    await page.reload();
    await said(page, "third");
    assert.equal(await count(page, ".assistant"), 2);
  },

  async "the first message, edited"() {
    await hasRoute("/stored/conversations");
    const id = name();
    const page = await tab({ api: "/stored/chat", id });
    await send(page, "first");
    await said(page, "first");
    await ready(page);
    await press(page, "Edit");
    await page.getByLabel("Edited").fill("other");
    await press(page, "Save");
    await said(page, "other");
    await ready(page);
    await page.reload();
    await said(page, "other");
    assert.equal(await count(page, ".user"), 1);
    const { messages } = await (await fetch(`${url}/stored/conversations/${id}`)).json();
    assert.equal(messages[0].siblings.length, 2);
  },
});
