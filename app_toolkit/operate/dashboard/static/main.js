// The shell of the page: navigation, the state of the connection, and one page at a time.

import { $, announce, attr, children, el, icon, show, text } from "./dom.js";
import { words } from "./format.js";
import { follow } from "./live.js";
import { apply, kind, problems, state } from "./store.js";
import * as deployment from "./pages/deployment.js";
import * as errors from "./pages/errors.js";
import * as events from "./pages/events.js";
import * as logs from "./pages/logs.js";
import * as overview from "./pages/overview.js";
import * as slow from "./pages/slow.js";
import * as streams from "./pages/streams.js";
import * as traffic from "./pages/traffic.js";

const PAGES = [
  ["", "Overview", "overview", overview],
  ["traffic", "Revisions", "traffic", traffic],
  ["streams", "Streams", "streams", streams],
  ["slow", "Slow requests", "slow", slow],
  ["errors", "Errors", "errors", errors],
  ["events", "Events", "events", events],
  ["logs", "Logs", "logs", logs],
];
const OTHERS = { deployments: deployment };

const entries = new Map();
let current = null;
let paused = false;
let waiting = false;
let changed = new Set();

function buildNavigation() {
  for (const [path, label, picture] of PAGES) {
    const badge = el("span.badge", { hidden: true });
    const link = el("a", { href: `#/${path}` }, icon(picture), el("span", {}, label), badge);
    entries.set(path, { link, badge });
    $("pages").append(link);
  }
}

// Opens the page of the address.
function open(isFirst = false) {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, ...rest] = path.split("/").map(decode);
  const known = PAGES.find(([each]) => each === name);
  const module = known?.[3] ?? OTHERS[name] ?? overview;
  current?.close?.();
  current = module.open(rest, new URLSearchParams(query));
  const place = module === deployment ? "" : known ? name : "";
  for (const [each, { link }] of entries) attr(link, "aria-current", each === place ? (rest.length || module === deployment ? "true" : "page") : null);
  text($("title"), current.title);
  children($("crumbs"), (current.crumbs ?? []).map(([label, href]) => el("a", { href }, label)));
  show($("crumbs"), Boolean(current.crumbs?.length));
  document.title = `${current.title} · app_toolkit`;
  children($("main"), [current.root]);
  if (state.ready) current.update(new Set(["whole"]));
  if (isFirst) return;
  window.scrollTo(0, 0);
  $("title").focus({ preventScroll: true });
}

function decode(part) {
  try { return decodeURIComponent(part); } catch { return part; }
}

function take(document) {
  if (paused && !document.whole) return keep(document);
  for (const table of apply(document)) changed.add(table);
  if (document.whole) changed.add("whole");
  schedule();
}

// While the page is paused, documents wait. Too many are replaced by a new start.
const kept = [];
function keep(document) {
  kept.push(document);
  if (kept.length > 600) kept.splice(0, 300);
}

function schedule() {
  if (waiting) return;
  waiting = true;
  // A tab in the background gets no animation frames, but its timers run.
  if (document.hidden) setTimeout(update, 250);
  else requestAnimationFrame(update);
}

function update() {
  waiting = false;
  const tables = changed;
  changed = new Set();
  updateShell();
  current.update(tables);
  document.documentElement.dataset.sample = state.tables.sample.at ?? "";
  document.documentElement.dataset.updates = Number(document.documentElement.dataset.updates ?? 0) + 1;
}

let health = "";
function updateShell() {
  const found = problems();
  const isFailing = state.tables.instance.status === "healthy" && found.some((each) => each.status === "failing");
  const status = isFailing ? "failing" : state.tables.instance.status;
  const word = state.tables.connection.answers === false ? "controller does not answer" : words(status);
  text($("health"), word);
  $("health").className = `pill ${state.tables.connection.answers === false ? "bad" : kind(status)}`;
  const bad = found.filter((each) => kind(each.status) === "bad").length;
  text(entries.get("errors").badge, bad);
  show(entries.get("errors").badge, bad > 0);
  attr(entries.get("errors").badge, "title", `${bad} with a failure`);
  if (health && health !== word) announce(`The instance is ${word}.`);
  health = word;
  const shown = [...$("links").children].map((link) => link.href).join(" ");
  const links = Object.entries(state.links).map(([label, href]) => el("a.plain", { href, target: "_blank", rel: "noopener noreferrer" }, label));
  if (links.map((link) => link.href).join(" ") !== shown) children($("links"), links);
}

let connection = "";
function tell(word) {
  if (connection === word && !paused) return;
  if (connection === "live" && word !== "live") announce("The connection to the instance is lost.");
  if (connection !== "" && connection !== "live" && word === "live") announce("The page is live again.");
  connection = word;
  const label = word === "live" ? (paused ? "Paused" : "Live") : word === "reconnecting" ? "Reconnecting" : word;
  text($("live"), label);
  $("live").className = `live ${word === "live" ? (paused ? "paused" : "on") : "off"}`;
}

function togglePause() {
  paused = !paused;
  $("pause").classList.toggle("on", paused);
  text($("pause"), paused ? "Resume" : "Pause");
  if (!paused) for (const document of kept.splice(0)) take(document);
  const word = connection;
  connection = "";
  tell(word || "reconnecting");
}

const THEMES = ["", "light", "dark"];
const THEME_NAMES = { "": "System colours", light: "Light colours", dark: "Dark colours" };

function showTheme() {
  const theme = document.documentElement.dataset.theme ?? "";
  children($("theme"), [icon("theme"), el("span", {}, THEME_NAMES[theme])]);
  attr($("theme"), "aria-label", `Colours: ${THEME_NAMES[theme]}. Change`);
}

$("theme").addEventListener("click", () => {
  const theme = THEMES[(THEMES.indexOf(document.documentElement.dataset.theme ?? "") + 1) % THEMES.length];
  document.documentElement.dataset.theme = theme;
  try { localStorage.setItem("app_toolkit.theme", theme); } catch { /* storage is off */ }
  showTheme();
});
$("pause").addEventListener("click", togglePause);
$("skip").addEventListener("click", (event) => { event.preventDefault(); $("main").focus(); });
window.addEventListener("hashchange", () => open());
document.addEventListener("keydown", (event) => {
  const typing = event.target.closest?.("input, textarea, select, dialog");
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || typing) return;
  const field = $("main").querySelector("input[type=search]");
  if (field) { event.preventDefault(); field.focus(); field.select(); }
});

showTheme();
buildNavigation();
tell("reconnecting");
text($("live"), "Connecting");
open(true);
follow(take, tell);
