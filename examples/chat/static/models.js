// The choice between the models of the server. It is hidden if there is one only.

import * as api from "./api.js";
import { $, element } from "./dom.js";

const KEY = "model";
let names = [];

export async function start() {
  names = await api.models();
  $("model").replaceChildren(...names.map((name) => element("option", { value: name, textContent: name })));
  $("model").hidden = names.length < 2;
  choose(localStorage.getItem(KEY));
  $("model").addEventListener("change", () => localStorage.setItem(KEY, $("model").value));
}

function choose(name) {
  if (names.includes(name)) $("model").value = name;
}

// Show the model that wrote the last response.
export const showOf = (messages) => choose(messages.findLast(({ model }) => model)?.model);

// The default model of the server if there is no choice.
export const chosen = () => ($("model").hidden ? undefined : $("model").value);
