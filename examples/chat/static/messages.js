// The messages of the conversation that is shown.

import { $, announce, button, copy, element, patch } from "./dom.js";
import * as markdown from "./markdown.js";
import { ABOUT, HEADING, SUGGESTIONS } from "./texts.js";

const NEAR_END = 80; // pixels

export const textOf = ({ parts }, type = "text") => parts.filter((part) => part.type === type).map((part) => part.text).join(type === "text" ? "\n\n" : "");

const current = new WeakMap(); // the message of each article

// Articles of messages that are shown already stay, and so does a selection. `handlers`: functions send(text), edit(message)
// and retry().
export function show(messages, handlers, writing) {
  const box = $("messages");
  const kept = messages.map(({ id }) => document.getElementById(`m-${id}`));
  const follows = isAtEnd() || kept.every((article) => !article);
  const articles = messages.map((message, index) => {
    const article = kept[index] ?? begin(message);
    fill(article, message, handlers, index === messages.length - 1, writing);
    return article;
  });
  if (!articles.length) articles.push(welcome(handlers));
  articles.forEach((article, index) => box.children[index] === article || box.insertBefore(article, box.children[index] ?? null));
  while (box.children.length > articles.length) box.lastElementChild.remove();
  if (follows) toEnd();
  else showLatest();
}

export function update(message, handlers, isLast, writing) {
  const follows = isAtEnd();
  fill(document.getElementById(`m-${message.id}`), message, handlers, isLast, writing);
  if (follows) toEnd();
  else showLatest();
}

// The server has chosen the id of a message.
export function rename(message, id) {
  const article = document.getElementById(`m-${message.id}`);
  if (article) article.id = `m-${id}`;
  message.id = id;
}

function welcome({ send }) {
  const suggestions = SUGGESTIONS.map(([title, text]) =>
    element("button", { type: "button", onclick: () => send(text) }, element("strong", { textContent: title }), element("span", { textContent: text })));
  return element("section", { className: "welcome", aria: { label: "Suggestions" } },
    element("img", { src: "static/icon.svg", alt: "" }),
    element("h2", { textContent: HEADING }),
    element("p", { textContent: ABOUT }),
    element("div", { className: "suggestions" }, ...suggestions));
}

function begin({ id, role }) {
  const label = role === "user" ? "You" : "Assistant";
  return element("article", { className: `message ${role}`, id: `m-${id}`, tabIndex: -1, aria: { label } }, element("div", { className: "parts" }), element("div"));
}

function fill(article, message, handlers, isLast, writing) {
  const own = message.role === "user";
  const active = writing && isLast && !own;
  const problem = own || active ? undefined : problemOf(message);
  const [parts, foot] = article.children;
  current.set(article, message);
  article.classList.toggle("writing", active);
  fillParts(parts, message, active);
  const key = JSON.stringify([active, problem, isLast, !textOf(message)]);
  if (foot.dataset.key === key) return;
  foot.dataset.key = key;
  foot.replaceChildren();
  if (active) return;
  if (problem) foot.append(notice(problem, isLast && handlers.retry));
  foot.append(actions(article, handlers, isLast, problem));
}

const isCall = ({ type }) => type === "dynamic-tool" || type.startsWith("tool-");

function fillParts(box, message, active) {
  const parts = message.parts.filter((part) => part.text || isCall(part));
  const views = parts.map((part, index) => {
    const isOpen = active && index === parts.length - 1;
    if (isCall(part)) return [Call, part];
    if (part.type === "reasoning") return [Thoughts, part, isOpen];
    return [message.role === "user" ? Question : Answer, part];
  });
  if (active && !textOf(message) && !textOf(message, "reasoning") && !parts.some(isCall)) views.push([Waiting]);
  views.forEach(([kind, part, isOpen], index) => {
    let view = box.children[index];
    if (view?.dataset.kind !== kind.name) {
      const made = kind.make(part);
      made.dataset.kind = kind.name;
      if (view) view.replaceWith(made);
      else box.append(made);
      view = made;
    }
    kind.fill?.(view, part, isOpen);
  });
  while (box.children.length > views.length) box.lastElementChild.remove();
}

