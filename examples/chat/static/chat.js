// A chat: shows one conversation, sends messages, and follows the response that is active.

import * as api from "./api.js";
import { announceRequests, answered } from "./approval.js";
import * as composer from "./composer.js";
import * as conversations from "./conversations.js";
import { $, announce, ask } from "./dom.js";
import { save } from "./export.js";
import * as files from "./files.js";
import * as messages from "./messages.js";
import * as models from "./models.js";
import { attempt, isError, refuse, state } from "./notices.js";
import { filesOf, isAnswered, isDone, isRequested, textOf } from "./parts.js";
import * as queue from "./queue.js";
import { signature } from "./record.js";
import { receive } from "./response.js";
import * as shortcuts from "./shortcuts.js";
import * as sidebar from "./sidebar.js";

const UNTITLED = "New conversation";
const INTERRUPTED = "The response was interrupted."; // as the server says it
const tabs = new BroadcastChannel("conversations");

let current = { id: "", title: UNTITLED, messages: [] };
let reading = null; // the AbortController of the response that is being read

const handlers = { send: (text) => send([{ type: "text", text }]), edit, retry, choose, rate, answer };
const last = () => current.messages.at(-1);
const address = () => location.hash.slice(1); // the id of the conversation; none before its first message

// Showing

function show() {
  messages.show(current.messages, handlers, Boolean(reading));
  showState();
}

function showState() {
  const title = conversations.titleOf(current.id) ?? current.title;
  document.title = title === UNTITLED ? "Chat" : `${title} · Chat`;
  $("title").textContent = title;
  $("export").hidden = !current.messages.length;
  showButtons();
  sidebar.show(conversations.view(), current.id, { open, rename, remove, more: conversations.more });
}

function showButtons() {
  $("stop").hidden = !reading;
  $("send").hidden = Boolean(reading) && composer.isEmpty();
  $("send").setAttribute("aria-label", reading ? "Queue" : "Send");
  $("send").title = reading ? "Send after the response" : "";
  const asked = last()?.parts.some(isRequested);
  const why = reading ? "Sent after the response:" : asked ? "Waiting until you have approved or denied:" : "Not sent, because the response did not end:";
  queue.show(current.id, why, reading ? undefined : sendQueued);
}

const update = (message) => messages.update(message, handlers, message === last(), Boolean(reading));

// Conversations

let opening = null; // the AbortController of the conversation that is being opened
let isLoading = false; // the messages of that conversation are not there yet

async function open(id, { focus = true, push = true } = {}) {
  leave();
  const { signal } = (opening = new AbortController());
  isLoading = true;
  if (push && location.hash !== `#${id}`) history.pushState(null, "", `#${id}`);
  if (id !== current.id) composer.showDraft(id);
  const found = await attempt(() => api.get(id, signal));
  if (signal.aborted) return;
  isLoading = false;
  current = found ?? { id, title: UNTITLED, messages: [] };
  show();
  models.showOf(current.messages);
  if (focus) composer.focus();
  if (isAwaited()) await read();
  else if (isDone(last())) await sendQueued(); // the response has ended while another conversation was shown
}

// The last message has no response yet, or waits for the result of a tool that the user has approved or denied.
const isAwaited = () => last()?.role === "user" || isContinued();
const isContinued = () => last()?.role === "assistant" && last().parts.some(isAnswered) && !last().metadata?.incomplete;

// The address has no conversation before the first message.
function begin({ push = true } = {}) {
  leave();
  current = { id: api.newId(), title: UNTITLED, messages: [] };
  if (push && location.hash) history.pushState(null, "", location.pathname);
  composer.showDraft(address());
  show();
  composer.focus();
}

function leave() {
  reading?.abort();
  opening?.abort();
  state(); // such as that it is reconnecting
  reading = null;
  isLoading = false;
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
  if ((await ask($("renaming"))) !== "ok" || !$("name").value.trim()) return;
  await attempt(() => api.change(conversation.id, { title: $("name").value }));
  await changed(conversation.id);
}

async function remove(conversation) {
  $("removing-text").textContent = `“${conversation.title}” is deleted for good.`;
  if ((await ask($("removing"))) !== "ok") return;
  if (conversation.id === current.id && reading) await attempt(() => api.stop(conversation.id));
  await attempt(() => api.remove(conversation.id));
  composer.forgetDraft(conversation.id);
  queue.forget(conversation.id);
  if (conversation.id === current.id) begin();
  await changed(conversation.id);
}

async function changed(id) {
  tabs.postMessage(id);
  await conversations.refresh();
}

// Another tab has changed a conversation.
async function takeNews(id) {
  await conversations.refresh();
  if (id !== current.id || reading) return;
  const found = await attempt(async () => (await api.get(id)) ?? null);
  if (found === undefined || id !== current.id || reading || isShown(found?.messages ?? [])) return;
  await open(id, { focus: false, push: false });
}

