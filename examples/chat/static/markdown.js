// Markdown of a model as safe elements.

import DOMPurify from "./vendor/purify.js";
import hljs from "./vendor/highlight.js";
import { marked } from "./vendor/marked.js";
import { button, copy, element, patch } from "./dom.js";

const { katex } = self; // a script of the page has loaded it

const MAX_HIGHLIGHTED = 50_000; // characters; longer code has one color

// Elements of text. Nothing else stays: no control, nothing that loads or runs, and no attribute by which an element would
// look or act like a part of the page.
const SAFE = {
  ALLOWED_TAGS: [
    ..."a abbr b bdi bdo blockquote br caption cite code dd del details dfn div dl dt em h1 h2 h3 h4 h5 h6 hr i img ins kbd".split(" "),
    ..."li mark ol p pre q rp rt ruby s samp small span strong sub summary sup table tbody td tfoot th thead tr u ul var wbr".split(" "),
  ],
  ALLOWED_ATTR: ["align", "alt", "colspan", "data-language", "data-math", "data-task", "dir", "href", "lang", "open", "rowspan", "src", "start", "title"],
  ALLOW_ARIA_ATTR: false,
  ALLOW_DATA_ATTR: false,
  RETURN_DOM_FRAGMENT: true, // of another document, in which images are not loaded
};

