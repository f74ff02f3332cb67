// Log records and output of the replicas of all nodes, also of replicas that have ended.

import { send } from "../api.js";
import { button, children, el, show, text } from "../dom.js";
import { deploymentLink, logsLink, plural, time } from "../format.js";
import { deployments, state } from "../store.js";

const LEVELS = ["debug", "info", "warning", "error", "critical"];
const LATEST = 200;
const MOST = 1_000;
const EVERY_MS = 1_500;

export function open(_, query) {
  const name = el("input", { type: "search", id: "log-name", list: "log-names", value: query.get("name") ?? "", placeholder: "APP or APP/DEPLOYMENT" });
  const names = el("datalist", { id: "log-names" });
  const level = el("select", { id: "log-level" }, el("option", { value: "" }, "All levels"), ...LEVELS.map((each) => el("option", { value: each }, each === "debug" ? each : `${each} and above`)));
  const request = el("input", { type: "search", id: "log-request", value: query.get("request_id") ?? "" });
  const replica = el("input", { type: "search", id: "log-replica", value: query.get("replica") ?? "" });
  const following = el("input", { type: "checkbox", id: "log-follow", checked: true });
  level.value = query.get("level") ?? "";
  const found = el("span.quiet", { role: "status" });
  const problem = el("p.note", { hidden: true });
  const list = el("ol.log", { tabindex: 0, "aria-label": "Log records, the newest last" });
  const empty = el("p.quiet", { hidden: true }, "No record matches.");
  const form = el("form.filters", {},
    labelled("Deployment", name), labelled("Level", level), labelled("Request id", request), labelled("Replica", replica), names,
    el("div.check", {}, following, el("label", { htmlFor: "log-follow" }, "Follow")), button("Show", () => {}, { type: "submit", className: "primary" }), found);
  const root = el("div.page", {}, el("section.card", { "aria-label": "Logs" }, form, problem, empty, list));
  let positions = null;
  let timer = null;
  let number = 0;

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const wanted = asked();
    history.replaceState(null, "", logsLink(Object.fromEntries(Object.entries(wanted).filter(([, value]) => value))));
    start();
  });
  level.addEventListener("change", start);
  following.addEventListener("change", () => { if (following.checked) poll(number); });
  start();

  function asked() {
    return { name: name.value.trim(), level: level.value, request_id: request.value.trim(), replica: replica.value.trim() };
  }

  async function start() {
    number += 1;
    const mine = number;
    clearTimeout(timer);
    positions = null;
    text(found, "loading");
    await read(mine, { last: LATEST });
    if (mine === number && following.checked) poll(mine);
  }

  function poll(mine) {
    clearTimeout(timer);
    timer = setTimeout(async () => {
      if (mine !== number || !following.checked) return;
      if (!document.hidden) await read(mine, positions === null ? { last: LATEST } : { after: positions });
      poll(mine);
    }, EVERY_MS);
  }

  async function read(mine, part) {
    try {
      const page = await readLogs(asked(), part);
      if (mine !== number) return;
      const atEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 40;
      if (part.after === undefined) children(list, []);
      list.append(...page.records.map(recordRow));
      while (list.children.length > MOST) list.firstChild.remove();
      positions = page.positions;
      if (atEnd || part.after === undefined) list.scrollTop = list.scrollHeight;
      const missing = page.missing.length ? `; ${page.missing.join(", ")} did not answer` : "";
      const count = `${plural(list.children.length, "record")}${missing}`;
      if (found.textContent !== count) text(found, count);
      show(problem, false);
      show(empty, list.children.length === 0);
      show(list, list.children.length > 0);
    } catch (error) {
      if (mine !== number) return;
      text(found, "");
      text(problem, error.message);
      show(problem, true);
    }
  }

  return {
    root, title: "Logs",
    update(tables) {
      if (!tables.has("deployments") && !tables.has("whole")) return;
      const options = [...Object.keys(state.tables.applications), ...deployments().map((row) => row.name)].sort();
      if (names.children.length !== options.length) children(names, options.map((value) => el("option", { value })));
    },
    close() { number += 1; clearTimeout(timer); },
  };
}

// Asks for a page of records: the newest ones, or those after the positions of the page before.
export function readLogs({ name = "", ...rest }, part) {
  const [application, deployment] = name.split("/");
  const query = Object.fromEntries(Object.entries({ ...rest, application, deployment }).filter(([, value]) => value));
  return send("POST", "api/logs", { query, ...part });
}

function labelled(label, field) {
  return el("div", {}, el("label", { htmlFor: field.id }, label), field);
}

const KINDS = { error: "bad", critical: "bad", warning: "warn", info: "none", debug: "none" };

export function recordRow(record) {
  const level = record.level.toLowerCase();
  const owner = record.application && record.deployment ? `${record.application}/${record.deployment}` : "";
  const where = owner ? el("a", { href: deploymentLink(owner), title: record.replica }, record.replica || owner) : el("span", {}, record.replica || record.logger);
  const about = [record.logger, record.revision ? `revision ${record.revision}` : ""].filter(Boolean).join(" · ");
  return el(`li.${KINDS[level] ?? "none"}`, {},
    el("time", { dateTime: record.time, title: record.time }, time(Date.parse(record.time) / 1_000)),
    el(`span.tag.${KINDS[level] ?? "none"}`, { title: about }, level),
    el("span.where", {}, where),
    el("span.message", {}, el("span", {}, record.message),
      record.request_id ? el("a.request", { href: logsLink({ request_id: record.request_id }), title: "All records of this request" }, record.request_id) : null,
      record.exception ? el("details", {}, el("summary", {}, record.exception.trim().split("\n").at(-1)), el("pre", { tabindex: 0, "aria-label": "Traceback" }, record.exception)) : null));
}

