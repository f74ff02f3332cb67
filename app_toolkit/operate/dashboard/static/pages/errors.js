// What fails now, with its traceback, and the latest errors in the logs.

import { button, children, el, show, text } from "../dom.js";
import { applicationLink, deploymentLink, logsLink, plural, short, words } from "../format.js";
import { kind, problems } from "../store.js";
import { readLogs, recordRow } from "./logs.js";

const LATEST = 100;

export function open() {
  const now = el("div.problems");
  const fine = el("p.quiet", {}, "No application, deployment or proxy has a failure.");
  const found = el("span.quiet", { role: "status" });
  const list = el("ol.log");
  const reload = button("Refresh", load);
  const root = el("div.page", {},
    el("section.card", { "aria-labelledby": "failing-title" }, el("div.head", {}, el("h2", { id: "failing-title" }, "Failing now")), fine, now),
    el("section.card", { "aria-labelledby": "logged-title" }, el("div.head", {}, el("h2", { id: "logged-title" }, "Logged errors"), found, reload), list));
  let said = "";
  load();

  async function load() {
    text(found, "loading");
    try {
      const page = await readLogs({ level: "error" }, { last: LATEST });
      children(list, page.records.map(recordRow).reverse());
      text(found, plural(page.records.length, "record"));
    } catch (problem) {
      text(found, problem.message);
    }
  }

  function update() {
    const rows = problems();
    show(fine, rows.length === 0);
    const next = JSON.stringify(rows);
    if (next === said) return;
    said = next;
    children(now, rows.map((each) => el("article", {},
      el("h3", {}, el(`span.pill.${kind(each.status)}`, {}, words(each.status)), " ", each.type === "proxies" ? short(each.name) : el("a", { href: each.type === "application" ? applicationLink(each.name) : deploymentLink(each.name) }, each.name)),
      each.reason ? el("p", {}, each.reason) : null,
      each.error && each.error.trim().includes("\n") ? el("details", { open: rows.length === 1 }, el("summary", {}, "Traceback"), el("pre", { tabindex: 0, "aria-label": `Traceback of ${each.name}` }, each.error)) : null,
      each.type === "deployment" ? el("p", {}, el("a", { href: logsLink({ name: each.name }) }, "Logs of its replicas")) : null)));
  }

  return { root, title: "Errors", update };
}

