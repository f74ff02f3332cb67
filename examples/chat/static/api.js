// The routes of the server.

import { Interrupted, Refused } from "./stream.js";

const CHATS = "api/chat";
const CONVERSATIONS = "api/conversations";

export const PAGE = 100; // conversations of one request

// `crypto.randomUUID` exists only over HTTPS and on localhost.
export const newId = () => crypto.getRandomValues(new Uint32Array(4)).join("-");

async function request(url, options = {}) {
  const response = await fetch(url, options);
  if (!response.ok) {
    const text = await response.text();
    let detail;
    try {
      detail = JSON.parse(text).detail;
    } catch {
      detail = text;
    }
    throw new Refused(typeof detail === "string" && detail ? detail : `The server answered ${response.status}.`, response.status);
  }
  return response;
}

const json = (method, body) => ({ method, headers: { "content-type": "application/json" }, body: JSON.stringify(body) });
const one = (id) => `${CONVERSATIONS}/${encodeURIComponent(id)}`;

export const list = async (offset = 0) => (await request(`${CONVERSATIONS}?limit=${PAGE}&offset=${offset}`)).json();
export const rename = (id, title) => request(one(id), json("PATCH", { title }));

// Both return undefined or do nothing if the server does not have the conversation.
export const get = (id, signal) => request(one(id), { signal }).then((response) => response.json()).catch(unknown);
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

// The server has the earlier messages. A message with a known id takes its place, and those after it are removed.
export const send = (id, message, trigger, signal) =>
  answered(CHATS, json("POST", { id, message, trigger }), signal, 60); // it waits for the first words of the model

export const follow = (id, signal) => answered(`${CHATS}/${encodeURIComponent(id)}/stream`, {}, signal, 10);
export const stop = (id) => request(`${CHATS}/${encodeURIComponent(id)}/stop`, json("POST", {}));
