// The message that the parts of a stream make, as the AI SDK has it and the server stores it.

import { callOf, isCall } from "./parts.js";

// `earlier`: the parts of a message that the response continues.
export const begin = (earlier) => ({ parts: structuredClone(earlier), metadata: undefined, status: undefined });

export function add(record, part) {
  const [kind, step] = part.type.split("-");
  if (part.type === "data-status") return void (record.status = part.data.text);
  if (part.type !== "start" && part.type !== "start-step") record.status = undefined;
  if (kind === "start") return;
  if (kind === "tool") addCall(record, part);
  else if (kind === "source" || kind === "file") record.parts.push(part);
  else if (kind === "data") addData(record, part);
  else if (step === "start") record.parts.push({ type: kind, text: "" });
  else if (step === "delta") record.parts.findLast(({ type }) => type === kind).text += part.delta;
  else if (part.type === "error") record.metadata = { incomplete: true, error: part.errorText };
  else if (part.type === "abort") record.metadata = { incomplete: true };
  else if (part.type === "finish") record.metadata = part.messageMetadata;
}

const STATES = {
  "tool-input-available": ({ input }) => ({ state: "input-available", input }),
  "tool-input-error": ({ input, errorText }) => ({ state: "output-error", rawInput: input, errorText }),
  "tool-output-available": ({ output }) => ({ state: "output-available", output }),
  "tool-output-error": ({ errorText }) => ({ state: "output-error", errorText }),
  "tool-output-denied": () => ({ state: "output-denied" }),
  "tool-approval-request": ({ approvalId }) => ({ state: "approval-requested", approval: { id: approvalId } }),
};

function addCall(record, part) {
  const call = callOf(record, part.toolCallId);
  if (part.type === "tool-input-start") {
    const begun = { type: `tool-${part.toolName}`, toolCallId: part.toolCallId, state: "input-streaming", inputText: "" };
    if (call) Object.assign(call, begun);
    else record.parts.push(begun);
  } else if (!call) return;
  else if (part.type === "tool-input-delta") call.inputText += part.inputTextDelta;
  else Object.assign(call, STATES[part.type]?.(part), part.providerExecuted ? { providerExecuted: true } : {});
}

// Later data with the same name and id replace the earlier ones.
function addData(record, part) {
  if (part.transient) return;
  const earlier = part.id && record.parts.find(({ type, id }) => type === part.type && id === part.id);
  if (earlier) earlier.data = part.data;
  else record.parts.push(part);
}

// What differs between two states of a message that have the same id.
export const signature = ({ id, parts, feedback }) =>
  JSON.stringify([id, parts.filter(isCall).map(({ state }) => state), feedback ?? null]);
