// Markdown of a model as safe elements.

import { marked } from "./vendor/marked.js";
import DOMPurify from "./vendor/purify.js";
import { button, copy, element } from "./dom.js";

const SAFE = { FORBID_TAGS: ["style", "form", "input", "button", "img", "video", "audio", "svg", "math"], FORBID_ATTR: ["style", "id", "class"], RETURN_DOM_FRAGMENT: true };

export function rendered(text) {
  const languages = [];
  marked.walkTokens(marked.lexer(text), (token) => token.type === "code" && languages.push((token.lang ?? "").split(/\s/)[0]));
  const fragment = DOMPurify.sanitize(marked.parse(text), SAFE);
  for (const link of fragment.querySelectorAll("a[href]")) Object.assign(link, { target: "_blank", rel: "noopener noreferrer" });
  demoteHeadings(fragment);
  for (const table of fragment.querySelectorAll("table")) {
    const frame = element("div", { className: "table", tabIndex: 0, role: "group", aria: { label: "Table" } });
    table.replaceWith(frame);
    frame.append(table);
  }
  fragment.querySelectorAll("pre").forEach((pre, index) => frameCode(pre, languages[index]));
  return fragment;
}

// The page has the heading of the first level, and no level is left out.
function demoteHeadings(fragment) {
  let above = 1;
  let shift;
  for (const heading of fragment.querySelectorAll("h1, h2, h3, h4, h5, h6")) {
    const level = Number(heading.localName[1]);
    shift ??= 2 - level;
    above = Math.max(2, Math.min(level + shift, above + 1, 6));
    const made = element(`h${above}`);
    made.append(...heading.childNodes);
    heading.replaceWith(made);
  }
}

function frameCode(pre, language) {
  const frame = element("div", { className: "code" });
  const label = language || "text";
  pre.replaceWith(frame);
  Object.assign(pre, { tabIndex: 0, role: "group" }); // it scrolls
  pre.setAttribute("aria-label", `Code, ${label}`);
  const copying = button("Copy code", "copy", () => copy(pre.textContent, copying));
  frame.append(element("div", { className: "bar" }, element("span", { textContent: label }), copying), pre);
}
