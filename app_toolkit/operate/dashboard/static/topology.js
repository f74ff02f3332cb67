// How requests flow: clients, proxies, ingresses, the deployments that they call, and replicas. Up to a number of
// deployments it is a graph. Beyond that, each application is a card with a cell for each of its deployments.

import { attr, children, el, show, svg, text } from "./dom.js";
import { application, applicationLink, count, deployment, deploymentLink, duration, main, percent, plural, rate, short, words } from "./format.js";
import { applications, deployments, errorShare, kind, numbers, proxies, rank, running, state } from "./store.js";
import { compare } from "./table.js";

const MOST_NODES = 24;
const LEAST_WIDTH = 640;
const MOST_CARDS = 60;
const MOST_CELLS = 20;
const WIDTH = 186;
const HEIGHT = 86;
const GAP = 14;
const BAND = 34;
const COLUMN = 44;
const SMALL = 100;

export function topology() {
  const edges = svg("svg", { class: "edges", "aria-hidden": "true" });
  const nodes = el("div.nodes");
  const canvas = el("div.canvas", {}, edges, nodes);
  const scroller = el("div.scroll", { tabindex: 0, role: "region", "aria-label": "Graph of the deployments" }, canvas);
  const cards = el("ul.cards");
  const more = el("button.tool", { type: "button" });
  const nothing = el("p.quiet", {}, "No deployment matches the filter.");
  const root = el("div.topology", {}, scroller, cards, more, nothing);
  const known = new Map();
  const knownCards = new Map();
  let all = false;
  let shape = "";
  more.addEventListener("click", () => { all = !all; cardsOf(last); });
  let last = [];

  function update(filtered) {
    last = filtered;
    const isGraph = filtered.length <= MOST_NODES && (root.clientWidth || innerWidth) >= LEAST_WIDTH;
    show(nothing, filtered.length === 0);
    show(scroller, isGraph && filtered.length > 0);
    show(cards, !isGraph);
    show(more, !isGraph);
    if (isGraph) graph(filtered);
    else cardsOf(filtered);
  }

  // The graph

  function graph(rows) {
    const place = layout(rows);
    const signature = JSON.stringify([place.boxes.map((box) => [box.id, box.x, box.y]), place.edges, place.width]);
    const used = new Set();
    const made = place.boxes.map((box) => {
      const node = known.get(box.id) ?? make(box);
      known.set(box.id, node);
      used.add(box.id);
      node.update(box);
      return node.root;
    });
    for (const id of known.keys()) if (!used.has(id)) known.delete(id);
    if (signature !== shape) {
      shape = signature;
      children(nodes, made);
      place.boxes.forEach((box, index) => {
        made[index].style.transform = `translate(${box.x}px, ${box.y}px)`;
        made[index].style.width = `${box.width}px`;
        made[index].style.height = `${box.height}px`;
      });
      canvas.style.width = `${place.width}px`;
      canvas.style.height = `${place.height}px`;
      attr(edges, "width", place.width);
      attr(edges, "height", place.height);
      children(edges, place.edges.map((edge) => {
        const [from, to] = [place.at.get(edge.from), place.at.get(edge.to)];
        const [x1, y1, x2, y2] = [from.x + from.width, from.y + from.height / 2, to.x, to.y + to.height / 2];
        const middle = (x1 + x2) / 2;
        const d = `M${x1} ${y1}C${middle} ${y1} ${middle} ${y2} ${x2} ${y2}`;
        return svg("g", { class: "edge" }, svg("path", { class: "pipe", d }), svg("path", { class: "flow", d }));
      }));
    }
    place.edges.forEach((edge, index) => {
      const each = numbers(edge.measured);
      const share = errorShare(each) ?? 0;
      const group = edges.children[index];
      attr(group, "class", `edge ${!each.rate ? "idle" : share >= 0.05 ? "bad" : share > 0.005 ? "warn" : ""}`);
      const thickness = each.rate ? Math.min(1.5 + Math.log10(1 + each.rate) * 1.4, 7) : 1.2;
      group.style.setProperty("--width", thickness.toFixed(1));
      group.style.setProperty("--speed", `${each.rate ? Math.max(2.4 - Math.log10(1 + each.rate) * 0.55, 0.7).toFixed(1) : 0}s`);
    });
  }

  function layout(rows) {
    const shown = new Set(rows.map((row) => row.name));
    const byName = new Map(rows.map((row) => [row.name, row]));
    const groups = new Map();
    for (const row of rows) groups.set(application(row.name), [...(groups.get(application(row.name)) ?? []), row]);
    const boxes = [];
    const edgesFound = [];
    const at = new Map();
    const firstX = SMALL + COLUMN + (SMALL + 30) + COLUMN;
    let y = 0;
    let widest = 0;
    for (const [name, members] of [...groups].sort(([a], [b]) => compare(a, b))) {
      const level = levels(members, byName);
      const columns = [];
      for (const row of members.sort((a, b) => compare(a.name, b.name))) (columns[level.get(row.name)] ??= []).push(row);
      const height = Math.max(...columns.filter(Boolean).map((column) => column.length)) * (HEIGHT + GAP) - GAP;
      boxes.push({ id: `band:${name}`, type: "band", name, x: firstX, y, width: WIDTH * 2, height: BAND - 8 });
      columns.forEach((column = [], number) => {
        const used = column.length * (HEIGHT + GAP) - GAP;
        column.forEach((row, index) => {
          const box = { id: row.name, type: "deployment", name: row.name, row, x: firstX + number * (WIDTH + COLUMN), y: y + BAND + (height - used) / 2 + index * (HEIGHT + GAP), width: WIDTH, height: HEIGHT };
          boxes.push(box);
          at.set(box.id, box);
          widest = Math.max(widest, box.x + WIDTH);
        });
      });
      y += BAND + height + 18;
    }
    const total = Math.max(y - 18, 150);
    const entrances = rows.filter((row) => row.kind === "ingress");
    const ys = entrances.map((row) => at.get(row.name)).map((box) => box.y + box.height / 2);
    const middle = ys.length ? Math.min(Math.max((Math.min(...ys) + Math.max(...ys)) / 2, 60), Math.max(total - 60, 60)) : total / 2;
    const clients = { id: "clients", type: "clients", x: 0, y: middle - 40, width: SMALL, height: 80 };
    boxes.unshift(clients);
    at.set("clients", clients);
    const found = proxies();
    const heads = found.length <= 4 ? found.map((row) => ({ id: `proxy:${row.name}`, rows: [row] })) : [{ id: "proxies", rows: found }];
    heads.forEach((head, index) => {
      const box = { ...head, type: "proxy", x: SMALL + COLUMN, y: middle - (heads.length * 94 - 14) / 2 + index * 94, width: SMALL + 30, height: 80 };
      boxes.push(box);
      at.set(box.id, box);
      edgesFound.push({ from: "clients", to: box.id, measured: "" });
      for (const row of entrances) edgesFound.push({ from: box.id, to: row.name, measured: row.name });
    });
    const highest = Math.min(0, ...boxes.map((box) => box.y));
    if (highest < 0) for (const box of boxes) box.y -= highest;
    for (const row of rows) for (const callee of row.calls ?? []) if (shown.has(callee)) edgesFound.push({ from: row.name, to: callee, measured: callee });
    const height = Math.max(...boxes.map((box) => box.y + box.height)) + 2;
    return { boxes, edges: edgesFound, at, width: widest + 2, height };
  }

  // How many calls away a deployment is from an ingress. Deployments that call each other stay in one column.
  function levels(rows, byName) {
    const found = new Map(rows.map((row) => [row.name, row.kind === "ingress" ? 0 : null]));
    let layer = rows.filter((row) => row.kind === "ingress");
    for (let depth = 1; layer.length && depth <= 4; depth += 1) {
      const next = new Set();
      for (const row of layer) for (const callee of row.calls ?? []) {
        if (!byName.has(callee) || byName.get(callee).kind === "ingress" || callee === row.name) continue;
        if (found.has(callee)) { found.set(callee, depth); next.add(byName.get(callee)); }
      }
      layer = [...next];
    }
    for (const [name, depth] of found) if (depth === null) found.set(name, 1);
    return found;
  }

  function make(box) {
    if (box.type === "band") {
      const link = el("a", { href: applicationLink(box.name) }, main(box.name));
      const note = el("span.quiet");
      return { root: el("div.band", {}, link, note), update() { text(note, revisionOf(box.name)); } };
    }
    if (box.type === "clients") {
      const value = el("b");
      const root = el("div.node.small", {}, el("span.name", {}, "Clients"), value, el("span.quiet", {}, "requests/s"));
      return { root, update() { text(value, rate(numbers("").rate)); } };
    }
    if (box.type === "proxy") {
      const name = el("span.name");
      const dot = el("span.dot");
      const note = el("span.quiet");
      const list = el("span.cells");
      return { root: el("div.node.small", {}, el("span.head", {}, dot, name), list, note), update({ rows }) {
        const found = rows.flatMap((row) => row.replicas);
        const worst = [...rows].sort((a, b) => rank(a.status) - rank(b.status))[0];
        dot.className = `dot ${kind(worst.status)}`;
        text(name, found.length === 1 ? "Proxy" : plural(found.length, "proxy", "proxies"));
        attr(name, "title", rows.map((row) => short(row.name)).join(", "));
        fill(list, found);
        text(note, words(worst.status));
      } };
    }
    const dot = el("span.dot");
    const name = el("span.name", {}, deployment(box.name));
    const kindOf = el("span.quiet");
    const [perSecond, latency, failed] = [el("b"), el("b"), el("b")];
    const list = el("span.cells");
    const scale = el("span.quiet");
    const root = el("a.node", { href: deploymentLink(box.name) },
      el("span.head", {}, dot, name, kindOf),
      el("span.facts", {}, el("span", {}, perSecond, "/s"), el("span", {}, latency), el("span", {}, failed)),
      el("span.foot", {}, list, scale));
    return { root, update({ row }) {
      const each = numbers(row.name);
      const share = errorShare(each);
      dot.className = `dot ${kind(row.status)}`;
      text(kindOf, row.kind === "ingress" ? "ingress" : "");
      text(perSecond, rate(each.rate));
      text(latency, duration(each.p95));
      text(failed, share === null ? "–" : percent(share));
      failed.className = share >= 0.05 ? "bad" : share > 0.005 ? "warn" : "";
      fill(list, row.replicas);
      text(scale, `${running(row)}/${row.target}`);
      root.classList.toggle("trouble", kind(row.status) === "bad");
      attr(root, "aria-label", `${box.name}: ${words(row.status)}, ${running(row)} of ${row.target} replicas, ${rate(each.rate)} per second, p95 ${duration(each.p95)}, ${percent(share)} errors`);
    } };
  }

  // The cards

  function cardsOf(rows) {
    const groups = new Map();
    for (const row of rows) {
      const name = main(application(row.name));
      if (!groups.has(name)) groups.set(name, []);
      groups.get(name).push(row);
    }
    const worst = (members) => Math.min(...members.map((row) => rank(row.status)));
    const sorted = [...groups].map(([name, members]) => ({ name, members, worst: worst(members) }))
      .sort((a, b) => a.worst - b.worst || compare(a.name, b.name));
    const shown = all ? sorted : sorted.slice(0, MOST_CARDS);
    children(cards, shown.map((group) => {
      const card = knownCards.get(group.name) ?? makeCard(group.name);
      knownCards.set(group.name, card);
      card.update(group.members);
      return card.root;
    }));
    for (const name of knownCards.keys()) if (!groups.has(name)) knownCards.delete(name);
    show(more, sorted.length > MOST_CARDS);
    text(more, all ? "Show fewer applications" : `Show all ${count(sorted.length)} applications`);
  }

  function makeCard(name) {
    const dot = el("span.dot");
    const [perSecond, latency, failed] = [el("b"), el("b"), el("b")];
    const cells = el("span.cells.big");
    const root = el("li", {}, el("div.card", {}, el("span.head", {}, dot, el("a.name", { href: applicationLink(name) }, name)),
      el("span.facts", {}, el("span", {}, perSecond, "/s"), el("span", {}, latency), el("span", {}, failed)), cells));
    return { root, update(members) {
      const each = numbers(name);
      const share = errorShare(each);
      const worst = [...members].sort((a, b) => rank(a.status) - rank(b.status))[0];
      dot.className = `dot ${kind(worst.status)}`;
      text(perSecond, rate(each.rate));
      text(latency, duration(each.p95));
      text(failed, share === null ? "–" : percent(share));
      failed.className = share >= 0.05 ? "bad" : share > 0.005 ? "warn" : "";
      const shown = members.slice(0, MOST_CELLS);
      while (cells.children.length > shown.length) cells.lastChild.remove();
      while (cells.children.length < shown.length) cells.append(el("a.cell"));
      shown.forEach((row, place) => {
        const cell = cells.children[place];
        const label = `${deployment(row.name)}: ${words(row.status)}, ${running(row)} of ${row.target} replicas`;
        attr(cell, "href", deploymentLink(row.name));
        attr(cell, "aria-label", label);
        attr(cell, "title", label);
        if (cell.className !== `cell ${kind(row.status)}`) cell.className = `cell ${kind(row.status)}`;
      });
    } };
  }

  return { root, update };
}

