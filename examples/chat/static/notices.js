// What is shown beside the title: errors of small requests, and what the page does.

import { $, announce } from "./dom.js";

export function state(text = "", isError = false) {
  $("state").hidden = !text;
  $("state").textContent = text;
  $("state").classList.toggle("error", isError);
}

export const isError = () => $("state").classList.contains("error");

// A sentence that says why something was not done.
export function refuse(text) {
  state(text, true);
  announce(text);
}

// Returns undefined if a request fails, and shows why.
export async function attempt(call) {
  try {
    const result = await call();
    if (isError()) state();
    return result;
  } catch (error) {
    if (error.name !== "AbortError") refuse(error instanceof TypeError ? "The server cannot be reached." : error.message);
    return undefined;
  }
}
