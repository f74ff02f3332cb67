// A conversation as a file.

import { load, type Stored, type StoredMessage } from "./api";

export type Format = "Markdown" | "JSON";

export async function exportAs(format: Format, id: string, title: string) {
  const stored = await load(id);
  const text = format === "JSON" ? JSON.stringify(stored, null, 2) : markdown(title, stored);
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: format === "JSON" ? "application/json" : "text/markdown" }));
  link.download = `${title.replace(/[^\p{L}\p{N}]+/gu, "-")}.${format === "JSON" ? "json" : "md"}`;
  link.click();
  URL.revokeObjectURL(link.href);
}

// The branch that is shown.
function markdown(title: string, { active_id, messages }: Stored): string {
  const byId = new Map(messages.map((message) => [message.id, message]));
  const branch: StoredMessage[] = [];
  for (let message = byId.get(active_id ?? ""); message; message = byId.get(message.parent_id ?? "")) branch.unshift(message);
  return [`# ${title}`, ...branch.map(({ role, parts }) => `## ${role === "user" ? "You" : "Assistant"}\n\n${parts.map(text).filter(Boolean).join("\n\n")}`), ""].join("\n\n");
}

function text(part: StoredMessage["parts"][number]): string {
  if (part.type === "text") return part.text;
  if (part.type === "file") return `[${part.filename ?? part.mediaType}](${part.url})`;
  return part.type === "source-url" ? `Source: [${part.title ?? part.url}](${part.url})` : "";
}
