// One deployment: its numbers, charts, replicas, autoscaler, events, and the last error.

import { attr, button, children, el, show, text } from "../dom.js";
import { age, applicationLink, bytes, count, decimal, duration, exact, logsLink, percent, plural, rate, words } from "../format.js";
import { get } from "../api.js";
import { chart } from "../chart.js";
import { confirm, numberField } from "../dialogs.js";
import { scale } from "../actions.js";
import { deploymentRow, errorShare, keyOf, kind, numbers, running, state } from "../store.js";
import { table, words as cellWords } from "../table.js";
import { phase } from "../topology.js";
import { event } from "./overview.js";

const MOST_POINTS = 450;
const EVENTS = 12;

export function open([application, name]) {
  const id = `${application}/${name}`;
  const status = el("span.pill");
  const about = el("span.quiet");
  const routes = el("ul.routes");
  const scaleButton = button("Scale…", askForScale, { className: "primary" });
  const gone = el("p.note", { hidden: true }, `${id} is not deployed.`);
  const error = el("pre", { tabindex: 0, "aria-label": "Last error" });
  const errorCard = el("section.card.trouble", { "aria-labelledby": "error-title" }, el("div.head", {}, el("h2", { id: "error-title" }, "Last error")), error);
  const tiles = [
    tile("Rate", () => `${rate(numbers(id).rate)} /s`),
    tile("Errors", () => percent(errorShare(numbers(id)))),
    tile("p95", () => duration(numbers(id).p95)),
    tile("In flight", () => count(numbers(id).ongoing)),
    tile("Queued", () => count(numbers(id).queued)),
    tile("Open streams", () => count((numbers(id).streams ?? 0) + (numbers(id).websockets ?? 0))),
  ];
  const charts = [
    chart({ title: "Rate", note: "per second", format: rate, series: [{ key: "rate", label: "ended", fill: true }, { key: "errors", label: "errors", className: "bad" }] }),
    chart({ title: "Latency", note: "quantiles of 10 s", format: duration, least: 0.001, series: [{ key: "p50", label: "p50" }, { key: "p95", label: "p95" }, { key: "p99", label: "p99" }] }),
    chart({ title: "Load", note: "at replicas, and waiting for one", format: count, whole: true, series: [{ key: "ongoing", label: "in flight", fill: true }, { key: "queued", label: "queued", className: "warn" }] }),
    chart({ title: "Replicas", format: count, whole: true, series: [{ key: "replicas", label: "available", fill: true, step: true }, { key: "desired", label: "desired", className: "dashed", step: true }] }),
    chart({ title: "Batch size", note: "items, quantiles of 10 s", format: decimal, series: [{ key: "batch_p50", label: "p50" }, { key: "batch_p95", label: "p95" }, { key: "batch_p99", label: "p99" }, { key: "batch", label: "average" }] }),
    chart({ title: "Open streams", format: count, whole: true, series: [{ key: "streams", label: "streams", fill: true, step: true }, { key: "websockets", label: "WebSockets", step: true }] }),
  ];
  const grid = table({ caption: `Replicas of ${id}`, columns: REPLICAS, key: (row) => row.id, empty: "It has no replicas." });
  const scaling = el("dl.facts-list");
  const scalingCard = el("section.card", { "aria-labelledby": "scaling-title" }, el("div.head", {}, el("h2", { id: "scaling-title" }, "Autoscaler"), el("a", { href: `#/events?${new URLSearchParams({ subject: id, kind: "Scaled" })}` }, "Its decisions")), scaling);
  const events = el("ol.events");
  const noEvents = el("p.quiet", {}, "No events yet.");
  const root = el("div.page", {},
    el("div.lead", {}, status, about, el("span.spacer"), el("a.tool", { href: logsLink({ name: id }) }, "Logs"), el("a.tool", { href: `#/slow?${new URLSearchParams({ name: id })}` }, "Slow requests"), scaleButton),
    routes, gone, errorCard,
    el("section.tiles", { "aria-label": "Numbers" }, ...tiles.map((each) => each.root)),
    el("section.charts", { "aria-label": "Charts of the last 15 minutes" }, ...charts.map((each) => each.root)),
    scalingCard,
    el("section.card", { "aria-labelledby": "replicas-title" }, el("div.head", {}, el("h2", { id: "replicas-title" }, "Replicas")), grid.root),
    el("section.card", { "aria-labelledby": "events-title" }, el("div.head", {}, el("h2", { id: "events-title" }, "Events"), el("a", { href: `#/events?${new URLSearchParams({ subject: id })}` }, "All")), noEvents, events));

  let past = null;
  let closed = false;
  const resized = new ResizeObserver(() => { if (past) drawAll(); });
  resized.observe(root);
  load();

  async function load() {
    try {
      const found = await get("api/series", { name: keyOf(id) });
      if (!closed) { past = found; drawAll(); }
    } catch (problem) {
      if (!closed) text(about, problem.message);
    }
  }

  // Charts of batches and streams are shown if there are any.
  function drawAll() {
    show(charts[4].root, past.batch.some(Number.isFinite));
    show(charts[5].root, state.tables.deployments[id]?.kind === "ingress" || past.streams.some((value) => value > 0));
    const shown = charts.filter((each) => !each.root.hidden).length;
    attr(charts[0].root.parentElement, "data-count", shown);
    charts.forEach((each) => { if (!each.root.hidden) each.update(past); });
  }

  function add() {
    const { at } = state.tables.sample;
    if (!past || !at || past.at.at(-1) >= at) return false;
    past.at.push(at);
    const each = numbers(id);
    for (const key of Object.keys(past)) if (key !== "at") past[key].push(each[key] ?? null);
    if (past.at.length > MOST_POINTS) for (const column of Object.values(past)) column.shift();
    return true;
  }

  function update(tables) {
    const row = deploymentRow(id);
    show(gone, !row);
    show(scaleButton, Boolean(row));
    if (tables.has("whole") && past) load();
    else if (add()) drawAll();
    for (const each of tiles) each.update();
    if (row) {
      text(status, words(row.status));
      status.className = `pill ${kind(row.status)}`;
      text(about, [row.kind === "class" ? "called by handles" : "ingress", `${running(row)} of ${plural(row.target, "replica")} running`, row.restarts ? `${exact(row.restarts)} ended unexpectedly` : "", row.status === "failing" ? row.reason : ""].filter(Boolean).join(" · "));
      if (routes.dataset.said !== String(row.routes)) {
        routes.dataset.said = String(row.routes);
        children(routes, (row.routes ?? []).map((each) => el("li", {}, el("code", {}, each))));
      }
      grid.update(row.replicas);
      show(scalingCard, Boolean(row.scaling));
      if (row.scaling) showScaling(row);
      text(error, row.error ?? "");
    }
    show(errorCard, Boolean(row?.error) && kind(row.status) !== "ok");
    if (tables.has("events") || tables.has("whole")) {
      const found = state.events.filter((each) => each.subject === id).slice(-EVENTS).reverse();
      show(noEvents, found.length === 0);
      children(events, found.map(event));
    }
  }

  function showScaling(row) {
    const { min_replicas, max_replicas, load, average, needed, why } = row.scaling;
    const facts = [["Bounds", `${min_replicas} to ${max_replicas}`], ["Load now", decimal(load)], ["On average", decimal(average)], ["Needed", exact(needed)], ["Desired", exact(row.target)], ["Last change", why ?? "none yet"]];
    while (scaling.children.length < facts.length) scaling.append(el("div", {}, el("dt"), el("dd")));
    facts.forEach(([label, value], place) => { text(scaling.children[place].firstChild, label); text(scaling.children[place].lastChild, value); });
  }

  function askForScale() {
    const row = state.tables.deployments[id];
    const { field, row: line } = numberField("Replicas", row.target, { min: 1, max: 1_000 });
    confirm({
      title: `Scale ${id}`,
      question: row.scaling ? "The autoscaler sets the number within its bounds. The API says whether it accepts another one." : `It has ${row.target} now. Replicas that are removed finish their requests first.`,
      fields: [line],
      label: "Scale",
      check: () => (/^[1-9]\d*$/.test(field.value.trim()) ? "" : "Enter a whole number of replicas, at least 1. To stop the deployment, delete its application."),
      action: () => scale(application, name, Number(field.value)),
    });
  }

  return { root, title: id, crumbs: [["Overview", "#/"], [application, applicationLink(application)]], update, close() { closed = true; resized.disconnect(); } };
}