// Prefix, revision, tag and share of an application or of one of its live revisions.
function revisionOf(name) {
  const row = state.tables.applications[main(name)];
  if (!row) return "";
  const number = Number(name.split("@")[1] ?? (row.serving_revision || row.revision));
  const live = row.traffic.find((each) => each.revision === number);
  return [row.route_prefix ?? "no HTTP", `revision ${number}`, live?.tag, live ? percent(live.share) : null].filter(Boolean).join(" · ");
}

// A cell for each replica, as many as fit.
function fill(list, replicas) {
  const shown = replicas.slice(0, MOST_CELLS - 6);
  while (list.children.length > shown.length + 1) list.lastChild.remove();
  while (list.children.length < shown.length) list.append(el("span.cell"));
  while (list.children.length > shown.length) list.lastChild.remove();
  shown.forEach((replica, place) => {
    const name = `cell ${phase(replica)}`;
    if (list.children[place].className !== name) list.children[place].className = name;
    attr(list.children[place], "title", `${replica.id}: ${replica.problem ?? replica.phase}`);
  });
  if (replicas.length > shown.length) list.append(el("span.quiet", {}, `+${replicas.length - shown.length}`));
}

export function phase(replica) {
  if (replica.problem) return "bad";
  return { running: "ok", starting: "info", draining: "none", stopping: "none" }[replica.phase] ?? "none";
}

export function matching(filter) {
  const wanted = filter.trim().toLowerCase().split(/\s+/).filter(Boolean);
  const statusOf = new Map(applications().map((each) => [each.name, each.status]));
  return deployments().filter((row) => wanted.every((word) => `${row.name} ${words(row.status)} ${row.kind ?? ""} ${words(statusOf.get(application(row.name)))}`.toLowerCase().includes(word)));
}
