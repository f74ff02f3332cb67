// Open streams and WebSockets, by deployment and replica.

import { el, text } from "../dom.js";
import { count, deploymentLink, exact, percent, plural } from "../format.js";
import { deployments, numbers, running } from "../store.js";
import { link, table, words } from "../table.js";

export function open() {
  const sum = el("p.lead");
  const limit = (row) => (row.max_open_streams === undefined ? null : row.max_open_streams * running(row));
  const of = (field) => (row) => numbers(row.name)[field] ?? 0;
  const open = (row) => of("streams")(row) + of("websockets")(row);
  const grid = table({ caption: "Deployments with open streams", key: (row) => row.name, sort: 1, descending: true, empty: "No stream and no WebSocket is open.", columns: [
    { label: "Deployment", value: (row) => row.name, cell: link((row) => row.name, (row) => deploymentLink(row.name)) },
    { label: "Streams", numeric: true, value: of("streams"), cell: words((row) => count(of("streams")(row))) },
    { label: "Limit of its replicas", numeric: true, value: limit, cell: words((row) => exact(limit(row))) },
    { label: "Used", numeric: true, value: (row) => of("streams")(row) / limit(row), cell: words((row) => percent(of("streams")(row) / limit(row))) },
    { label: "WebSockets", numeric: true, value: of("websockets"), cell: words((row) => count(of("websockets")(row))) },
    { label: "Replicas", numeric: true, value: running, cell: words((row) => exact(running(row))) },
  ] });
  const root = el("div.page", {}, sum, el("section.card", { "aria-label": "Streams" }, grid.root));
  return { root, title: "Streams", update() {
    const rows = deployments().filter((row) => open(row) > 0);
    const total = rows.reduce((all, row) => all + open(row), 0);
    text(sum, `${plural(total, "stream or WebSocket is", "streams and WebSockets are")} open at ${plural(rows.length, "deployment")}.`);
    grid.update(rows);
  } };
}