const isShown = (stored) => stored.map(signature).join() === current.messages.map(signature).join();

// Messages

const send = (parts) => question({ id: api.newId(), role: "user", parts }, "submit-message");

async function sendQueued() {
  if (reading || queue.isEmpty(current.id)) return;
  const parts = queue.next(current.id);
  showButtons();
  await send(parts);
}

async function retry() {
  if (reading) return;
  if (last()?.metadata?.continued) return again();
  if (last()?.metadata?.disconnected) return follow();
  const asked = current.messages.findLast(({ role }) => role === "user");
  if (asked) await question(asked, "regenerate-message");
}

// The server may have gone on with the response.
async function follow() {
  current.messages.pop();
  await read();
}

// Approvals

async function answer(toolCallId, approved, reason) {
  const message = last();
  if (reading || !message) return;
  message.parts = answered(message.parts, toolCallId, approved, reason);
  announce(approved ? "Approved." : "Denied.");
  if (message.parts.some(isRequested)) return show();
  document.getElementById(`m-${message.id}`)?.focus({ preventScroll: true });
  await goOn(message);
}

const goOn = (message) => read((signal) => api.send(current.id, message, "submit-message", message.model ?? models.chosen(), signal), message);

// The response that continues a message has failed: the server says what it has, and gets the answers again if it needs them.
async function again() {
  await open(current.id, { focus: false, push: false });
  if (!reading && last()?.parts.some(isAnswered)) await goOn(last());
}

let edited = null; // the message that is edited

function edit(message) {
  if (reading) return refuse("Stop the response before you edit a message.");
  edited = message;
  composer.fill(textOf(message), filesOf(message).map((file) => ({ ...file, sent: true })));
  $("editing-text").textContent = "You edit a message. The earlier version is kept.";
  $("editing").hidden = false;
  composer.focus();
  announce($("editing-text").textContent);
}

function cancelEdit() {
  edited = null;
  $("editing").hidden = true;
  $("editing-text").textContent = "";
  composer.showDraft(address());
}

// Show another version of a message, and what follows it.
async function choose({ id, siblings }, step) {
  const chosen = siblings[siblings.indexOf(id) + step];
  if (reading || !chosen) return;
  const conversation = current.id;
  const found = await attempt(async () => {
    await api.change(conversation, { active_id: chosen });
    return api.get(conversation);
  });
  if (!found || conversation !== current.id || reading) return;
  current = found;
  show();
  messages.focusVersions(chosen, step);
  announce(`Version ${siblings.indexOf(chosen) + 1} of ${siblings.length}.`);
  tabs.postMessage(conversation);
  if (isAwaited()) await read();
}

async function rate(message, feedback) {
  const { id } = current;
  if (!(await attempt(() => api.change(id, { rating: { message_id: message.id, feedback } })))) return;
  message.feedback = feedback;
  if (id === current.id) update(message);
  announce(feedback ? "Your feedback is stored." : "Your feedback is removed.");
  tabs.postMessage(id);
}

async function question(message, trigger) {
  const before = current.messages.findIndex(({ id }) => id === (message.replaces ?? message.id));
  if (before >= 0) current.messages.length = before;
  current.messages.push(message);
  const { id } = current;
  if (!address()) {
    composer.forgetDraft("");
    history.replaceState(null, "", `#${id}`);
    composer.keepDraft(id);
  }
  const model = models.chosen();
  await read((signal) => api.send(id, message, trigger, model, signal));
}

// Read a response to its end. `request` sends the question or the approvals; without it, the response that is active is
// followed. `continued`: the message that the response continues.
async function read(request, continued = isContinued() ? last() : undefined) {
  const control = (reading = new AbortController());
  const message = continued ?? { id: api.newId(), role: "assistant", parts: [] };
  const { id } = current;
  delete message.metadata;
  messages.speakFrom(message);
  if (!continued) current.messages.push(message);
  show();
  if (request) messages.toEnd();
  let frame = 0;
  const outcome = await receive(message, id, request, control.signal, {
    onId: (messageId) => messages.rename(message, messageId),
    onReconnect: () => state("Reconnecting…"),
    onStart() {
      state();
      changed(id);
    },
    onChange(part) {
      if (part.type === "data-status") announce(part.data.text);
      frame ||= requestAnimationFrame(() => {
        frame = 0;
        if (control !== reading) return;
        update(message);
        messages.speak(message, false);
      });
    },
  });
  cancelAnimationFrame(frame);
  if (outcome === "left" || control !== reading) return;
  message.status = undefined;
  if (continued && message.metadata?.status === 409) return answeredElsewhere(message.metadata.error);
  if (continued && message.metadata?.incomplete) message.metadata.continued = true;
  if (outcome === "none") await readStored(control, id, message, Boolean(continued));
  else finish(control, message);
}

