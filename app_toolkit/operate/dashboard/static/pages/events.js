// The event log of the controller: what it did, and why. The autoscaler's decisions are the events "Scaled".

import { children, el, show, text } from "../dom.js";
import { plural } from "../format.js";
import { state } from "../store.js";
import { event, eventKind } from "./overview.js";

export function open(_, query) {
  const filter = el("input", { type: "search", id: "filter", value: query.get("subject") ?? "", placeholder: "Filter by name, event or cause" });
  const choice = el("select", { id: "kind" }, ...[["", "All events"], ["Scaled", "Autoscaler"], ["bad", "Failures"]].map(([value, label]) => el("option", { value }, label)));
  choice.value = query.get("kind") ?? "";
  const found = el("span.quiet", { role: "status" });
  const list = el("ol.events");
  const empty = el("p.quiet", {}, "No event matches.");
  const root = el("div.page", {}, el("section.card", { "aria-label": "Events" },
    el("div.head", {}, el("label.hidden", { htmlFor: "filter" }, "Filter the events"), filter, el("label.hidden", { htmlFor: "kind" }, "Kind of event"), choice, found), list, empty));
  for (const each of [filter, choice]) each.addEventListener("input", render);

  function render() {
    const wanted = filter.value.trim().toLowerCase();
    const rows = state.events.filter((row) =>
      (choice.value === "" || (choice.value === "bad" ? eventKind(row.name) === "bad" : row.name === choice.value))
      && `${row.subject || "instance"} ${row.name} ${row.replica ?? ""} ${row.cause ?? ""}`.toLowerCase().includes(wanted));
    text(found, plural(rows.length, "event"));
    show(empty, rows.length === 0);
    children(list, rows.reverse().map(event));
  }

  return { root, title: "Events", update: (tables) => { if (tables.has("events") || tables.has("whole")) render(); } };
}