// The views of the parts: `make` creates an element, and `fill` shows the state of a part in it.

const Waiting = { name: "waiting", make: () => element("p", { className: "waiting", textContent: "Waiting for the assistant" }) };

const Question = {
  name: "question",
  make: () => element("div", { className: "text", dir: "auto" }),
  fill(view, { text }) {
    if (view.textContent !== text) view.textContent = text;
  },
};

const Answer = {
  name: "answer",
  make: () => element("div", { className: "text" }),
  fill: (view, { text }) => markdown.show(view, text),
};

const Thoughts = {
  name: "thoughts",
  make() {
    const details = element("details", { className: "thoughts" }, element("summary"), element("p", { dir: "auto" }));
    details.addEventListener("click", () => details.classList.add("touched"));
    return details;
  },
  fill(view, { text }, isOpen) {
    if (!view.classList.contains("touched")) view.open = isOpen;
    patch(view, element("details", {}, element("summary", { textContent: isOpen ? "Searching" : "How this was found" }), element("p", { dir: "auto", textContent: text })));
  },
};

const STATES = { "output-available": "Done", "output-error": "Failed" };

const Call = {
  name: "call",
  make: () => element("details", { className: "call" }),
  fill(view, part) {
    const name = part.toolName ?? part.type.slice("tool-".length);
    const state = STATES[part.state] ?? "Running";
    const summary = element("summary", {}, element("span", { className: "name", textContent: name }), element("span", { className: `status ${state.toLowerCase()}`, textContent: state }));
    const values = [["Input", part.input ?? part.rawInput ?? part.inputText], ["Output", part.output], ["Error", part.errorText]];
    const blocks = values.filter(([, value]) => value !== undefined).flatMap(([title, value]) => [
      element("p", { textContent: title }),
      markdown.codeBlock(typeof value === "string" ? value : JSON.stringify(value, null, 2), typeof value === "string" ? "" : "json", `${title} of ${name}`),
    ]);
    patch(view, element("details", {}, summary, ...blocks));
  },
};

function problemOf({ metadata }) {
  if (metadata?.disconnected) return "The connection to the server was lost.";
  if (metadata?.error) return metadata.error;
  return metadata?.incomplete ? "This response was stopped." : undefined;
}

export function notice(text, retry) {
  const made = element("div", { className: "notice", role: "group", aria: { label: "Notice" } }, element("p", { textContent: text }));
  if (retry) made.append(element("button", { type: "button", textContent: "Try again", onclick: retry }));
  return made;
}

function actions(article, handlers, isLast, problem) {
  const bar = element("div", { className: "actions" });
  const message = () => current.get(article);
  if (textOf(message())) {
    const copying = button("Copy", "copy", () => copy(textOf(message()), copying));
    bar.append(copying);
  }
  if (message().role === "user") bar.append(button("Edit", "edit", () => handlers.edit(message())));
  else if (isLast && !problem) bar.append(button("Try again", "retry", handlers.retry));
  return bar;
}

// Scrolling

const scroller = () => $("scroller");
export const isAtEnd = () => scroller().scrollHeight - scroller().scrollTop - scroller().clientHeight < NEAR_END;

export function toEnd() {
  scroller().scrollTop = scroller().scrollHeight;
  showLatest();
}

export function showLatest() {
  $("latest").hidden = isAtEnd();
}

// Speaking: a response is announced by complete paragraphs, each of them once.

let spoken = 0;

export function speakFromStart() {
  spoken = 0;
}

export function speak(message, complete) {
  const text = textOf(message);
  let end = complete ? text.length : text.lastIndexOf("\n\n");
  // A code block is one paragraph, although it has empty lines.
  while (!complete && end > spoken && text.slice(spoken, end).split("```").length % 2 === 0) end = text.lastIndexOf("\n\n", end - 1);
  if (end <= spoken) return;
  const words = markdown.textOf(text.slice(spoken, end));
  spoken = end;
  announce(words.replace(/\s+/g, " "));
}
