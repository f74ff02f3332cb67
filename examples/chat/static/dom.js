// Elements and icons.

export const $ = (id) => document.getElementById(id);

export function element(name, properties = {}, ...children) {
  const { aria = {}, ...rest } = properties;
  const made = Object.assign(document.createElement(name), rest);
  for (const [key, value] of Object.entries(aria)) made.setAttribute(`aria-${key}`, value);
  made.append(...children);
  return made;
}

const ICONS = {
  attach: "M19 11.5l-7.4 7.4a4.6 4.6 0 0 1-6.5-6.5l7.9-7.9a3 3 0 0 1 4.3 4.3l-7.8 7.8a1.5 1.5 0 0 1-2.1-2.1l7-7",
  bad: "M7 14V4H4.5v10zM7 13l4 7.5c1.6 0 2.3-1 2-2.5L12.5 15H18a2 2 0 0 0 2-2.3L18.8 5.7A2 2 0 0 0 16.8 4H7",
  check: "M5 12.5l4.5 4.5L19 7.5",
  close: "M6 6l12 12M18 6L6 18",
  copy: "M9 9h10v10H9zM5 15V5h10",
  edit: "M4 20l1-4L16 5l3 3L8 19zM14 7l3 3",
  file: "M6 3.5h8l4.5 4.5V20.5H6zM13.5 3.5V8.5H18.5",
  good: "M7 10v10H4.5V10zM7 11l4-7.5c1.6 0 2.3 1 2 2.5L12.5 9H18a2 2 0 0 1 2 2.3l-1.200 7A2 2 0 0 1 16.8 20H7",
  more: "M6 9l6 6 6-6",
  next: "M9 6l6 6-6 6",
  previous: "M15 6l-6 6 6 6",
  remove: "M5 7h14M10 7V4.5h4V7M7 7l1 12.5h8L17 7M10.5 11v5M13.5 11v5",
  retry: "M5 12a7 7 0 1 1 2 5M5 17.5V13h4.5",
};

export function icon(name) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("viewBox", "0 0 24 24");
  svg.setAttribute("aria-hidden", "true");
  const path = document.createElementNS(svg.namespaceURI, "path");
  path.setAttribute("d", ICONS[name]);
  svg.append(path);
  return svg;
}

export function button(label, name, onclick, { text = false, className = "" } = {}) {
  const made = element("button", { type: "button", className: `tool ${className}`, title: text ? "" : label, onclick }, icon(name));
  if (text) made.append(label);
  else made.setAttribute("aria-label", label);
  return made;
}

export async function copy(text, made) {
  if (!(await write(text))) return announce("Copying failed.");
  const before = [...made.childNodes];
  made.replaceChildren(icon("check"), ...before.slice(1));
  announce("Copied.");
  setTimeout(() => made.replaceChildren(...before), 1500);
}

// Browsers have `navigator.clipboard` only over HTTPS and on localhost.
async function write(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text).then(() => true, () => false);
  const focused = document.activeElement;
  const field = element("textarea", { className: "hidden", value: text, readOnly: true });
  document.body.append(field);
  field.select();
  const copied = document.execCommand("copy");
  field.remove();
  focused?.focus({ preventScroll: true });
  return copied;
}

// Make the children of `before` those of `after`. Nodes that are the same stay, and a text that goes on is continued.
export function patch(before, after) {
  const old = [...before.childNodes];
  const made = [...after.childNodes];
  made.forEach((node, index) => {
    const kept = old[index];
    if (!kept) before.append(node);
    else if (kept.isEqualNode(node)) return;
    else if (kept.nodeType === Node.TEXT_NODE && node.nodeType === Node.TEXT_NODE) setText(kept, node.data);
    else if (isSame(kept, node)) patch(kept, node);
    else kept.replaceWith(node);
  });
  for (const extra of old.slice(made.length)) extra.remove();
}

function setText(node, text) {
  if (text.startsWith(node.data)) node.appendData(text.slice(node.data.length));
  else node.data = text;
}

// Formulas are replaced as a whole. What a reader has opened stays open.
function isSame(kept, node) {
  if (kept.localName === "details" && node.localName === "details") node.open = kept.open;
  return !kept.dataset?.math && kept.cloneNode(false).isEqualNode(node.cloneNode(false));
}

// A screen reader reads each text once, when it is set.
export function announce(text) {
  $("announcement").textContent = text;
}

// Show a dialog. Returns "ok" if the user has confirmed it.
export function ask(dialog) {
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((resolve) => dialog.addEventListener("close", () => resolve(dialog.returnValue), { once: true }));
}
