// The first page: what needs attention, the numbers of the whole instance, the topology, and all deployments.

import { attr, children, el, show, text } from "../dom.js";
import { age, applicationLink, count, deploymentLink, duration, exact, percent, plural, rate, short, time, words } from "../format.js";
import { spark } from "../chart.js";
import { deployments, errorShare, keyOf, kind, numbers, problems, rank, running, state } from "../store.js";
import { link, table, words as cellWords } from "../table.js";
import { matching, topology } from "../topology.js";

const EVENTS = 8;
const MOST_PROBLEMS = 5;

export function open() {
  const tiles = [
    tile("Requests", "per second", (each) => rate(each.rate), "rate"),
    tile("Errors", "of requests", (each) => percent(errorShare(each)), null, (each) => (errorShare(each) > 0.005 ? "bad" : "")),
    tile("Latency", "p95", (each) => duration(each.p95)),
    tile("In flight", "requests", (each) => count(each.ongoing)),
    tile("Queued", "requests", (each) => count(each.queued), null, (each) => (each.queued > 0 ? "warn" : "")),
    tile("Replicas", "running of desired", () => {
      const all = deployments();
      return `${exact(sum(all, running))} / ${exact(sum(all, (row) => row.target))}`;
    }),
  ];
  const attention = el("ul");
  const attentionMore = el("a", { href: "#/errors" });
  const alerts = el("section.alerts", { "aria-label": "Needs attention" }, attention, attentionMore);
  const filter = el("input", { type: "search", id: "filter", placeholder: "Filter by name, status or kind", "aria-keyshortcuts": "/" });
  const found = el("span.quiet", { role: "status" });
  const drawing = topology();
  const grid = table({ caption: "Deployments", columns: COLUMNS, key: (row) => row.name, sort: 1 });
  const events = el("ol.events");
  const blank = el("section.blank", {}, el("h2", {}, "Nothing is deployed yet"),
    el("p", {}, "Deploy an app, and it appears here within a second."), el("pre", {}, "app-toolkit deploy main.py"));
  const full = el("div", {},
    el("section.card", { "aria-labelledby": "topology-title" },
      el("div.head", {}, el("h2", { id: "topology-title" }, "Topology"), el("label.hidden", { htmlFor: "filter" }, "Filter the deployments"), filter, found,
        el("ul.key-list", { "aria-label": "Colours" }, ...[["ok", "healthy"], ["info", "changing"], ["warn", "waiting"], ["bad", "failing"]].map(([name, label]) => el("li", {}, el(`span.dot.${name}`), label)))),
      drawing.root),
    el("section.card", { "aria-labelledby": "deployments-title" }, el("div.head", {}, el("h2", { id: "deployments-title" }, "Deployments")), grid.root),
    el("section.card", { "aria-labelledby": "events-title" }, el("div.head", {}, el("h2", { id: "events-title" }, "Latest events"), el("a", { href: "#/events" }, "All events")), events));
  const root = el("div.page", {}, alerts, el("section.tiles", { "aria-label": "Numbers of the instance" }, ...tiles.map((each) => each.root)), blank, full);
  filter.addEventListener("input", () => update(new Set(["filter"])));

  function update(tables) {
    const all = deployments();
    show(blank, all.length === 0);
    show(full, all.length > 0);
    for (const each of tiles) each.update();
    alert();
    const rows = filter.value ? matching(filter.value) : all;
    text(found, filter.value ? `${exact(rows.length)} of ${plural(all.length, "deployment")}` : plural(all.length, "deployment"));
    drawing.update(rows);
    grid.update(rows);
    if (tables.has("events") || tables.has("whole")) children(events, state.events.slice(-EVENTS).reverse().map(event));
  }

  function alert() {
    const all = problems();
    show(alerts, all.length > 0);
    const lines = all.slice(0, MOST_PROBLEMS);
    const said = lines.map((each) => `${each.name}${each.status}${each.reason}`).join();
    if (attention.dataset.said === said) return;
    attention.dataset.said = said;
    children(attention, lines.map((each) => el("li", {}, el(`span.pill.${kind(each.status)}`, {}, words(each.status)), " ",
      each.type === "proxies" ? el("strong", {}, short(each.name)) : el("a", { href: each.type === "application" ? applicationLink(each.name) : deploymentLink(each.name) }, each.name),
      el("span.reason", {}, each.reason))));
    text(attentionMore, `${exact(all.length - MOST_PROBLEMS)} more`);
    show(attentionMore, all.length > MOST_PROBLEMS);
  }

  return { root, title: "Overview", update };
}

