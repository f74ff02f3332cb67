// The question of a model whether it may run a tool.

import { announce, element } from "./dom.js";
import { codeBlock } from "./markdown.js";
import { isRequested, nameOf } from "./parts.js";

const MAX_REASON = 1000; // characters

export const Approval = {
  name: "approval",
  make(part, { answer }) {
    const name = nameOf(part);
    const id = `reason-${part.toolCallId}`;
    const reason = element("input", { id, type: "text", dir: "auto", maxLength: MAX_REASON, autocomplete: "off" });
    const deny = element("button", { type: "button", className: "deny", textContent: "Deny", onclick: () => answer(part.toolCallId, false, reason.value.trim()) });
    const form = element("form", { className: "approval", aria: { label: `Approval of ${name}` } },
      element("p", {}, "May the assistant run ", element("strong", { className: "name", textContent: name }), "?"),
      codeBlock(JSON.stringify(part.input ?? {}, null, 2), "json", `Input of ${name}`),
      element("label", { htmlFor: id, textContent: "Reason, if you deny it (optional)" }), reason,
      element("div", { className: "choice" }, deny, element("button", { type: "submit", className: "primary", textContent: "Approve" })));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (document.activeElement === reason) return; // Enter in the reason neither approves nor denies
      answer(part.toolCallId, true);
    });
    return form;
  },
};

export function announceRequests({ parts }) {
  const names = parts.filter(isRequested).map(nameOf);
  if (names.length) announce(`The assistant asks whether it may run ${names.join(", ")}.`);
}

// The parts of a message after the user has answered one request.
export const answered = (parts, toolCallId, approved, reason) =>
  parts.map((part) => {
    if (part.toolCallId !== toolCallId || !isRequested(part)) return part;
    return { ...part, state: "approval-responded", approval: { ...part.approval, approved, ...(reason && { reason }) } };
  });
