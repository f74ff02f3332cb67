import { marked } from "./vendor/marked.js";
import DOMPurify from "./vendor/purify.js";
import * as conversations from "./conversations.js";
import { Interrupted, parts } from "./stream.js";

const API = "api/chat";
const RECONNECTS = 8;
const SUGGESTIONS = ["How do I batch calls?", "What happens when a replica dies?", "How does autoscaling work?", "Resume a stream after a reload"];

const $ = (id) => document.getElementById(id);
const element = (name, properties = {}, ...children) => {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
};

let current = conversations.find(location.hash.slice(1) || conversations.newId());
let reading = null; // the AbortController of the response that is being read

// Rendering

function render() {
  document.title = $("title").textContent = current.title;
  $("conversations").replaceChildren(...conversations.all().map(entry));
  $("messages").replaceChildren(...(current.messages.length ? current.messages.map(view) : [welcome()]));
  showWriting();
  toEnd(true);
}

function entry({ id, title }) {
  const open = element("button", { className: "open", type: "button", textContent: title, onclick: () => show(id) });
  if (id === current.id) open.setAttribute("aria-current", "page");
  const remove = element("button", { className: "remove", type: "button", textContent: "×", onclick: () => forget(id) });
  remove.setAttribute("aria-label", `Delete “${title}”`);
  return element("li", { className: id === current.id ? "current" : "" }, open, remove);
}

function welcome() {
  const suggestions = SUGGESTIONS.map((text) => element("button", { type: "button", textContent: text, onclick: () => send(text) }));
  return element("div", { className: "welcome" },
    element("h2", { textContent: "Ask about the documentation" }),
    element("p", { textContent: "A response survives a reload, a lost connection and an update of the server." }),
    element("div", { className: "suggestions" }, ...suggestions));
}

function view(message) {
  const article = element("article", { className: `message ${message.role}`, id: `m-${message.id}` });
  article.setAttribute("aria-label", message.role === "user" ? "You" : "Assistant");
  fill(article, message);
  return article;
}

function fill(article, message) {
  const text = element("div", { className: "text" });
  if (message.role === "user") text.textContent = message.text;
  else text.innerHTML = DOMPurify.sanitize(marked.parse(message.text ?? ""), { FORBID_TAGS: ["style", "form", "input", "img"] });
  for (const link of text.querySelectorAll("a")) Object.assign(link, { target: "_blank", rel: "noopener noreferrer" });
  for (const code of text.querySelectorAll("pre")) code.tabIndex = 0; // it scrolls
  const inside = [];
  if (message.reasoning) {
    inside.push(element("details", { className: "reasoning", open: !message.text },
      element("summary", { textContent: "Reasoning" }), element("p", { textContent: message.reasoning })));
  }
  inside.push(text);
  if (message.error) inside.push(element("div", { className: "error", textContent: message.error }));
  inside.push(actions(message));
  article.replaceChildren(...inside);
  article.classList.toggle("writing", message.state === "writing");
}

function actions(message) {
  const bar = element("div", { className: "actions" });
  const add = (label, onclick) => bar.append(element("button", { type: "button", textContent: label, onclick }));
  if (message.state === "writing") return bar;
  add("Copy", () => navigator.clipboard?.writeText(message.text));
  if (message.role === "user") add("Edit", () => edit(message));
  else if (message === current.messages.at(-1)) add("Retry", retry);
  return bar;
}

function update(message) {
  const article = $(`m-${message.id}`);
  const atEnd = isAtEnd();
  if (article) fill(article, message);
  else $("messages").append(view(message));
  if (atEnd) toEnd();
}

const isAtEnd = () => $("messages").scrollHeight - $("messages").scrollTop - $("messages").clientHeight < 80;
const toEnd = () => { $("messages").scrollTop = $("messages").scrollHeight; };

function showWriting() {
  $("stop").hidden = !reading;
  $("send").hidden = Boolean(reading);
}

function notice(text) {
  $("notice").hidden = !text;
  $("notice").textContent = text ?? "";
}

// Conversations

function show(id) {
  reading?.abort();
  reading = null;
  current = conversations.find(id);
  history.replaceState(null, "", `#${id}`);
  closeSidebar();
  notice();
  render();
  $("prompt").focus();
  resume();
}

function forget(id) {
  conversations.remove(id);
  if (id === current.id) show(conversations.newId());
  else render();
}

// A conversation is saved with every message that has ended, and when one begins: a reload finds what to resume.
function keep() {
  conversations.save(current);
  $("conversations").replaceChildren(...conversations.all().map(entry));
  document.title = $("title").textContent = current.title;
}

