// The keys of the page.

import { $ } from "./dom.js";

// `actions`: functions escape(), begin(), move(step), search(), and editLast(), which returns whether it does something.
export function start({ escape, begin, move, search, editLast }) {
  const showHelp = () => $("shortcuts").showModal();
  document.addEventListener("keydown", (event) => {
    if (document.querySelector("dialog[open], :popover-open")) return;
    const typing = event.target.matches?.("input, textarea, select");
    const mod = event.ctrlKey || event.metaKey;
    const isEmptyPrompt = event.target === $("prompt") && !$("prompt").value;
    const shortcuts = {
      Escape: () => !event.isComposing && (() => escape(event.target)),
      "/": () => !typing && !mod && (() => $("prompt").focus()),
      "?": () => !typing && !mod && showHelp,
      O: () => mod && event.shiftKey && begin,
      K: () => mod && !event.shiftKey && search,
      ArrowUp: () => (event.altKey ? () => move(-1) : isEmptyPrompt && editLast),
      ArrowDown: () => event.altKey && (() => move(1)),
    };
    const action = shortcuts[event.key.length === 1 ? event.key.toUpperCase() : event.key]?.();
    if (action && action() !== false) event.preventDefault();
  });
  $("help").addEventListener("click", showHelp);
}
