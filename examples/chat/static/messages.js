// The messages of the conversation that is shown.

import { Approval } from "./approval.js";
import { $, announce, button, copy, element } from "./dom.js";
import * as feedback from "./feedback.js";
import * as markdown from "./markdown.js";
import { isCall, isRequested, isSource, textOf } from "./parts.js";
import { ABOUT, HEADING, SUGGESTIONS } from "./texts.js";
import { Answer, Call, MessageFile, Question, Sources, Thoughts, Waiting } from "./views.js";

const NEAR_END = 80; // pixels

const current = new WeakMap(); // the message of each article

// Articles of messages that are shown already stay, and so does a selection. `handlers`: functions send(text), edit(message),
// retry(), choose(message, step), rate(message, feedback) and answer(id of a call, approved, reason).
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
  fillParts(parts, message, active, isLast, handlers);
  const { siblings, feedback: opinion, model, metadata } = message;
  const key = JSON.stringify([active, problem, isLast, !textOf(message), siblings, opinion, model, metadata?.usage]);
  if (foot.dataset.key === key) return;
  foot.dataset.key = key;
  const focused = foot.contains(document.activeElement) ? document.activeElement.dataset.action : undefined;
  foot.replaceChildren();
  if (active) return;
  if (problem) foot.append(notice(problem, isLast && handlers.retry));
  foot.append(actions(article, handlers, isLast, problem));
  if (focused) foot.querySelector(`[data-action="${focused}"]`)?.focus();
}

function fillParts(box, message, active, isLast, handlers) {
  const parts = message.parts.filter((part) => part.text || isCall(part) || part.type === "file");
  const views = parts.map((part, index) => {
    const isOpen = active && index === parts.length - 1;
    if (isCall(part)) return isLast && !active && isRequested(part) ? [Approval, part] : [Call, part, active];
    if (part.type === "file") return [MessageFile, part];
    if (part.type === "reasoning") return [Thoughts, part, isOpen];
    return [message.role === "user" ? Question : Answer, part];
  });
  if (active && (message.status || !parts.length)) views.push([Waiting, message]);
  const sources = message.parts.filter(isSource);
  if (sources.length) views.push([Sources, sources]);
  views.forEach(([kind, part, isOpen], index) => {
    let view = box.children[index];
    const key = `${kind.name} ${kind.keyOf?.(part) ?? ""}`;
    if (view?.dataset.kind !== key) {
      const made = kind.make(part, handlers);
      made.dataset.kind = key;
      if (view) view.replaceWith(made);
      else box.append(made);
      view = made;
    }
    kind.fill?.(view, part, isOpen);
  });
  while (box.children.length > views.length) box.lastElementChild.remove();
}

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
  else {
    if (isLast && !problem) bar.append(button("Try again", "retry", handlers.retry));
    if (message().siblings) bar.append(...feedback.buttons(message, handlers.rate)); // the server has stored it
  }
  if (message().siblings?.length > 1) bar.append(versions(message, handlers));
  const facts = factsOf(message());
  if (facts) bar.append(element("span", { className: "facts", textContent: facts }));
  return bar;
}

function factsOf({ model, metadata }) {
  const usage = metadata?.usage;
  return [model, usage && `${usage.inputTokens} tokens in, ${usage.outputTokens} out`].filter(Boolean).join(" · ");
}

// The versions of a message: edited questions, or several responses to one question.
function versions(message, { choose }) {
  const { id, siblings } = message();
  const number = siblings.indexOf(id) + 1;
  const step = (label, name, by) => {
    const made = button(label, name, () => choose(message(), by));
    made.disabled = !siblings[number - 1 + by];
    return made;
  };
  return element("div", { className: "versions", role: "group", aria: { label: `Version ${number} of ${siblings.length}` } },
    step("Previous version", "previous", -1), element("span", { textContent: `${number}/${siblings.length}` }), step("Next version", "next", 1));
}

// Keep the focus on the buttons when another version is shown.
export function focusVersions(id, step) {
  const [previous, next] = document.getElementById(`m-${id}`)?.querySelectorAll(".versions button") ?? [];
  const [same, other] = step < 0 ? [previous, next] : [next, previous];
  (same?.disabled ? other : same)?.focus();
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

// `message`: what it says already is not read again.
export function speakFrom(message) {
  spoken = textOf(message).length;
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
