// Messages that wait until the response has ended. Each conversation has its own, until the tab is closed.

import { $, announce, button, element } from "./dom.js";

const MAX_QUEUED = 10;

const keyOf = (id) => `queue ${id}`;
const list = (id) => JSON.parse(sessionStorage.getItem(keyOf(id)) ?? "[]");

export const isEmpty = (id) => !list(id).length;
export const forget = (id) => sessionStorage.removeItem(keyOf(id));

function keep(id, waiting) {
  if (!waiting.length) return forget(id);
  sessionStorage.setItem(keyOf(id), JSON.stringify(waiting));
}

// Returns a sentence if there is no place.
export function add(id, parts) {
  const waiting = list(id);
  if (waiting.length >= MAX_QUEUED) return `At most ${MAX_QUEUED} messages can wait.`;
  try {
    keep(id, [...waiting, parts]);
  } catch {
    return "The message is too long to wait.";
  }
  announce("The message is queued.");
}

export function next(id) {
  const [first, ...others] = list(id);
  keep(id, others);
  return first;
}

const summary = (parts) =>
  [...parts.filter(({ type }) => type === "file").map(({ filename }) => filename ?? "File"), ...parts.filter(({ text }) => text).map(({ text }) => text)].join(", ");

// `why`: the sentence above the messages; `send`: what sends the first one now, if nothing does it by itself.
export function show(id, why, send) {
  const waiting = list(id);
  $("queue").hidden = !waiting.length;
  const key = JSON.stringify([id, waiting, why, Boolean(send)]);
  if ($("queue").dataset.key === key) return;
  $("queue").dataset.key = key;
  const items = waiting.map((parts, index) =>
    element("li", {}, element("span", { textContent: summary(parts), dir: "auto" }), button(`Remove “${summary(parts).slice(0, 40)}” from the queue`, "close", () => remove(id, index, why, send))));
  const head = element("p", {}, why);
  if (send) head.append(element("button", { type: "button", textContent: "Send now", onclick: send }));
  $("queue").replaceChildren(head, element("ul", {}, ...items));
}

function remove(id, index, why, send) {
  const waiting = list(id);
  waiting.splice(index, 1);
  keep(id, waiting);
  show(id, why, send);
  announce("The message is removed from the queue.");
  ($("queue").querySelectorAll("li button")[Math.min(index, waiting.length - 1)] ?? $("prompt")).focus();
}