function send(text) {
  if (!text.trim() || reading) return;
  current.messages.push({ id: conversations.newId(), role: "user", text: text.trim() });
  if (current.title === "New conversation") current.title = text.trim().slice(0, 60);
  history.replaceState(null, "", `#${current.id}`);
  ask("submit-message");
}

function retry() {
  while (current.messages.at(-1)?.role === "assistant") current.messages.pop();
  ask("regenerate-message");
}

function edit(message) {
  if (reading) return;
  current.messages = current.messages.slice(0, current.messages.indexOf(message));
  keep();
  render();
  $("prompt").value = message.text;
  grow();
  $("prompt").focus();
}

function ask(trigger) {
  const messages = current.messages.map(conversations.uiMessage);
  const message = { id: conversations.newId(), role: "assistant", text: "", reasoning: "", state: "writing" };
  current.messages.push(message);
  keep();
  render();
  const body = JSON.stringify({ id: current.id, messages, trigger });
  read(message, (signal) => fetch(API, { method: "POST", headers: { "content-type": "application/json" }, body, signal }));
}

function resume() {
  const message = current.messages.at(-1);
  if (message?.state === "writing") read(message, follow);
}

const follow = (signal) => fetch(`${API}/${current.id}/stream`, { signal });

async function read(message, open) {
  const mine = (reading = new AbortController());
  const { signal } = mine;
  showWriting();
  for (let attempt = 0; !signal.aborted; attempt++) {
    try {
      const response = await open(signal);
      if (response.status === 204) {
        // What was written before the reload is all that there is.
        Object.assign(message, message.text ? {} : { error: "The response has ended. Try again." });
        break;
      }
      Object.assign(message, { text: "", reasoning: "" }); // a stream is replayed from its start
      for await (const part of parts(response)) {
        notice();
        attempt = 0;
        take(message, part);
        if (mine === reading) update(message);
      }
      break;
    } catch (error) {
      if (error.name === "AbortError") return;
      if (!(error instanceof Interrupted || error instanceof TypeError) || attempt >= RECONNECTS) {
        message.error = error.message;
        break;
      }
      notice("The connection was lost. Reconnecting…");
      open = follow;
      await new Promise((resolve) => setTimeout(resolve, Math.min(250 * 2 ** attempt, 4000)));
    }
  }
  if (mine !== reading) return;
  message.state = "done";
  reading = null;
  notice();
  keep();
  update(message);
  showWriting();
  $("announcement").textContent = message.error ?? "The assistant has answered.";
}

function take(message, part) {
  if (part.type === "text-delta") message.text += part.delta;
  else if (part.type === "reasoning-delta") message.reasoning += part.delta;
  else if (part.type === "error") message.error = part.errorText;
  else if (part.type === "abort") message.error = "You stopped this response.";
}

async function stop() {
  await fetch(`${API}/${current.id}/stop`, { method: "POST", headers: { "content-type": "application/json" }, body: "{}" });
}

// The page

function grow() {
  $("prompt").style.height = "auto";
  $("prompt").style.height = `${$("prompt").scrollHeight}px`;
}

function closeSidebar() {
  $("sidebar").classList.remove("open");
  $("menu").setAttribute("aria-expanded", "false");
}

const THEMES = ["system", "light", "dark"];

function theme(name) {
  if (name === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  localStorage.setItem("theme", name);
  $("theme").textContent = `Theme: ${name}`;
}

$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  if (reading) return;
  const text = $("prompt").value;
  $("prompt").value = "";
  grow();
  send(text);
});
$("prompt").addEventListener("input", grow);
$("prompt").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    $("composer").requestSubmit();
  }
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape") return;
  if (reading) stop();
  closeSidebar();
});
$("stop").addEventListener("click", stop);
$("new").addEventListener("click", () => show(conversations.newId()));
$("menu").addEventListener("click", () => {
  const open = $("sidebar").classList.toggle("open");
  $("menu").setAttribute("aria-expanded", String(open));
  if (open) $("new").focus();
});
$("messages").addEventListener("click", closeSidebar);
$("theme").addEventListener("click", () => theme(THEMES[(THEMES.indexOf(localStorage.getItem("theme") ?? "system") + 1) % 3]));
window.addEventListener("storage", () => { $("conversations").replaceChildren(...conversations.all().map(entry)); });

theme(localStorage.getItem("theme") ?? "system");
history.replaceState(null, "", `#${current.id}`);
render();
resume();