const escaped = (text) => text.replace(/[&<>"]/g, (character) => `&#${character.charCodeAt(0)};`);

// TeX between `$` or `$$`, as in Pandoc, or between `\(` and `\)` or `\[` and `\]`.
const DISPLAY = /^(?:\$\$([^$]+?)\$\$|\\\[([^]+?)\\\])/;
const INLINE = /^(?:\\\(([^]+?)\\\)|\$(?!\s)((?:\\.|[^\\$\n])*(?:\\.|[^\\$\s]))\$(?!\d))/;
const BLOCK = /^ {0,3}(?:\$\$([^]+?)\$\$|\\\[([^]+?)\\\])[^\S\n]*(?:\n|$)/;

const math = (match, kind) => match && { type: "math", raw: match[0], kind, tex: (match[1] ?? match[2]).trim() };
const mathRenderer = ({ tex, kind }) => `<span data-math="${kind}">${escaped(tex)}</span>`;

marked.use({
  renderer: {
    code: ({ text, lang = "" }) => `<pre data-language="${escaped(lang.split(/\s/)[0])}"><code>${escaped(text)}\n</code></pre>\n`,
    checkbox: ({ checked }) => `<span data-task="${checked ? "done" : "open"}"></span> `,
  },
  extensions: [
    { name: "math", level: "block", tokenizer: (text) => math(BLOCK.exec(text), "display"), renderer: mathRenderer },
    {
      name: "math",
      level: "inline",
      start: (text) => text.search(/\$|\\[([]/),
      tokenizer: (text) => math(DISPLAY.exec(text), "display") ?? math(INLINE.exec(text), "inline") ?? undefined,
    },
  ],
});

// Show a text in an element. Only blocks whose text has changed are rendered again, and of these only the nodes change that
// differ, so that a selection stays while text arrives.
const shown = new WeakMap(); // the blocks of each element

export function show(box, text) {
  const before = shown.get(box) ?? [];
  const tokens = marked.lexer(text);
  const links = JSON.stringify(tokens.links);
  let levels = {};
  const blocks = blocksOf(tokens).map((block, index) => {
    const key = JSON.stringify([block.map(({ raw }) => raw), links, levels]);
    const old = before[index];
    if (old?.key === key) {
      levels = old.levels;
      return old;
    }
    const made = element("div");
    levels = fill(made, block, levels);
    if (old) patch(old.element, made);
    else box.append(made);
    return { key, levels, element: old?.element ?? made };
  });
  for (const { element } of before.slice(blocks.length)) element.remove();
  shown.set(box, blocks);
}

export function textOf(markdown) {
  const box = element("div");
  show(box, markdown);
  for (const formula of box.querySelectorAll("[data-math]")) formula.replaceWith(formula.dataset.math);
  return box.textContent;
}

// Lists of tokens. HTML may begin an element that ends in a later token, so all that follows it is one block.
function blocksOf(tokens) {
  const texts = tokens.filter(({ type }) => type !== "space" && type !== "def");
  const html = texts.findIndex(({ type }) => type === "html");
  if (html < 0) return texts.map((token) => [token]);
  return [...texts.slice(0, html).map((token) => [token]), texts.slice(html)];
}

function fill(box, tokens, levels) {
  const fragment = DOMPurify.sanitize(marked.parser(tokens), SAFE);
  for (const image of fragment.querySelectorAll("img")) image.replaceWith(linkTo(image));
  for (const link of fragment.querySelectorAll("a[href]")) Object.assign(link, { target: "_blank", rel: "noopener noreferrer" });
  const next = demoteHeadings(fragment, levels);
  for (const block of fragment.querySelectorAll("p, h1, h2, h3, h4, h5, h6, ul, ol, dl, blockquote, table, summary")) block.dir ||= "auto";
  for (const task of fragment.querySelectorAll("[data-task]")) showTask(task);
  for (const table of fragment.querySelectorAll("table")) {
    const frame = element("div", { className: "table", tabIndex: 0, role: "group", aria: { label: "Table" } });
    table.replaceWith(frame);
    frame.append(table);
  }
  fragment.querySelectorAll("pre").forEach(frameCode);
  fragment.querySelectorAll("[data-math]").forEach(showMath);
  box.append(fragment);
  return next;
}

// An image would tell a stranger's server who reads the message.
function linkTo(image) {
  const text = image.alt || image.getAttribute("src") || "";
  const address = image.getAttribute("src") ?? "";
  if (!address || address.startsWith("data:") || image.closest("a")) return text;
  return element("a", { href: address, textContent: text });
}

// The page has the heading of the first level, and no level is left out.
function demoteHeadings(fragment, { above = 1, shift }) {
  for (const heading of fragment.querySelectorAll("h1, h2, h3, h4, h5, h6")) {
    const level = Number(heading.localName[1]);
    shift ??= 2 - level;
    above = Math.max(2, Math.min(level + shift, above + 1, 6));
    const made = element(`h${above}`);
    made.append(...heading.childNodes);
    heading.replaceWith(made);
  }
  return { above, shift };
}

function showTask(task) {
  const done = task.dataset.task === "done";
  task.replaceWith(element("span", { className: "task", role: "img", textContent: done ? "☑" : "☐", aria: { label: done ? "Done" : "Not done" } }));
}

function frameCode(pre) {
  const { language } = pre.dataset;
  const label = language || "text";
  const made = codeBlock(pre.textContent, language, `Code, ${label}`);
  const copying = button("Copy code", "copy", () => copy(copying.closest(".code").querySelector("pre").textContent, copying));
  const bar = element("div", { className: "bar" }, element("span", { textContent: label }), copying);
  pre.replaceWith(element("div", { className: "code", dir: "ltr" }, bar, made));
}

export function codeBlock(text, language, label) {
  const code = element("code");
  if (hljs.getLanguage(language ?? "") && text.length <= MAX_HIGHLIGHTED) {
    code.innerHTML = hljs.highlight(text, { language, ignoreIllegals: true }).value; // it escapes the text
  } else code.textContent = text;
  return element("pre", { tabIndex: 0, role: "group", aria: { label } }, code); // it scrolls
}

// KaTeX sets styles by the DOM, which the page's content security policy permits. TeX with a mistake stays as it is.
function showMath(span) {
  const tex = span.textContent;
  try {
    const made = element("span", { className: "math", dir: "ltr" });
    katex.render(tex, made, { displayMode: span.dataset.math === "display", trust: false, strict: "ignore", maxExpand: 1000, maxSize: 50 });
    made.dataset.math = tex;
    if (span.dataset.math === "display") Object.assign(made, { tabIndex: 0, role: "group", ariaLabel: "Formula" }); // it scrolls
    span.replaceWith(made);
  } catch {
    span.replaceWith(element("code", { textContent: tex }));
  }
}
