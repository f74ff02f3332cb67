// A chat: shows one conversation, sends messages, and follows the response that is active.

import * as api from "./api.js";
import { $, announce } from "./dom.js";
import * as messages from "./messages.js";
import * as sidebar from "./sidebar.js";
import { Interrupted, parts } from "./stream.js";

const UNTITLED = "New conversation";
const RECONNECT_MS = 60_000; // how long a lost connection is tried again without a new part
const PAUSE_MS = 250; // before the second attempt; each pause is twice as long as the one before
const MAX_PAUSE_MS = 4000;
const UNAVAILABLE = [502, 503, 504]; // of a proxy that finds no replica
const REMOVES = ["", " Sending it removes the message after it.", " Sending it removes the N messages after it."];
const INTERRUPTED = "The response was interrupted."; // as the server says it
const tabs = new BroadcastChannel("conversations");

let conversations = [];
let hasMore = false;
let current = { id: "", title: UNTITLED, messages: [] };
let reading = null; // the AbortController of the response that is being read

const handlers = { send, edit, retry };
const last = () => current.messages.at(-1);

// Drafts: each conversation has its own, and so has a new one. They stay until the tab is closed.

const draftKey = () => `draft ${location.hash.slice(1) || "of a new conversation"}`;

function keepDraft() {
  if (edited) return;
  try {
    if ($("prompt").value) sessionStorage.setItem(draftKey(), $("prompt").value);
    else sessionStorage.removeItem(draftKey());
  } catch {
    // The storage is full: the draft stays in the field only.
  }
}

function setPrompt(text) {
  $("prompt").value = text;
  grow();
}

const showDraft = () => setPrompt(sessionStorage.getItem(draftKey()) ?? "");

// Showing

function show() {
  messages.show(current.messages, handlers, Boolean(reading));
  showState();
}

function showState() {
  const title = conversations.find(({ id }) => id === current.id)?.title ?? current.title;
  document.title = title === UNTITLED ? "Chat" : `${title} · Chat`;
  $("title").textContent = title;
  $("stop").hidden = !reading;
  $("send").hidden = Boolean(reading);
  sidebar.show(conversations, current.id, hasMore, { open, rename, remove, more });
}

function state(text = "", isError = false) {
  $("state").hidden = !text;
  $("state").textContent = text;
  $("state").classList.toggle("error", isError);
}

const update = (message) => messages.update(message, handlers, message === last(), Boolean(reading));

async function refresh() {
  conversations = await attempt(() => api.list()) ?? conversations;
  hasMore = conversations.length === api.PAGE;
  showState();
}

async function more() {
  const next = await attempt(() => api.list(conversations.length)) ?? [];
  const known = new Set(conversations.map(({ id }) => id));
  conversations.push(...next.filter(({ id }) => !known.has(id)));
  hasMore = next.length === api.PAGE;
  showState();
}

// An error of a small request is shown beside the title.
async function attempt(call) {
  try {
    const result = await call();
    if ($("state").classList.contains("error")) state();
    return result;
  } catch (error) {
    if (error.name === "AbortError") return undefined;
    state(error instanceof TypeError ? "The server cannot be reached." : error.message, true);
    announce($("state").textContent);
    return undefined;
  }
}

// Conversations

let opening = null; // the AbortController of the conversation that is being opened

async function open(id, { focus = true, push = true } = {}) {
  leave();
  const { signal } = (opening = new AbortController());
  if (push && location.hash !== `#${id}`) history.pushState(null, "", `#${id}`);
  showDraft();
  const found = await attempt(() => api.get(id, signal));
  if (signal.aborted) return;
  current = found ?? { id, title: UNTITLED, messages: [] };
  show();
  if (focus) $("prompt").focus();
  if (last()?.role === "user") await read();
}

// The address has no conversation before the first message.
function begin({ push = true } = {}) {
  leave();
  current = { id: api.newId(), title: UNTITLED, messages: [] };
  if (push && location.hash) history.pushState(null, "", location.pathname);
  showDraft();
  show();
  $("prompt").focus();
}

function leave() {
  reading?.abort();
  opening?.abort();
  if (reading) state(); // such as that it is reconnecting
  reading = null;
  if (edited) cancelEdit();
  sidebar.toggle(false);
}

function openAddress() {
  const id = location.hash.slice(1);
  if (id) open(id, { push: false });
  else begin({ push: false });
}

async function rename(conversation) {
  $("name").value = conversation.title;
  if ((await answer($("renaming"))) !== "ok" || !$("name").value.trim()) return;
  await attempt(() => api.rename(conversation.id, $("name").value));
  await changed(conversation.id);
}

async function remove(conversation) {
  $("removing-text").textContent = `“${conversation.title}” is deleted for good.`;
  if ((await answer($("removing"))) !== "ok") return;
  if (conversation.id === current.id && reading) await attempt(() => api.stop(conversation.id));
  await attempt(() => api.remove(conversation.id));
  sessionStorage.removeItem(`draft ${conversation.id}`);
  if (conversation.id === current.id) begin();
  await changed(conversation.id);
}

