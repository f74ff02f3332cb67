// The list of the stored conversations, or of those that have the words of a search.

import * as api from "./api.js";
import { announce } from "./dom.js";
import { attempt } from "./notices.js";

let listed = [];
let hasMore = false;
let search = "";
let changed = () => {};

export const view = () => ({ listed, hasMore, search });
export const titleOf = (id) => listed.find((conversation) => conversation.id === id)?.title;

// The one that is so many places after another one. Before the first message, a conversation is not in the list.
export function neighbour(id, step) {
  const index = listed.findIndex((conversation) => conversation.id === id);
  return listed[index < 0 ? 0 : index + step];
}

export async function refresh() {
  const words = search;
  const found = await attempt(() => api.list(0, words));
  if (!found || words !== search) return;
  listed = found;
  hasMore = listed.length === api.PAGE;
  changed();
}

export async function find(words) {
  search = words;
  await refresh();
  if (!words || words !== search) return;
  const count = `${listed.length}${hasMore ? " or more" : ""} ${listed.length === 1 ? "conversation" : "conversations"}`;
  announce(listed.length ? `${count} found.` : "No conversation has these words.");
}

export async function more() {
  const words = search;
  const next = await attempt(() => api.list(listed.length, words)) ?? [];
  if (words !== search) return;
  const ids = new Set(listed.map(({ id }) => id));
  listed.push(...next.filter(({ id }) => !ids.has(id)));
  hasMore = next.length === api.PAGE;
  changed();
}

// `onChange`: the list has changed.
export function start(onChange) {
  changed = onChange;
  return refresh();
}