// Another tab has answered first.
async function answeredElsewhere(error) {
  reading = null;
  await open(current.id, { focus: false, push: false });
  refuse(error);
}

// No response is active: it has ended, and the server has it, or it has never begun.
async function readStored(control, id, message, continues) {
  if (!continues) current.messages.pop();
  const found = await attempt(() => api.get(id, control.signal));
  if (control.signal.aborted) return;
  if (found?.messages.some((stored) => stored.id === last().id)) current = found; // otherwise the question has not arrived
  if (last()?.role === "user") current.messages.push({ ...message, metadata: { incomplete: true, error: INTERRUPTED } });
  else if (isContinued()) last().metadata = { incomplete: true, continued: true, error: INTERRUPTED };
  finish(control, last());
}

async function finish(control, message) {
  if (control !== reading) return;
  reading = null;
  if (!isError()) state();
  show();
  if (message?.role === "assistant") {
    messages.speak(message, true);
    announceRequests(message);
  }
  const problem = document.querySelector(`#messages article:last-child .notice p`)?.textContent;
  if (problem) announce(problem);
  const { id } = current;
  changed(id);
  await adopt();
  if (isDone(message) && id === current.id) await sendQueued();
}

// The server has the versions of the messages that are shown.
async function adopt() {
  const { id } = current;
  const found = await api.get(id).catch(() => undefined);
  if (!found || id !== current.id || reading || !isShown(found.messages)) return;
  current = found;
  show();
}

const stop = () => attempt(() => api.stop(current.id));

// The page

const isSame = (parts, message) => JSON.stringify(parts) === JSON.stringify([...filesOf(message), ...message.parts.filter(({ type }) => type === "text")].map(bare));
const bare = ({ type, text, mediaType, filename, url }) => (type === "text" ? { type, text: text.trim() } : { type, mediaType, filename, url });

function submit() {
  if (isLoading) return refuse("Wait until the conversation is loaded.");
  if (composer.isEmpty()) return reading ? undefined : sendQueued();
  const { parts, problem } = composer.message();
  if (problem) return refuse(problem);
  const message = edited;
  if (message) {
    cancelEdit();
    if (isSame(parts, message)) return question(message, "regenerate-message");
    return question({ id: api.newId(), role: "user", parts, replaces: message.id }, "submit-message");
  }
  const waits = reading || !queue.isEmpty(current.id); // a message does not overtake another one
  const full = waits ? queue.add(current.id, parts) : undefined;
  if (full) return refuse(full);
  composer.fill("");
  composer.keepDraft(address());
  if (!waits) return send(parts);
  showButtons();
  return sendQueued();
}

function typed() {
  if (isError()) state();
  if (!edited) composer.keepDraft(address());
  showButtons();
}

function move(step) {
  const next = conversations.neighbour(current.id, step);
  if (next) open(next.id);
}

function escape(target) {
  if (target === $("search") && target.value) {
    target.value = "";
    return conversations.find("");
  }
  if (sidebar.isOpen()) return sidebar.toggle(false);
  if (edited) return cancelEdit();
  return reading ? stop() : undefined;
}

function editLast() {
  const message = current.messages.findLast(({ role }) => role === "user");
  if (!message || reading) return false;
  edit(message);
}

function toSearch() {
  sidebar.reveal();
  $("search").select();
}

$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  submit();
});
$("prompt").addEventListener("input", () => {
  typed();
  composer.grow();
});
$("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    submit();
  }
});
$("skip").addEventListener("click", (event) => {
  event.preventDefault();
  composer.focus();
});
$("stop").addEventListener("click", stop);
$("cancel-edit").addEventListener("click", () => {
  cancelEdit();
  composer.focus();
});
$("new").addEventListener("click", () => begin());
for (const cancel of document.querySelectorAll("dialog .cancel")) cancel.addEventListener("click", () => cancel.closest("dialog").close());
for (const choice of document.querySelectorAll("#formats button")) {
  choice.addEventListener("click", () => {
    $("formats").hidePopover();
    attempt(() => save(current, choice.value));
  });
}
$("latest").addEventListener("click", messages.toEnd);
$("scroller").addEventListener("scroll", messages.showLatest);
window.addEventListener("popstate", openAddress);
tabs.addEventListener("message", ({ data }) => takeNews(data));

shortcuts.start({ escape, begin: () => begin(), move, search: toSearch, editLast });
sidebar.start(conversations.find);
models.start().then(() => models.showOf(current.messages));
files.start(typed);
conversations.start(showState);
openAddress();
