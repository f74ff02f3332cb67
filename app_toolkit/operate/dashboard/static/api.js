// Requests to the Admin API. A token is asked for if the API wants one. It is kept for this tab only.

import { el } from "./dom.js";

const KEY = "app_toolkit.token";
let memory = "";
let asking = null;

function token() {
  try { return sessionStorage.getItem(KEY) ?? memory; } catch { return memory; }
}

function keep(value) {
  memory = value;
  try { sessionStorage.setItem(KEY, value); } catch { /* storage is off */ }
}

export class ApiError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

// Sends a request, and asks for a token as often as the API refuses the one before.
export async function request(path, { method = "GET", body, signal } = {}) {
  for (let wrong = false; ; wrong = true) {
    const used = token();
    const headers = { Accept: "application/json" };
    if (used) headers.Authorization = `Bearer ${used}`;
    if (body !== undefined) headers["Content-Type"] = "application/json";
    const response = await fetch(path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body), signal, cache: "no-store", credentials: "omit" });
    if (response.status !== 401) {
      if (!response.ok) throw new ApiError(await explanation(response), response.status);
      return response;
    }
    if (token() === used) await ask(wrong && used !== "");
  }
}

export async function get(path, query = {}, options = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const parameters = new URLSearchParams(given).toString();
  return (await request(parameters ? `${path}?${parameters}` : path, options)).json();
}

export async function send(method, path, body = {}) {
  const response = await request(path, { method, body });
  return response.status === 204 ? null : response.json();
}

async function explanation(response) {
  try {
    const { detail, error } = await response.json();
    if (typeof detail === "string") return detail;
    if (Array.isArray(detail)) return detail.map((each) => each.msg).join("; ");
    if (typeof error === "string") return error;
  } catch { /* it is no JSON */ }
  return `the API answered ${response.status} ${response.statusText}`;
}

function ask(wrong) {
  asking ??= new Promise((resolve) => {
    const field = el("input", { type: "password", id: "token", autocomplete: "off", required: true });
    const note = el("p.error", { id: "token-note", role: "alert", hidden: !wrong }, "The API refused this token.");
    field.setAttribute("aria-describedby", "token-note");
    const form = el("form", { method: "dialog" },
      el("h2", { id: "token-title" }, "Token of the Admin API"),
      el("p", {}, "This instance asks for the value of APP_TOOLKIT_ADMIN_TOKEN. It stays in this tab, until you close it."),
      el("label", { htmlFor: "token" }, "Token"), field, note,
      el("menu", {}, el("button.primary", { type: "submit" }, "Continue")));
    const dialog = el("dialog.ask", { "aria-labelledby": "token-title" }, form);
    // Browsers close a dialog at the second Escape, whatever `cancel` says.
    dialog.addEventListener("close", () => { if (dialog.isConnected) { dialog.showModal(); field.focus(); } });
    form.addEventListener("submit", () => { keep(field.value.trim()); dialog.remove(); asking = null; resolve(); });
    document.body.append(dialog);
    dialog.showModal();
    field.focus();
  });
  return asking;
}