function tile(label, value) {
  const figure = el("strong");
  return { root: el("div.tile", {}, el("span.label", {}, label), figure), update: () => text(figure, value()) };
}

function pill() {
  const node = el("span.pill");
  return { node, update(row) { text(node, words(row.phase)); node.className = `pill ${phase(row)}`; } };
}

function replica() {
  const node = el("a");
  return { node, header: true, update(row) { text(node, row.id); attr(node, "href", logsLink({ replica: row.id })); attr(node, "title", "Logs of this replica"); } };
}

const process = (row) => state.tables.processes[row.id] ?? [];

const REPLICAS = [
  { label: "Replica", value: (row) => row.id, cell: replica },
  { label: "Phase", value: (row) => row.phase, cell: pill },
  { label: "Since", numeric: true, value: (row) => row.since, cell: cellWords((row) => age(state.at - row.since)) },
  { label: "In flight", numeric: true, value: (row) => process(row)[0], cell: cellWords((row) => count(process(row)[0])) },
  { label: "Streams", numeric: true, value: (row) => process(row)[1], cell: cellWords((row) => count(process(row)[1])) },
  { label: "Memory", numeric: true, value: (row) => process(row)[2], cell: cellWords((row) => bytes(process(row)[2])) },
  { label: "Loop lag", numeric: true, value: (row) => process(row)[3], cell: cellWords((row) => duration(process(row)[3])) },
  { label: "Node", value: (row) => row.node, cell: cellWords((row) => (row.node ?? "–").slice(0, 12)) },
  { label: "Problem", value: (row) => row.problem ?? "", cell: cellWords((row) => row.problem ?? "") },
];
