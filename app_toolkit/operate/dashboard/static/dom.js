// Elements. Every text goes through textContent, because names, errors and log lines are not trusted.

const SVG = "http://www.w3.org/2000/svg";

export const $ = (id) => document.getElementById(id);

// el("a.name", { href: "#/" }, "text", child). Properties that are undefined or null are left out.
export function el(selector, properties = {}, ...children) {
  const [name, ...classes] = selector.split(".");
  const made = document.createElement(name || "div");
  if (classes.length) made.className = classes.join(" ");
  for (const [key, value] of Object.entries(properties)) {
    if (value === undefined || value === null) continue;
    if (key in made && key !== "list") made[key] = value; // `list` has no setter
    else made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

export function svg(name, attributes = {}, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

// These touch the document only if something differs, so that an update costs little.
export function text(node, value) {
  const string = String(value);
  if (node.textContent !== string) node.textContent = string;
}

export function attr(node, name, value) {
  if (value === null || value === undefined || value === false) {
    if (node.hasAttribute(name)) node.removeAttribute(name);
  } else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
}

export function show(node, visible) {
  if (node.hidden === visible) node.hidden = !visible;
}

// Lets `parent` have exactly these children, and moves only those that are not in their place.
export function children(parent, nodes) {
  nodes.forEach((node, place) => {
    if (parent.children[place] !== node) parent.insertBefore(node, parent.children[place] ?? null);
  });
  while (parent.children.length > nodes.length) parent.lastElementChild.remove();
}

const ICONS = {
  overview: "M4 13h6V4H4zM14 20h6v-9h-6zM4 20h6v-3H4zM14 7h6V4h-6z",
  traffic: "M4 12h5c4 0 4-6 8-6h3M9 12c4 0 4 6 8 6h3M17 3l3 3-3 3M17 15l3 3-3 3",
  events: "M12 7v5l3 2M21 12a9 9 0 1 1-18 0 9 9 0 0 1 18 0z",
  errors: "M12 9v4M12 16.5v.5M10.3 4.3 2.9 17.2A2 2 0 0 0 4.6 20h14.8a2 2 0 0 0 1.7-2.8L13.7 4.3a2 2 0 0 0-3.4 0z",
  logs: "M5 6h14M5 10h14M5 14h9M5 18h11",
  slow: "M12 14l4-4M5 19a9 9 0 1 1 14 0",
  streams: "M3 8c3-3 6-3 9 0s6 3 9 0M3 15c3-3 6-3 9 0s6 3 9 0",
  theme: "M12 3a9 9 0 1 0 9 9 7 7 0 0 1-9-9z",
  more: "M9 6l6 6-6 6",
};

export function icon(name) {
  return svg("svg", { viewBox: "0 0 24 24", "aria-hidden": "true", class: "icon" }, svg("path", { d: ICONS[name] }));
}

export function button(label, onclick, { className = "tool", ...rest } = {}) {
  return el("button", { type: "button", className, onclick, ...rest }, label);
}

let announced = "";
let timer = null;

// Tells screen readers. Of several messages within 400 ms, they get the last one.
export function announce(message) {
  announced = message;
  timer ??= setTimeout(() => { timer = null; text($("announcement"), announced); }, 400);
}

export function toast(message, bad = false) {
  const shown = el(`p.toast${bad ? ".bad" : ""}`, {}, message);
  $("toasts").append(shown);
  while ($("toasts").children.length > 4) $("toasts").firstChild.remove();
  setTimeout(() => shown.remove(), bad ? 12_000 : 5_000);
}
