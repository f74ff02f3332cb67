// A conversation as a file: Markdown has the messages that are shown, and JSON those of all branches.

import * as api from "./api.js";
import { element } from "./dom.js";
import { isCall, isSource, nameOf } from "./parts.js";

export async function save(conversation, kind) {
  if (kind === "json") return download(conversation.title, "json", "application/json", JSON.stringify(await api.getAll(conversation.id), null, 2));
  download(conversation.title, "md", "text/markdown", markdownOf(conversation));
}

function download(title, ending, type, text) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  const name = title.replace(/[^\p{L}\p{N}]+/gu, " ").trim().slice(0, 60) || "conversation";
  element("a", { href: address, download: `${name}.${ending}` }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

const fenced = (text) => `${"`".repeat(Math.max(3, ...[...text.matchAll(/`+/g)].map(([run]) => run.length + 1)))}\n`;
const block = (text) => `${fenced(text)}${text}\n${fenced(text).trim()}`;
const inline = (text) => text.replace(/[\\[\]<>*_`]/g, "\\$&");

function partOf(part) {
  if (part.type === "text") return part.text;
  if (part.type === "reasoning") return part.text.trim().split("\n").map((line) => `> ${line}`).join("\n");
  if (part.type === "file") return part.url.startsWith("data:") ? `*File of the type ${part.mediaType}*` : `[${inline(part.filename ?? "File")}](<${new URL(api.address(part.url), document.baseURI)}>)`;
  if (isCall(part)) return [`**Tool ${inline(nameOf(part))}**`, ...[part.input, part.output ?? part.errorText].filter((value) => value !== undefined).map((value) => block(JSON.stringify(value, null, 2)))].join("\n\n");
  return "";
}

function sourcesOf(parts) {
  const lines = parts.filter(isSource).map(({ url, title, filename }) => (url ? `- [${inline(title ?? url)}](<${url}>)` : `- ${inline(title)}${filename ? `, ${inline(filename)}` : ""}`));
  return lines.length ? `Sources:\n\n${lines.join("\n")}` : "";
}

export function markdownOf({ title, messages }) {
  const blocks = messages.flatMap(({ role, parts }) => [`## ${role === "user" ? "You" : "Assistant"}`, ...parts.map(partOf), sourcesOf(parts)]);
  return `${[`# ${inline(title)}`, ...blocks].filter(Boolean).join("\n\n")}\n`;
}
