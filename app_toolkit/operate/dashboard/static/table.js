// Tables of rows with a key: sorted by any column, in pages of fifty rows. An update changes only what differs.

import { attr, button, children, el, show, text } from "./dom.js";
import { exact } from "./format.js";

const SIZE = 50;

// Columns: { label, value(row): what to sort by, cell(): { node, update(row) }, numeric, className }.
export function table({ caption, columns, key, sort = 0, descending = false, size = SIZE, empty = "Nothing to show." }) {
  let order = sort;
  let down = descending;
  let page = 0;
  let rows = [];
  const known = new Map();
  const body = el("tbody");
  const heads = columns.map((column, place) => {
    const head = el(`th${column.numeric ? ".number" : ""}${column.className ? `.${column.className}` : ""}`, { scope: "col" });
    if (!column.value) { head.textContent = column.label; return head; }
    head.append(button(column.label, () => {
      down = order === place ? !down : Boolean(column.numeric);
      order = place;
      page = 0;
      render();
    }, { className: "sort" }));
    return head;
  });
  const first = button("Previous", () => { page -= 1; render(); });
  const next = button("Next", () => { page += 1; render(); });
  const where = el("span", { role: "status" });
  const pager = el("div.pager", { hidden: true }, where, first, next);
  const nothing = el("p.quiet", { hidden: true }, empty);
  const grid = el("table", {}, el("caption.hidden", {}, caption), el("thead", {}, el("tr", {}, ...heads)), body);
  const scroller = el("div.scroll", { tabindex: 0, role: "region", "aria-label": `${caption}, table` }, grid);
  const root = el("div.rows", {}, scroller, nothing, pager);

  function sorted() {
    const { value } = columns[order];
    const sign = down ? -1 : 1;
    const of = new Map(rows.map((row) => [row, value(row)]));
    return [...rows].sort((a, b) => {
      const [left, right] = [of.get(a), of.get(b)];
      if (left === right || (left !== left && right !== right)) return compare(key(a), key(b));
      if (left === null || left === undefined || left !== left) return 1;
      if (right === null || right === undefined || right !== right) return -1;
      return sign * compare(left, right);
    });
  }

  function line(row) {
    const made = known.get(key(row));
    if (made) return made;
    const cells = columns.map((column) => column.cell());
    const tr = el("tr", {}, ...cells.map(({ node, header }, place) => el(header ? "th" : "td", { scope: header ? "row" : undefined, className: [columns[place].numeric ? "number" : "", columns[place].className ?? ""].join(" ").trim() }, node)));
    const entry = { tr, cells };
    known.set(key(row), entry);
    return entry;
  }

  function render() {
    const pages = Math.max(Math.ceil(rows.length / size), 1);
    page = Math.min(Math.max(page, 0), pages - 1);
    const all = sorted();
    const shown = all.slice(page * size, (page + 1) * size);
    const lines = shown.map((row) => {
      const entry = line(row);
      for (const cell of entry.cells) cell.update(row);
      return entry.tr;
    });
    // What is not shown is made again when it is needed.
    if (known.size > 4 * size) {
      const kept = new Set(shown.map(key));
      for (const each of known.keys()) if (!kept.has(each)) known.delete(each);
    }
    const focused = body.contains(document.activeElement) ? document.activeElement : null;
    children(body, lines);
    if (focused && document.activeElement !== focused && body.contains(focused)) focused.focus({ preventScroll: true });
    heads.forEach((head, place) => attr(head, "aria-sort", place === order ? (down ? "descending" : "ascending") : null));
    show(scroller, rows.length > 0);
    show(nothing, rows.length === 0);
    show(pager, pages > 1);
    if (pages > 1) {
      text(where, `${exact(page * size + 1)}–${exact(page * size + shown.length)} of ${exact(rows.length)}`);
      first.disabled = page === 0;
      next.disabled = page === pages - 1;
    }
  }

  return { root, update(next) { rows = next; render(); } };
}

// Made once: `localeCompare` would make a collator for each comparison.
const names = new Intl.Collator(undefined, { numeric: true });

export function compare(left, right) {
  if (typeof left === "string" && typeof right === "string") return names.compare(left, right);
  return left < right ? -1 : left > right ? 1 : 0;
}

// Cells

export function words(value, selector = "span") {
  return () => {
    const node = el(selector);
    return { node, update: (row) => text(node, value(row)) };
  };
}

export function link(label, href, header = true) {
  return () => {
    const node = el("a");
    return { node, header, update(row) { text(node, label(row)); attr(node, "href", href(row)); } };
  };
}
