// The list of conversations, the drawer on small screens, and the theme.

import { $, button, element } from "./dom.js";

const SEARCH_MS = 200;
const DAY = 24 * 3600 * 1000;
const THEMES = ["system", "light", "dark"];
const small = matchMedia("(max-width: 52rem)");

// `handlers`: functions open(id), rename(conversation), remove(conversation) and more().
export function show({ listed, hasMore, search }, current, handlers) {
  const focused = document.activeElement?.closest?.("#conversations li")?.dataset.id;
  const groups = Map.groupBy(listed, ({ updated }) => period(new Date(updated)));
  const lists = [...groups].map(([name, group]) =>
    element("section", {}, element("h2", { textContent: name }), element("ul", {}, ...group.map((each) => entry(each, current, handlers)))));
  if (!listed.length) lists.push(element("p", { className: "empty", textContent: search ? "No conversation has these words." : "Your conversations appear here." }));
  if (hasMore) lists.push(button("Show more", "more", handlers.more, { text: true }));
  $("conversations").replaceChildren(...lists);
  if (focused) document.querySelector(`#conversations li[data-id="${CSS.escape(focused)}"] .open`)?.focus();
}

function period(date) {
  const today = new Date().setHours(0, 0, 0, 0);
  if (date >= today) return "Today";
  if (date >= today - DAY) return "Yesterday";
  return date >= today - 7 * DAY ? "Last 7 days" : "Older";
}

function entry(conversation, current, { open, rename, remove }) {
  const { id, title } = conversation;
  const opening = element("button", { className: "open", type: "button", dir: "auto", textContent: title, title, onclick: () => open(id) });
  if (id === current) opening.setAttribute("aria-current", "page");
  const made = element("li", { className: id === current ? "current" : "" }, opening,
    button(`Rename “${title}”`, "edit", () => rename(conversation)), button(`Delete “${title}”`, "remove", () => remove(conversation)));
  made.dataset.id = id;
  return made;
}

// The drawer

export const isOpen = () => $("sidebar").classList.contains("open");

export function toggle(open) {
  $("sidebar").classList.toggle("open", open);
  $("menu").setAttribute("aria-expanded", String(open));
  const modal = open && small.matches;
  $("main").inert = modal;
  $("sidebar").setAttribute("role", modal ? "dialog" : "complementary");
  if (modal) $("sidebar").setAttribute("aria-modal", "true");
  else $("sidebar").removeAttribute("aria-modal");
  if (!small.matches) return;
  if (open) $("close").focus();
  else if (!$("sidebar").contains(document.activeElement)) return;
  else $("menu").focus();
}

// Show the list, so that a field of it can have the focus.
export function reveal() {
  if (small.matches) toggle(true);
}

// The theme

const chosen = () => (THEMES.includes(localStorage.getItem("theme")) ? localStorage.getItem("theme") : "system");

function setTheme(name) {
  if (name === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = name;
  localStorage.setItem("theme", name);
  $("theme").textContent = `Theme: ${name}`;
}

// `onSearch` gets the words after a pause.
export function start(onSearch) {
  let pause = 0;
  $("search").addEventListener("input", () => {
    clearTimeout(pause);
    pause = setTimeout(() => onSearch($("search").value.trim()), SEARCH_MS);
  });
  setTheme(chosen());
  $("theme").addEventListener("click", () => setTheme(THEMES[(THEMES.indexOf(chosen()) + 1) % THEMES.length]));
  $("menu").addEventListener("click", () => toggle(!isOpen()));
  $("close").addEventListener("click", () => toggle(false));
  document.addEventListener("click", ({ target }) => isOpen() && !target.closest("#sidebar, #menu, dialog") && toggle(false));
  small.addEventListener("change", () => toggle(false));
}
