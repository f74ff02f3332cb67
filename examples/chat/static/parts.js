// What the parts of a message say.

export const isCall = ({ type }) => type === "dynamic-tool" || type.startsWith("tool-");
export const isSource = ({ type }) => type === "source-url" || type === "source-document";
export const nameOf = (call) => call.toolName ?? call.type.slice("tool-".length);
export const callOf = ({ parts }, toolCallId) => parts.findLast((part) => part.toolCallId === toolCallId);
export const filesOf = ({ parts }) => parts.filter(({ type }) => type === "file");

export const textOf = ({ parts }, type = "text") =>
  parts.filter((part) => part.type === type).map((part) => part.text).join(type === "text" ? "\n\n" : "");

// Approvals: the model has asked, and the user has answered but the result of the tool is not there.
export const isRequested = ({ state }) => state === "approval-requested";
export const isAnswered = ({ state }) => state === "approval-responded";

// Whether the model may go on with the next question.
export const isDone = (message) => message?.role === "assistant" && !message.metadata?.incomplete && !message.parts.some(isRequested);

export const isImage = (mediaType) => /^image\/(avif|gif|jpeg|png|webp)$/.test(mediaType);

// An address that a link may have: of a server, and not a script or a document in the address.
export const isPage = (url) => URL.canParse(url, document.baseURI) && new URL(url, document.baseURI).origin !== "null";

export function sizeOf(bytes) {
  if (bytes < 1000) return `${bytes} bytes`;
  return bytes < 1_000_000 ? `${Math.round(bytes / 1000)} kB` : `${(bytes / 1_000_000).toFixed(1)} MB`;
}