function answer(dialog) {
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => dialog.addEventListener("close", () => resolve(dialog.returnValue), { once: true }));
}

async function changed(id) {
  tabs.postMessage(id);
  await refresh();
}

// Another tab has changed a conversation.
async function takeNews(id) {
  await refresh();
  if (id !== current.id || reading) return;
  const found = await attempt(() => api.get(id));
  if (id !== current.id || reading || isShown(found?.messages ?? [])) return;
  await open(id, { focus: false, push: false });
}

const isShown = (stored) => stored.map(({ id }) => id).join() === current.messages.map(({ id }) => id).join();

// Messages

async function send(text) {
  if (!text.trim() || reading) return;
  await ask({ id: api.newId(), role: "user", parts: [{ type: "text", text: text.trim() }] }, "submit-message");
}

async function retry() {
  if (!reading && last()?.metadata?.disconnected) return follow();
  const question = current.messages.findLast(({ role }) => role === "user");
  if (question && !reading) await ask(question, "regenerate-message");
}

// The server may have gone on with the response.
async function follow() {
  current.messages.pop();
  await read();
}

let edited = null; // the message that is edited

function edit(message) {
  if (reading) return;
  edited = message;
  setPrompt(messages.textOf(message));
  const later = current.messages.length - 1 - current.messages.findIndex(({ id }) => id === message.id);
  $("editing-text").textContent = `You edit a message.${REMOVES[Math.min(later, 2)].replace("N", later)}`;
  $("editing").hidden = false;
  $("prompt").focus();
  announce($("editing-text").textContent);
}

function cancelEdit() {
  edited = null;
  $("editing").hidden = true;
  $("editing-text").textContent = "";
  showDraft();
}

async function ask(question, trigger) {
  const before = current.messages.findIndex(({ id }) => id === question.id);
  if (before >= 0) current.messages.length = before;
  current.messages.push(question);
  const { id } = current;
  if (!location.hash) {
    sessionStorage.removeItem(draftKey());
    history.replaceState(null, "", `#${id}`);
    keepDraft();
  }
  await read((signal) => api.send(id, question, trigger, signal));
}

// Read a response to its end. `request` sends the question; without it, the response that is active is followed.
async function read(request) {
  let following = request === undefined;
  const mine = (reading = new AbortController());
  const { signal } = mine;
  const message = { id: api.newId(), role: "assistant", parts: [] };
  const { id } = current;
  messages.speakFromStart();
  current.messages.push(message);
  show();
  if (request) messages.toEnd();
  let furthest = 0; // the most parts that arrived in one attempt, because each replays the response from its start
  let since; // when the connection was lost
  for (let pause = PAUSE_MS; ; pause = Math.min(2 * pause, MAX_PAUSE_MS)) {
    let arrived = 0;
    try {
      const response = await (following ? api.follow(id, signal) : request(signal));
      if (response.status === 204) return await readStored(mine, id);
      await take(message, response, mine, () => ++arrived >= furthest);
      break;
    } catch (error) {
      if (signal.aborted) return;
      const isLost = error instanceof Interrupted || error instanceof TypeError || (following && UNAVAILABLE.includes(error.status));
      if (arrived > furthest) [furthest, since, pause] = [arrived, undefined, PAUSE_MS];
      since ??= Date.now();
      if (!isLost || Date.now() - since >= RECONNECT_MS) {
        message.metadata = isLost ? { incomplete: true, disconnected: true } : { incomplete: true, error: error.message };
        break;
      }
      state("Reconnecting…");
      following = true;
      await new Promise((resolve) => setTimeout(resolve, pause * (0.5 + Math.random() / 2)));
      if (signal.aborted) return;
    }
  }
  finish(mine, message);
}

// Read one attempt. The message is shown as it was until `onPart` says that the attempt has come as far.
async function take(message, response, mine, onPart) {
  const taken = { parts: [], metadata: undefined };
  let first = true;
  let frame = 0;
  for await (const part of parts(response)) {
    const isNews = onPart();
    if (first) {
      state();
      changed(current.id);
      first = false;
    }
    add(message, taken, part);
    if (!isNews) continue;
    Object.assign(message, taken);
    frame ||= requestAnimationFrame(() => {
      frame = 0;
      if (mine !== reading) return;
      update(message);
      messages.speak(message, false);
    });
  }
  cancelAnimationFrame(frame);
  Object.assign(message, taken);
}

const callOf = ({ parts }, { toolCallId }) => parts.findLast((part) => part.toolCallId === toolCallId) ?? {};

