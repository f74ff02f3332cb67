// The views of the parts of a message: `make` creates an element, and `fill` shows the state of a part in it. A view whose
// `keyOf` differs is made anew.

import { element, icon, patch } from "./dom.js";
import * as files from "./files.js";
import * as markdown from "./markdown.js";
import { isPage, nameOf } from "./parts.js";

export const Waiting = {
  name: "waiting",
  make: () => element("p", { className: "waiting" }),
  fill(view, { status }) {
    view.textContent = status ?? "Waiting for the assistant";
  },
};

export const Question = {
  name: "question",
  make: () => element("div", { className: "text", dir: "auto" }),
  fill(view, { text }) {
    if (view.textContent !== text) view.textContent = text;
  },
};

export const Answer = {
  name: "answer",
  make: () => element("div", { className: "text" }),
  fill: (view, { text }) => markdown.show(view, text),
};

export const MessageFile = {
  name: "file",
  keyOf: ({ url }) => `${url.length} ${url.slice(0, 200)}`,
  make: (part) => element("div", { className: "file" }, files.view(part)),
};

export const Thoughts = {
  name: "thoughts",
  make() {
    const details = element("details", { className: "thoughts" }, element("summary"), element("p", { dir: "auto" }));
    details.addEventListener("click", () => details.classList.add("touched"));
    return details;
  },
  fill(view, { text }, isOpen) {
    if (!view.classList.contains("touched")) view.open = isOpen;
    patch(view, element("details", {}, element("summary", { textContent: isOpen ? "Thinking" : "Reasoning" }), element("p", { dir: "auto", textContent: text })));
  },
};

const STATES = { "output-available": "Done", "output-error": "Failed", "output-denied": "Denied", "approval-requested": "Not answered" };

function stateOf({ state, approval }, active) {
  if (state === "approval-responded" && !approval.approved) return "Denied";
  return STATES[state] ?? (active ? "Running" : "Not finished");
}

export const Call = {
  name: "call",
  make: () => element("details", { className: "call" }),
  fill(view, part, active) {
    const name = nameOf(part);
    const state = stateOf(part, active);
    const status = element("span", { className: `status ${state.toLowerCase().replace(" ", "-")}`, textContent: state });
    const summary = element("summary", {}, element("span", { className: "name", textContent: name }), status);
    const values = [["Input", part.input ?? part.rawInput ?? part.inputText], ["Output", part.output], ["Error", part.errorText], ["Reason", part.approval?.reason]];
    const blocks = values.filter(([, value]) => value !== undefined).flatMap(([title, value]) => [
      element("p", { textContent: title }),
      markdown.codeBlock(typeof value === "string" ? value : JSON.stringify(value, null, 2), typeof value === "string" ? "" : "json", `${title} of ${name}`),
    ]);
    patch(view, element("details", {}, summary, ...blocks));
  },
};

// Pages that the model names, and documents without an address.
export const Sources = {
  name: "sources",
  make: () => element("section", { className: "sources", aria: { label: "Sources" } }),
  fill(view, sources) {
    const items = sources.map((source) => element("li", {}, sourceOf(source)));
    patch(view, element("section", {}, element("h2", { textContent: "Sources" }), element("ol", {}, ...items)));
  },
};

function sourceOf({ url, title, filename }) {
  if (url && isPage(url)) return element("a", { href: url, target: "_blank", rel: "noopener noreferrer", title: url, textContent: title || url, dir: "auto" });
  const words = [title, filename].filter(Boolean).join(", ") || url;
  return element("span", { dir: "auto" }, icon("file"), words);
}
