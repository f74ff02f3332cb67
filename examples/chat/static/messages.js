// The messages of the conversation that is shown.

import { $, announce, button, copy, element } from "./dom.js";
import { rendered } from "./markdown.js";
import { ABOUT, HEADING, SUGGESTIONS } from "./texts.js";

const NEAR_END = 80; // pixels

export const textOf = ({ parts }, type = "text") => parts.filter((part) => part.type === type).map((part) => part.text).join(type === "text" ? "\n\n" : "");

// `handlers`: functions send(text), edit(message) and retry().
export function show(messages, handlers, writing) {
  const views = messages.map((message, index) => view(message, handlers, index === messages.length - 1, writing));
  $("messages").replaceChildren(...(views.length ? views : [welcome(handlers)]));
  toEnd();
}

export function update(message, handlers, isLast, writing) {
  const follows = isAtEnd();
  const before = document.getElementById(`m-${message.id}`);
  const after = view(message, handlers, isLast, writing);
  const details = before?.querySelector("details.touched");
  if (details) after.querySelector("details")?.replaceWith(details);
  if (before) before.replaceWith(after);
  else $("messages").append(after);
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

function view(message, handlers, isLast, writing) {
  const own = message.role === "user";
  const active = writing && isLast && !own;
  const article = element("article", { className: `message ${message.role}`, id: `m-${message.id}`, tabIndex: -1, aria: { label: own ? "You" : "Assistant" } });
  if (active) article.classList.add("writing");
  const content = element("div", { className: "text" });
  if (own) content.textContent = textOf(message);
  else content.append(rendered(textOf(message)));
  const reasoning = textOf(message, "reasoning");
  if (reasoning) article.append(thoughts(reasoning, active && !textOf(message)));
  else if (active && !textOf(message)) article.append(element("p", { className: "waiting", textContent: "Waiting for the assistant" }));
  article.append(content);
  const problem = own ? undefined : problemOf(message);
  if (problem && !active) article.append(notice(problem, isLast && handlers.retry));
  if (!active) article.append(actions(message, handlers, isLast, problem));
  return article;
}

function thoughts(text, open) {
  const details = element("details", { open }, element("summary", { textContent: open ? "Searching" : "How this was found" }), element("p", { textContent: text }));
  details.addEventListener("click", () => details.classList.add("touched"));
  return details;
}

function problemOf({ metadata }) {
  if (metadata?.error) return metadata.error;
  return metadata?.incomplete ? "This response was stopped." : undefined;
}

export function notice(text, retry) {
  const made = element("div", { className: "notice", role: "group", aria: { label: "Notice" } }, element("p", { textContent: text }));
  if (retry) made.append(element("button", { type: "button", textContent: "Try again", onclick: retry }));
  return made;
}

function actions(message, handlers, isLast, problem) {
  const bar = element("div", { className: "actions" });
  if (textOf(message)) {
    const copying = button("Copy", "copy", () => copy(textOf(message), copying));
    bar.append(copying);
  }
  if (message.role === "user") bar.append(button("Edit", "edit", () => handlers.edit(message)));
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
  const words = element("div", {}, rendered(text.slice(spoken, end))).textContent;
  spoken = end;
  announce(words.replace(/\s+/g, " "));
}
