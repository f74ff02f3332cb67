// The files of the next message: chosen, pasted or dropped. Each is uploaded at once.

import * as api from "./api.js";
import { $, announce, button, element, icon } from "./dom.js";
import { refuse } from "./notices.js";
import { isImage, sizeOf } from "./parts.js";

const MAX_FILES = 10; // of a message

let attached = []; // { name, type, size, progress, error, url, sent, upload }
let changed = () => {};

export const list = () => attached;

// The parts of the files that the server has.
export const uploaded = () =>
  attached.filter(({ url }) => url).map(({ name, type, url, sent }) => ({ type: "file", mediaType: type, filename: name, url, ...(sent && { sent }) }));

// `parts`: of a draft, or of a message that is edited.
export function fill(parts = []) {
  for (const { upload } of attached) upload?.abort();
  attached = parts.map(({ filename, mediaType, url, sent }) => ({ name: filename ?? "File", type: mediaType, url, sent }));
  show();
}

export function problem() {
  if (attached.some(({ upload }) => upload)) return "Wait until the files are uploaded.";
  return attached.some(({ error }) => error) ? "Remove the file that was not uploaded." : undefined;
}

export function attach(chosen) {
  const room = MAX_FILES - attached.length;
  if (chosen.length > room) refuse(`A message can have ${MAX_FILES} files.`);
  for (const file of [...chosen].slice(0, room)) begin(file);
}

async function begin(file) {
  const entry = { name: file.name || "File", type: file.type, size: file.size, progress: 0 };
  attached.push(entry);
  entry.upload = api.upload(file, (progress) => {
    entry.progress = progress;
    entry.bar?.setAttribute("value", progress);
  });
  show();
  try {
    const { name, media_type: type, size, url } = await entry.upload.done;
    Object.assign(entry, { name, type, size, url });
    announce(`${name} is attached.`);
  } catch (error) {
    entry.error = error.message;
    if (attached.includes(entry)) announce(`${entry.name}: ${error.message}`);
  }
  entry.upload = undefined;
  if (!attached.includes(entry)) return;
  show();
  changed();
}

function remove(entry) {
  const index = attached.indexOf(entry);
  entry.upload?.abort();
  attached.splice(index, 1);
  if (entry.url && !entry.sent) api.removeFile(entry.url).catch(() => {}); // a message that was sent still has it
  show();
  changed();
  announce(`${entry.name} is removed.`);
  ($("tray").querySelectorAll("button")[Math.min(index, attached.length - 1)] ?? $("prompt")).focus();
}

function show() {
  $("tray").replaceChildren(...attached.map(item));
  $("tray").hidden = !attached.length;
}

function item(entry) {
  const { name, type, size, url, error, progress } = entry;
  const made = element("li", { className: `attached${error ? " failed" : ""}` }, thumbnail(url, type));
  const words = element("span", { className: "words" }, element("span", { className: "name", textContent: name, title: name, dir: "auto" }));
  if (error) words.append(element("span", { className: "detail", textContent: error }));
  else if (!url) words.append((entry.bar = element("progress", { value: progress, max: 1, aria: { label: `Upload of ${name}` } })));
  else if (size !== undefined) words.append(element("span", { className: "detail", textContent: sizeOf(size) }));
  made.append(words, button(`Remove ${name}`, "close", () => remove(entry)));
  return made;
}

function thumbnail(url, type) {
  if (url && isImage(type)) return element("img", { src: api.address(url), alt: "" });
  return element("span", { className: "kind" }, icon("file"));
}

// The files of a message that is shown: images, and links to everything else.
export function view({ url, mediaType, filename }, name = filename ?? "File") {
  const address = api.address(url);
  const isShown = isImage(mediaType) && (address.startsWith("data:") || api.isOwn(address));
  const link = element("a", { className: isShown ? "image" : "card", href: address });
  if (isShown) link.append(element("img", { src: address, alt: filename ?? "Image", loading: "lazy" }));
  else link.append(icon("file"), element("span", { className: "name", textContent: name, dir: "auto" }));
  if (isShown && !address.startsWith("data:")) Object.assign(link, { target: "_blank", rel: "noopener" });
  else link.download = filename ?? `file.${mediaType.split(/[/+;]/)[1] ?? "bin"}`;
  return link;
}

const hasFiles = ({ dataTransfer }) => dataTransfer?.types.includes("Files");

// `onChange`: the files of the next message have changed.
export async function start(onChange) {
  changed = onChange;
  if (!(await api.hasFiles())) return;
  $("attach").hidden = false;
  $("attach").addEventListener("click", () => $("files").click());
  $("files").addEventListener("change", () => {
    attach($("files").files);
    $("files").value = "";
    $("prompt").focus();
  });
  $("prompt").addEventListener("paste", (event) => {
    const { files } = event.clipboardData;
    if (!files.length || event.clipboardData.getData("text/plain")) return; // a text that has a picture of itself
    event.preventDefault();
    attach(files);
  });
  for (const type of ["dragenter", "dragover"]) {
    document.addEventListener(type, (event) => {
      if (!hasFiles(event)) return;
      event.preventDefault();
      $("main").classList.add("dropping");
    });
  }
  document.addEventListener("dragleave", ({ relatedTarget }) => relatedTarget || $("main").classList.remove("dropping"));
  document.addEventListener("drop", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    $("main").classList.remove("dropping");
    attach(event.dataTransfer.files);
    $("prompt").focus();
  });
}
