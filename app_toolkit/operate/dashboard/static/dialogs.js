// Dialogs that ask before something changes, and what they send.

import { send } from "./api.js";
import { el, text, toast } from "./dom.js";

let number = 0;

// Asks, and sends what `action(form)` returns as { method, path, body, done }. The dialog stays open if that fails.
export function confirm({ title, question, fields = [], label, danger = false, check = () => "", action }) {
  number += 1;
  const name = `dialog-${number}`;
  const problem = el("p.error", { role: "alert", hidden: true });
  const submit = el(`button.${danger ? "danger" : "primary"}`, { type: "submit" }, label);
  const cancel = el("button.tool", { type: "button" }, "Cancel");
  const form = el("form", {}, el("h2", { id: `${name}-title` }, title), question ? el("p", { id: `${name}-text` }, question) : null, ...fields, problem, el("menu", {}, cancel, submit));
  const dialog = el("dialog.ask", { "aria-labelledby": `${name}-title`, "aria-describedby": question ? `${name}-text` : undefined }, form);
  const fail = (message) => { text(problem, message); problem.hidden = !message; };
  form.addEventListener("input", () => fail(check()));
  cancel.addEventListener("click", () => dialog.close());
  dialog.addEventListener("close", () => dialog.remove());
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const refused = check();
    if (refused) return fail(refused);
    submit.disabled = true;
    try {
      const { method = "POST", path, body, done } = action();
      await send(method, path, body);
      dialog.close();
      toast(done);
    } catch (error) {
      fail(error.message);
    } finally {
      submit.disabled = false;
    }
  });
  document.body.append(dialog);
  dialog.showModal();
  (form.querySelector("input") ?? cancel).focus();
}

export function numberField(label, value, { min = 0, max, step = 1, unit = "" } = {}) {
  number += 1;
  const id = `field-${number}`;
  const field = el("input", { type: "number", id, min, max, step, required: true, value });
  return { field, row: el("div.field", {}, el("label", { htmlFor: id }, label), field, unit ? el("span.quiet", {}, unit) : null) };
}

// Numbers in percent whose sum must be 100.
export function shareFields(shares) {
  const rows = shares.map(({ key, label, value }) => ({ key, ...numberField(label, Number((value * 100).toFixed(2)), { max: 100, step: "any", unit: "%" }) }));
  const sum = () => rows.reduce((total, { field }) => total + Number(field.value), 0);
  return {
    rows: rows.map(({ row }) => row),
    check: () => (Math.abs(sum() - 100) > 0.01 ? `The sum is ${Number(sum().toFixed(2))} %, and must be 100 %.` : ""),
    weights: () => Object.fromEntries(rows.map(({ key, field }) => [key, Number(field.value) / 100])),
  };
}
