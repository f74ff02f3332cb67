// What is known of the instance: the tables of the live documents, and what follows from them.

const BAD = ["failed", "failing", "rolled_back", "unhealthy"];
const UNSURE = ["waiting_for_resources"];
const MOVING = ["updating", "starting", "stopping"];
const MOST_EVENTS = 300;
const RECENT = 30;

const TABLES = ["instance", "applications", "deployments", "proxies", "numbers", "failing", "processes", "connection", "sample"];

export const state = {
  ready: false,
  at: 0,
  tables: Object.fromEntries(TABLES.map((name) => [name, {}])),
  links: {},
  events: [],
  numbers: new Map(),
  past: new Map(),
};

let columns = [];

// Takes a document. Returns the names of the tables that have changed.
export function apply(document) {
  if (document.whole) {
    for (const name of TABLES) state.tables[name] = {};
    columns = document.columns;
    state.links = document.links;
    state.events = [];
    state.numbers = new Map();
    state.past = new Map(Object.entries(document.past));
    state.ready = true;
  }
  state.at = document.at;
  const changed = new Set();
  for (const name of TABLES) {
    if (!document[name]) continue;
    changed.add(name);
    const table = state.tables[name];
    for (const [key, row] of Object.entries(document[name])) {
      if (row === null && name !== "instance") delete table[key];
      else table[key] = row;
      if (name === "numbers") number(key, row);
    }
  }
  if (document.sample && !document.whole) {
    for (const [name, each] of state.numbers) {
      const past = state.past.get(name) ?? [];
      past.push(each.rate);
      if (past.length > RECENT) past.shift();
      state.past.set(name, past);
    }
  }
  if (document.events) {
    changed.add("events");
    const known = new Set(state.events.map((event) => event.id));
    state.events.push(...document.events.filter((event) => !known.has(event.id)));
    state.events.splice(0, state.events.length - MOST_EVENTS);
  }
  return changed;
}

function number(name, row) {
  if (row === null) {
    state.numbers.delete(name);
    state.past.delete(name);
    return;
  }
  state.numbers.set(name, Object.fromEntries(columns.map((column, place) => [column, row[place]])));
}

// The name of a deployment or application in numbers. It has the revision that created the replica set, and stays when
// that revision becomes the main one.
export const keyOf = (name) => (state.tables.deployments[name] ?? state.tables.applications[name])?.key ?? name;

const NO_NUMBERS = {};
export const numbers = (name) => state.numbers.get(keyOf(name)) ?? NO_NUMBERS;

export function errorShare(each) {
  if (!each.rate) return each.errors ? 1 : each.rate === 0 ? 0 : null;
  return Math.min(each.errors / each.rate, 1);
}

export const kind = (status) =>
  BAD.includes(status) ? "bad" : UNSURE.includes(status) ? "warn" : MOVING.includes(status) ? "info" : status === "healthy" ? "ok" : "none";

const RANK = { bad: 0, warn: 1, info: 2, none: 3, ok: 4 };
export const rank = (status) => RANK[kind(status)];

// A healthy deployment is failing if its requests fail, and a healthy application if one of its deployments is. Every other
// status is shown as it is: an update or a lack of resources says more.
export function deploymentRow(name) {
  const row = state.tables.deployments[name];
  const reason = state.tables.failing[keyOf(name)];
  return row && reason && row.status === "healthy" ? { ...row, status: "failing", reason } : row;
}

export function applicationRow(name) {
  const row = state.tables.applications[name];
  const failing = row?.status === "healthy" && row.deployments.some((each) => deploymentRow(each)?.status === "failing");
  return failing ? { ...row, status: "failing" } : row;
}

export const deployments = () => Object.keys(state.tables.deployments).map((name) => ({ name, ...deploymentRow(name) }));
export const applications = () => Object.keys(state.tables.applications).map((name) => ({ name, ...applicationRow(name) }));
export const proxies = () => Object.entries(state.tables.proxies).map(([name, row]) => ({ name, ...row }));

// Everything that an operator should look at, the worst first.
export function problems() {
  const found = [];
  for (const each of applications()) {
    if (each.error && each.status !== "failing" && BAD.includes(each.status)) found.push({ name: each.name, type: "application", status: each.status, reason: lastLine(each.error), error: each.error });
  }
  for (const [type, rows] of [["deployment", deployments()], ["proxies", proxies()]]) {
    for (const each of rows) {
      if (kind(each.status) === "bad" || kind(each.status) === "warn") {
        found.push({ name: each.name, type, status: each.status, reason: each.reason || "", error: each.error });
      }
    }
  }
  return found.sort((a, b) => rank(a.status) - rank(b.status));
}

export function lastLine(error) {
  const lines = (error ?? "").trim().split("\n");
  return lines[lines.length - 1];
}

export const running = (row) => row.counts?.running ?? 0;
