// The conversation of this browser: its id, and the messages that have ended.

import type { UIMessage } from "ai";

const KEY = {{ ("conversation of %s" % cookiecutter.project_slug)|tojson }};

export type Conversation = { id: string; messages: UIMessage[] };

export function begin(): Conversation {
  return { id: crypto.randomUUID(), messages: [] };
}

export function load(): Conversation {
  try {
    return JSON.parse(localStorage.getItem(KEY) ?? "") as Conversation;
  } catch {
    return begin();
  }
}

export function save(conversation: Conversation): void {
  localStorage.setItem(KEY, JSON.stringify(conversation));
}
