// The routes of the server.

import type { UIMessage } from "ai";

const CHATS = "/api/chat";
const CONVERSATIONS = "/api/conversations";
const FILES = "/api/files";

export type Metadata = { incomplete?: boolean; error?: string; usage?: { inputTokens: number; outputTokens: number } };
export type Message = UIMessage<Metadata>;
export type Summary = { id: string; title: string; updated: string };
export type Feedback = { rating: "good" | "bad"; comment?: string };
export type StoredMessage = Message & { parent_id: string | null; model: string | null; feedback: Feedback | null };
export type Stored = { active_id: string | null; messages: StoredMessage[] };
export type StoredFile = { id: string; name: string; media_type: string; url: string };

export const EMPTY: Stored = { active_id: null, messages: [] };

// `crypto.randomUUID` exists only over HTTPS and on localhost.
export const newId = () => crypto.getRandomValues(new Uint32Array(4)).join("-");

export const sentence = (error: unknown) => (error instanceof Error ? error.message : String(error));

async function request(url: string, options?: RequestInit): Promise<Response> {
  const response = await fetch(url, options);
  if (response.ok || response.status === 404) return response;
  throw new Error(detail(await response.text()) || `The server answered ${response.status}.`);
}

function detail(text: string): string {
  try {
    return String(JSON.parse(text).detail);
  } catch {
    return text;
  }
}

const json = (method: string, body: object) => ({ method, headers: { "content-type": "application/json" }, body: JSON.stringify(body) });
const one = (id: string) => `${CONVERSATIONS}/${encodeURIComponent(id)}`;

export const chats = CHATS;
export const models = async (): Promise<string[]> =>
  (await (await request("/v1/models")).json()).data.map((model: { id: string }) => model.id);
export const list = async (search: string): Promise<Summary[]> =>
  (await request(`${CONVERSATIONS}?${new URLSearchParams({ search, limit: "100" })}`)).json();

// A conversation that the server does not have yet has no messages. All branches are loaded.
export async function load(id: string, signal?: AbortSignal): Promise<Stored> {
  const response = await request(`${one(id)}?all=true`, { signal });
  return response.ok ? response.json() : EMPTY;
}

type Change = { title: string } | { active_id: string } | { rating: { message_id: string; feedback: Feedback | null } };
export const change = (id: string, fields: Change) => request(one(id), json("PATCH", fields));
export const remove = (id: string) => request(one(id), { method: "DELETE" });

// The model continues without a reader, so the server has to stop it.
export const stop = (id: string) => request(`${CHATS}/${encodeURIComponent(id)}/stop`, json("POST", {}));

export const removeFile = (url: string) => request(url.replace(/\/content$/, ""), { method: "DELETE" });

// Upload a file. `fetch` does not tell how much of it has been sent.
export function upload(file: File, onProgress: (share: number) => void): Promise<StoredFile> {
  return new Promise((resolve, reject) => {
    const sending = new XMLHttpRequest();
    sending.upload.onprogress = ({ loaded, total }) => onProgress(loaded / total);
    sending.onerror = () => reject(new Error("The connection to the server was lost."));
    sending.onload = () => {
      if (sending.status === 201) resolve(JSON.parse(sending.responseText));
      else reject(new Error(detail(sending.responseText) || `The server answered ${sending.status}.`));
    };
    const body = new FormData();
    body.append("file", file);
    sending.open("POST", FILES);
    sending.send(body);
  });
}
