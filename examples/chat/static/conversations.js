// The conversations of this browser. They are kept in its local storage, which all its tabs share.

const KEY = "conversations";

export const newId = () => crypto.randomUUID();

export function all() {
  return JSON.parse(localStorage.getItem(KEY) ?? "[]");
}

export function find(id) {
  return all().find((each) => each.id === id) ?? { id, title: "New conversation", messages: [] };
}

export function save(conversation) {
  const others = all().filter((each) => each.id !== conversation.id);
  localStorage.setItem(KEY, JSON.stringify([conversation, ...others]));
}

export function remove(id) {
  localStorage.setItem(KEY, JSON.stringify(all().filter((each) => each.id !== id)));
}

// A message as the AI SDK writes it.
export function uiMessage({ id, role, text }) {
  return { id, role, parts: [{ type: "text", text }] };
}
