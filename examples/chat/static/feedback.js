// What the user thinks of a response.

import { $, ask, button, element } from "./dom.js";

const LABELS = { good: "Good response", bad: "Bad response" };

// The buttons of a response. `message` returns it, and `rate(message, feedback)` stores the feedback; null: none.
export function buttons(message, rate) {
  const { feedback } = message();
  const made = Object.entries(LABELS).map(([rating, label]) => {
    const isSet = feedback?.rating === rating;
    const choice = button(label, rating, () => rate(message(), isSet ? null : { rating, comment: feedback?.comment ?? "" }), { className: isSet ? "set" : "" });
    choice.setAttribute("aria-pressed", String(isSet));
    choice.dataset.action = rating;
    return choice;
  });
  if (!feedback) return made;
  const comment = element("button", { type: "button", className: "plain", textContent: feedback.comment ? "Edit your comment" : "Add a comment", title: feedback.comment, onclick: () => write(message(), rate) });
  comment.dataset.action = "comment";
  return [...made, comment];
}

async function write(message, rate) {
  $("comment").value = message.feedback.comment;
  if ((await ask($("commenting"))) === "ok") rate(message, { ...message.feedback, comment: $("comment").value.trim() });
}
