// The conversations that the server stores for this browser.

import type { UIMessage } from "ai";

const API = "/api/conversations";

export type Summary = { id: string; title: string; updated: string };
export type Metadata = { incomplete?: boolean; error?: string };
export type Message = UIMessage<Metadata>;

// `crypto.randomUUID` exists only over HTTPS and on localhost.
export const newId = () => crypto.getRandomValues(new Uint32Array(4)).join("-");

async function request(path: string, options?: RequestInit): Promise<Response> {
  const response = await fetch(`${API}${path}`, options);
  if (!response.ok && response.status !== 404) throw new Error(`The server answered ${response.status}.`);
  return response;
}

export async function list(): Promise<Summary[]> {
  return (await request("?limit=100")).json();
}

// A conversation that the server does not have yet has no messages.
export async function messagesOf(id: string, signal: AbortSignal): Promise<Message[]> {
  const response = await request(`/${encodeURIComponent(id)}`, { signal });
  return response.ok ? (await response.json()).messages : [];
}

export async function remove(id: string): Promise<void> {
  await request(`/${encodeURIComponent(id)}`, { method: "DELETE" });
}
