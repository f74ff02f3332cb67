// The message field: its text, its files, and the drafts of both.

import { $ } from "./dom.js";
import * as files from "./files.js";

// Each conversation has its own draft, and so has a new one. They stay until the tab is closed.
const keyOf = (id) => `draft ${id || "of a new conversation"}`;

export const text = () => $("prompt").value.trim();
export const isEmpty = () => !text() && !files.list().length;
export const focus = () => $("prompt").focus();

export function fill(words, attached = []) {
  $("prompt").value = words;
  files.fill(attached);
  grow();
}

export function grow() {
  $("prompt").style.height = "auto";
  $("prompt").style.height = `${$("prompt").scrollHeight}px`;
}

export function keepDraft(id) {
  const draft = { text: $("prompt").value, files: files.uploaded() };
  try {
    if (draft.text || draft.files.length) sessionStorage.setItem(keyOf(id), JSON.stringify(draft));
    else forgetDraft(id);
  } catch {
    // The storage is full: the draft stays in the field only.
  }
}

export function showDraft(id) {
  const draft = JSON.parse(sessionStorage.getItem(keyOf(id)) ?? "{}");
  fill(draft.text ?? "", draft.files);
}

export const forgetDraft = (id) => sessionStorage.removeItem(keyOf(id));

// The parts of the message, or a sentence that says why it cannot be sent.
export function message() {
  const problem = files.problem();
  if (problem) return { problem };
  return { parts: [...files.uploaded().map(({ sent, ...part }) => part), ...(text() ? [{ type: "text", text: text() }] : [])] };
}
