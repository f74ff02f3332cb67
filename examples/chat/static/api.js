// The routes of the server.

import { Interrupted, Refused } from "./stream.js";

const CHATS = "api/chat";
const CONVERSATIONS = "api/conversations";
const FILES = "api/files";
const MODELS = "v1/models";

export const PAGE = 100; // conversations of one request

// `crypto.randomUUID` exists only over HTTPS and on localhost.
export const newId = () => crypto.getRandomValues(new Uint32Array(4)).join("-");

async function request(url, options = {}) {
  const response = await fetch(url, options);
  if (!response.ok) throw refused(response.status, await response.text());
  return response;
}

function refused(status, text) {
  let detail;
  try {
    detail = JSON.parse(text).detail;
  } catch {
    detail = text;
  }
  const words = typeof detail === "string" && detail ? detail[0].toUpperCase() + detail.slice(1) : `The server answered ${status}`;
  return new Refused(/[.!?]$/.test(words) ? words : `${words}.`, status);
}

const json = (method, body) => ({ method, headers: { "content-type": "application/json" }, body: JSON.stringify(body) });
const one = (id) => `${CONVERSATIONS}/${encodeURIComponent(id)}`;

export const list = async (offset = 0, search = "") => (await request(`${CONVERSATIONS}?${new URLSearchParams({ limit: PAGE, offset, search })}`)).json();
export const change = (id, fields) => request(one(id), json("PATCH", fields)); // `title`; `active_id`: a message; or `rating`

// Both return undefined or do nothing if the server does not have the conversation.
export const get = (id, signal) => request(one(id), { signal }).then((response) => response.json()).catch(unknown);
export const getAll = async (id) => (await request(`${one(id)}?all=true`)).json(); // the messages of all branches
export const remove = (id) => request(one(id), { method: "DELETE" }).catch(unknown);

function unknown(error) {
  if (error.status !== 404) throw error;
}

// Wait until the server answers, for a limited time. `signal` ends the request and its body.
async function answered(url, options, signal, seconds) {
  const own = new AbortController();
  const abort = () => own.abort();
  signal.addEventListener("abort", abort, { once: true });
  const alarm = setTimeout(abort, seconds * 1000);
  try {
    return await fetch(url, { ...options, signal: own.signal });
  } catch (error) {
    if (signal.aborted) throw error;
    throw new Interrupted(error.message);
  } finally {
    clearTimeout(alarm);
  }
}

// The server has the earlier messages. A message with a known id asks for another response. One that replaces another
// message begins a branch beside it.
export const send = (id, { id: messageId, role, parts, replaces }, trigger, model, signal) =>
  answered(CHATS, json("POST", { id, message: { id: messageId, role, parts }, trigger, messageId: replaces, model }), signal, 60); // it waits for the first words of the model

export const follow = (id, signal) => answered(`${CHATS}/${encodeURIComponent(id)}/stream`, {}, signal, 10);
export const stop = (id) => request(`${CHATS}/${encodeURIComponent(id)}/stop`, json("POST", {}));

// Files and models. A server may have neither.

export const hasFiles = () => fetch(`${FILES}?limit=1`).then(({ ok }) => ok, () => false);

export async function models() {
  const response = await fetch(MODELS).catch(() => undefined);
  return response?.ok ? (await response.json()).data.map(({ id }) => id) : [];
}

// A server that reads the length of the body only does not name the file.
function refusedFile({ status, response }) {
  const error = refused(status, response);
  if (status === 413 && error.message.startsWith("The body ")) error.message = `The file is too large: t${error.message.slice(1)}`;
  return error;
}

// `onProgress` gets how much of the file the server has, from 0 to 1. Only this old interface of browsers says that.
export function upload(file, onProgress) {
  const sending = new XMLHttpRequest();
  const form = new FormData();
  form.append("file", file);
  const done = new Promise((resolve, reject) => {
    sending.upload.addEventListener("progress", ({ loaded, total }) => onProgress(loaded / total));
    sending.addEventListener("load", () => (sending.status === 201 ? resolve(JSON.parse(sending.response)) : reject(refusedFile(sending))));
    sending.addEventListener("error", () => reject(new Interrupted("The upload was interrupted.")));
    sending.addEventListener("abort", () => reject(new Interrupted("The upload was cancelled.")));
    sending.open("POST", FILES);
    sending.send(form);
  });
  return { done, abort: () => sending.abort() };
}

// Messages have the address of a file at the root of the server; the page may be below a prefix.
export const address = (url) => (url.startsWith(`/${FILES}/`) ? url.slice(1) : url);
export const isOwn = (url) => new URL(url, document.baseURI).origin === location.origin;
export const removeFile = (url) => request(address(url).replace(/\/content$/, ""), { method: "DELETE" });
