// Line charts and sparklines in SVG. Each chart is a slider over its time for the keyboard, and a table for those who
// do not see it.

import { attr, children, el, svg, text } from "./dom.js";
import { time } from "./format.js";

const LEFT = 46;
const RIGHT = 10;
const TOP = 8;
const BOTTOM = 20;
const HEIGHT = 168;
const ROWS = 30;

// Round bounds of an axis: at most `most` steps of 1, 2 or 5 times a power of ten.
export function steps(highest, { most = 4, whole = false } = {}) {
  const least = Math.max(highest / most, whole ? 1 : 0);
  const power = 10 ** Math.floor(Math.log10(least));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= least * 0.999);
  const found = [];
  for (let value = 0; value < highest + step * 0.999; value += step) found.push(value);
  return found;
}

// A chart with one line for each series: { key, label, className, step, fill }. `format` writes a value of the axis.
export function chart({ title, note = "", series, format, least = 1, whole = false }) {
  const grid = svg("g", { class: "grid" });
  const marks = svg("g", { class: "marks" });
  const lines = series.map((each, place) => ({
    ...each,
    area: svg("path", { class: `area s${place} ${each.className ?? ""}` }),
    line: svg("path", { class: `line s${place} ${each.className ?? ""}` }),
    dot: svg("circle", { r: 3.5, class: `dot s${place}`, visibility: "hidden" }),
    value: el("output"),
  }));
  const cursor = svg("line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
  const drawing = svg("svg", { height: HEIGHT, "aria-hidden": "true" }, grid, ...lines.filter((each) => each.fill).map((each) => each.area), ...lines.map((each) => each.line), cursor, ...lines.map((each) => each.dot), marks);
  const empty = el("p.empty", {}, "No data yet");
  const slider = el("div.plot", { tabindex: 0, role: "slider", "aria-label": `${title}, time`, "aria-valuemin": 0, "aria-valuemax": 0, "aria-valuenow": 0, "aria-valuetext": "no data yet" }, drawing, empty);
  const tip = el("div.tip", { hidden: true });
  const legend = el("ul.legend", {}, ...lines.map((each, place) => el("li", {}, el(`span.key.s${place}${each.className ? `.${each.className}` : ""}`), el("span", {}, each.label), each.value)));
  const body = el("tbody");
  const data = el("details.data", {}, el("summary", {}, "Data"), el("div.scroll", { tabindex: 0, role: "region", "aria-label": `${title}, data` }, el("table", {}, el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Time"), ...series.map((each) => el("th", { scope: "col" }, each.label)))), body)));
  const root = el("figure.chart", {}, el("figcaption", {}, el("strong", {}, title), note ? el("span.quiet", {}, note) : null), legend, slider, tip, data);

  let past = { at: [] };
  let width = 0;
  let scale = null;
  let chosen = null;

  function draw() {
    const { at } = past;
    width = slider.clientWidth || 320;
    attr(drawing, "width", width);
    attr(drawing, "viewBox", `0 0 ${width} ${HEIGHT}`);
    empty.hidden = at.length > 1;
    attr(drawing, "visibility", at.length > 1 ? "visible" : "hidden");
    lines.forEach((each) => text(each.value, at.length ? format(past[each.key].at(-1)) : "–"));
    attr(slider, "aria-valuemax", Math.max(at.length - 1, 0));
    if (at.length < 2) return;
    if (chosen === null) describe(at.length - 1);
    let highest = least;
    for (const each of lines) for (const value of past[each.key]) if (value > highest) highest = value;
    const ticks = steps(highest, { whole });
    const top = ticks.at(-1);
    const span = Math.max(at.at(-1) - at[0], 60);
    const end = at.at(-1);
    const x = (moment) => LEFT + (1 - (end - moment) / span) * (width - LEFT - RIGHT);
    const y = (value) => TOP + (1 - value / top) * (HEIGHT - TOP - BOTTOM);
    scale = { x, y };
    children(grid, ticks.map((value) => svg("line", { x1: LEFT, x2: width - RIGHT, y1: y(value), y2: y(value) })));
    const labels = ticks.map((value) => label(format(value), LEFT - 6, y(value) + 3.5, "end"));
    const wide = Math.max(Math.floor((width - LEFT) / 120), 1);
    for (let place = 0; place <= wide; place += 1) {
      const moment = end - span + (span * place) / wide;
      const anchor = place === 0 ? "start" : place === wide ? "end" : "middle";
      labels.push(label(time(moment), x(moment), HEIGHT - 5, anchor));
    }
    children(marks, labels);
    for (const each of lines) {
      const path = trace(at, past[each.key], x, y, each.step);
      attr(each.line, "d", path.line);
      if (each.fill) attr(each.area, "d", path.area(y(0)));
    }
    if (chosen !== null) point(Math.min(chosen, at.length - 1));
  }

  function describe(place) {
    attr(slider, "aria-valuenow", place);
    attr(slider, "aria-valuetext", [time(past.at[place]), ...lines.map((each) => `${each.label} ${format(past[each.key][place])}`)].join(", "));
  }

  function point(place) {
    chosen = place;
    describe(place);
    const x = scale.x(past.at[place]);
    attr(cursor, "x1", x);
    attr(cursor, "x2", x);
    attr(cursor, "visibility", "visible");
    for (const each of lines) {
      const value = past[each.key][place];
      const known = Number.isFinite(value);
      attr(each.dot, "visibility", known ? "visible" : "hidden");
      if (!known) continue;
      attr(each.dot, "cx", x);
      attr(each.dot, "cy", scale.y(value));
    }
    children(tip, [el("time", {}, time(past.at[place])), ...lines.map((each, number) => el("span", {}, el(`span.key.s${number}${each.className ? `.${each.className}` : ""}`), `${each.label} `, el("b", {}, format(past[each.key][place]))))]);
    tip.hidden = false;
    const beyond = x > width / 2;
    tip.style.insetInlineStart = beyond ? "" : `${x + slider.offsetLeft + 12}px`;
    tip.style.insetInlineEnd = beyond ? `${root.clientWidth - slider.offsetLeft - x + 12}px` : "";
    tip.style.top = `${slider.offsetTop + TOP}px`;
  }

  function leave() {
    chosen = null;
    tip.hidden = true;
    attr(cursor, "visibility", "hidden");
    for (const each of lines) attr(each.dot, "visibility", "hidden");
  }

  slider.addEventListener("pointermove", (event) => {
    if (past.at.length < 2 || !scale) return;
    const at = event.clientX - slider.getBoundingClientRect().left;
    let nearest = 0;
    past.at.forEach((moment, place) => { if (Math.abs(scale.x(moment) - at) < Math.abs(scale.x(past.at[nearest]) - at)) nearest = place; });
    point(nearest);
  });
  slider.addEventListener("pointerleave", () => { if (document.activeElement !== slider) leave(); });
  slider.addEventListener("blur", leave);
  slider.addEventListener("keydown", (event) => {
    const last = past.at.length - 1;
    const from = chosen ?? last;
    const moves = { ArrowLeft: from - 1, ArrowDown: from - 1, ArrowRight: from + 1, ArrowUp: from + 1, PageDown: from - 30, PageUp: from + 30, Home: 0, End: last };
    if (event.key === "Escape") return leave();
    if (!(event.key in moves) || last < 1 || !scale) return;
    event.preventDefault();
    point(Math.min(Math.max(moves[event.key], 0), last));
  });
  data.addEventListener("toggle", () => {
    if (!data.open) return children(body, []);
    const first = Math.max(past.at.length - ROWS, 0);
    const rows = past.at.slice(first).map((moment, place) => el("tr", {}, el("th", { scope: "row" }, time(moment)), ...lines.map((each) => el("td", {}, format(past[each.key][first + place])))));
    children(body, rows.reverse());
  });

  return { root, update(next) { past = next; draw(); } };
}

function trace(at, values, x, y, step) {
  let line = "";
  let first = null;
  let last = 0;
  let before = null;
  values.forEach((value, place) => {
    if (!Number.isFinite(value)) { before = null; return; }
    const here = x(at[place]);
    const high = y(value);
    if (before === null) line += `M${here.toFixed(1)} ${high.toFixed(1)}`;
    else if (step) line += `H${here.toFixed(1)}V${high.toFixed(1)}`;
    else line += `L${here.toFixed(1)} ${high.toFixed(1)}`;
    first ??= here;
    last = here;
    before = high;
  });
  // A single point would be invisible.
  return { line, area: (zero) => (first === null || line.lastIndexOf("M") > 0 ? "" : `${line}L${last.toFixed(1)} ${zero}L${first.toFixed(1)} ${zero}Z`) };
}

function label(words, x, y, anchor) {
  const made = svg("text", { x: x.toFixed(1), y: y.toFixed(1), "text-anchor": anchor });
  made.textContent = words;
  return made;
}

// A small line without axes, which repeats what is written beside it.
export function spark(width = 64, height = 24) {
  const line = svg("path", { class: "line s0" });
  const area = svg("path", { class: "area s0" });
  const root = svg("svg", { class: "spark", width, height, viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", "aria-hidden": "true" }, area, line);
  return {
    root,
    update(values) {
      const highest = Math.max(...values.filter(Number.isFinite), 1e-9);
      const x = (place) => (width * place) / Math.max(values.length - 1, 1);
      const y = (value) => height - 2 - (value / highest) * (height - 4);
      const path = trace(values.map((_, place) => place), values, x, y, false);
      attr(line, "d", path.line);
      attr(area, "d", path.area(height));
    },
  };
}