export function event(row) {
  return el("li", {}, el("time", { dateTime: new Date(row.at * 1_000).toISOString(), title: age(state.at - row.at) }, time(row.at)),
    el(`span.tag.${eventKind(row.name)}`, {}, row.name),
    el("span", {}, row.subject.includes("/") ? el("a", { href: deploymentLink(row.subject) }, row.subject) : el("span", { title: row.subject }, short(row.subject || "instance")),
      row.replica && row.subject.includes("/") ? el("span.quiet", {}, ` ${row.replica}`) : null),
    row.cause ? (row.cause.includes("\n") ? el("details", {}, el("summary", {}, row.cause.trim().split("\n").at(-1)), el("pre", { tabindex: 0 }, row.cause)) : el("span.cause", {}, row.cause)) : el("span"));
}

const BAD_EVENTS = /Fail|Lost|Exited|RolledBack|Quarantined|Blocked|Unplaceable|Aborted|Replaced|Kill/;
export function eventKind(name) {
  if (BAD_EVENTS.test(name)) return "bad";
  return name === "Scaled" ? "info" : /Available|Started|Promoted/.test(name) ? "ok" : "none";
}

function tile(label, note, value, past = null, className = () => "") {
  const figure = el("strong");
  const line = past ? spark(54, 26) : null;
  const root = el("div.tile", {}, el("span.label", {}, label), figure, el("span.quiet", {}, note), line?.root);
  return { root, update() {
    const each = numbers("");
    text(figure, value(each));
    figure.className = className(each);
    line?.update(state.past.get("") ?? []);
  } };
}

const sum = (rows, of) => rows.reduce((total, row) => total + of(row), 0);

function status() {
  const node = el("span.pill");
  return { node, update(row) { text(node, words(row.status)); node.className = `pill ${kind(row.status)}`; attr(node, "title", row.reason || null); } };
}

function trend() {
  const line = spark();
  const node = el("span.trend", {}, el("span"), line.root);
  return { node, update(row) { text(node.firstChild, rate(numbers(row.name).rate)); line.update(state.past.get(keyOf(row.name)) ?? []); } };
}

function errors() {
  const node = el("span");
  return { node, update(row) {
    const share = errorShare(numbers(row.name));
    text(node, percent(share));
    node.className = share >= 0.05 ? "bad" : share > 0.005 ? "warn" : "";
  } };
}

const of = (field) => (row) => numbers(row.name)[field];

export const COLUMNS = [
  { label: "Deployment", value: (row) => row.name, cell: link((row) => row.name, (row) => deploymentLink(row.name)) },
  { label: "Status", value: (row) => rank(row.status), cell: status },
  { label: "Requests/s", numeric: true, value: of("rate"), cell: trend },
  { label: "Errors", numeric: true, value: (row) => errorShare(numbers(row.name)), cell: errors },
  { label: "p50", numeric: true, value: of("p50"), cell: cellWords((row) => duration(of("p50")(row))) },
  { label: "p95", numeric: true, value: of("p95"), cell: cellWords((row) => duration(of("p95")(row))) },
  { label: "p99", numeric: true, value: of("p99"), cell: cellWords((row) => duration(of("p99")(row))) },
  { label: "In flight", numeric: true, value: of("ongoing"), cell: cellWords((row) => count(of("ongoing")(row))) },
  { label: "Queued", numeric: true, value: of("queued"), cell: cellWords((row) => count(of("queued")(row))) },
  { label: "Replicas", numeric: true, value: running, cell: cellWords((row) => `${running(row)}/${row.target}`) },
  { label: "Total", numeric: true, value: of("requests"), cell: cellWords((row) => exact(of("requests")(row))) },
  { label: "Failed", numeric: true, value: of("failed"), cell: cellWords((row) => exact(of("failed")(row))) },
];