function add(message, taken, part) {
  const [kind, step] = part.type.split("-");
  if (part.type === "start") messages.rename(message, part.messageId);
  else if (kind === "start") return;
  else if (kind === "tool") addCall(taken, part);
  else if (step === "start") taken.parts.push({ type: kind, text: "" });
  else if (step === "delta") taken.parts.findLast(({ type }) => type === kind).text += part.delta;
  else if (part.type === "error") taken.metadata = { incomplete: true, error: part.errorText };
  else if (part.type === "abort") taken.metadata = { incomplete: true };
}

// The parts of a message are those that the AI SDK has and the server stores.
function addCall(taken, part) {
  if (part.type === "tool-input-start") taken.parts.push({ type: `tool-${part.toolName}`, toolCallId: part.toolCallId, state: "input-streaming", inputText: "" });
  else if (part.type === "tool-input-delta") callOf(taken, part).inputText += part.inputTextDelta;
  else if (part.type === "tool-input-available") Object.assign(callOf(taken, part), { state: "input-available", input: part.input });
  else if (part.type === "tool-input-error") Object.assign(callOf(taken, part), { state: "output-error", rawInput: part.input, errorText: part.errorText });
  else if (part.type === "tool-output-available") Object.assign(callOf(taken, part), { state: "output-available", output: part.output });
  else if (part.type === "tool-output-error") Object.assign(callOf(taken, part), { state: "output-error", errorText: part.errorText });
}

// No response is active: it has ended, and the server has it, or it has never begun.
async function readStored(mine, id) {
  const message = current.messages.pop();
  const found = await attempt(() => api.get(id, mine.signal));
  if (mine.signal.aborted) return;
  if (found?.messages.some((each) => each.id === last().id)) current = found; // otherwise the question has not arrived
  if (last()?.role === "user") current.messages.push({ ...message, metadata: { incomplete: true, error: INTERRUPTED } });
  finish(mine, last());
}

function finish(mine, message) {
  if (mine !== reading) return;
  reading = null;
  if (!$("state").classList.contains("error")) state();
  show();
  if (message?.role === "assistant") messages.speak(message, true);
  const problem = document.querySelector(`#messages article:last-child .notice p`)?.textContent;
  if (problem) announce(problem);
  changed(current.id);
}

const stop = () => attempt(() => api.stop(current.id));

// The page

function grow() {
  $("prompt").style.height = "auto";
  $("prompt").style.height = `${$("prompt").scrollHeight}px`;
}

function submit() {
  const text = $("prompt").value.trim();
  if (!text || reading) return;
  const message = edited;
  if (!message) {
    setPrompt("");
    keepDraft();
    return send(text);
  }
  cancelEdit();
  return ask({ ...message, parts: [{ type: "text", text }] }, "submit-message");
}

function move(step) {
  const index = conversations.findIndex(({ id }) => id === current.id);
  const next = conversations[index < 0 ? 0 : index + step];
  if (next) open(next.id);
}

function escape() {
  if (sidebar.isOpen()) return sidebar.toggle(false);
  if (edited) return cancelEdit();
  return reading ? stop() : undefined;
}

function press(event) {
  if (document.querySelector("dialog[open]")) return;
  const typing = event.target.matches?.("input, textarea");
  const mod = event.ctrlKey || event.metaKey;
  const shortcuts = {
    Escape: () => !event.isComposing && escape,
    "/": () => !typing && !mod && (() => $("prompt").focus()),
    "?": () => !typing && !mod && (() => $("shortcuts").showModal()),
    O: () => mod && event.shiftKey && (() => begin()),
    ArrowUp: () => (event.altKey ? () => move(-1) : event.target === $("prompt") && !$("prompt").value && !reading && editLast()),
    ArrowDown: () => event.altKey && (() => move(1)),
  };
  const action = shortcuts[event.key.length === 1 ? event.key.toUpperCase() : event.key]?.();
  if (!action) return;
  event.preventDefault();
  action();
}

function editLast() {
  const message = current.messages.findLast(({ role }) => role === "user");
  return message && (() => edit(message));
}

$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  submit();
});
$("prompt").addEventListener("input", () => {
  keepDraft();
  grow();
});
$("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    submit();
  }
});
document.addEventListener("keydown", press);
$("skip").addEventListener("click", (event) => {
  event.preventDefault();
  $("prompt").focus();
});
$("stop").addEventListener("click", stop);
$("cancel-edit").addEventListener("click", () => {
  cancelEdit();
  $("prompt").focus();
});
$("new").addEventListener("click", () => begin());
for (const cancel of document.querySelectorAll("dialog .cancel")) cancel.addEventListener("click", () => cancel.closest("dialog").close());
$("help").addEventListener("click", () => $("shortcuts").showModal());
$("latest").addEventListener("click", messages.toEnd);
$("scroller").addEventListener("scroll", messages.showLatest);
window.addEventListener("popstate", openAddress);
tabs.addEventListener("message", ({ data }) => takeNews(data));

sidebar.start();
refresh();
openAddress();
