import { useState } from "react";
import { announce } from "./announce";
import { Icon } from "./icons";

// Browsers have `navigator.clipboard` only over HTTPS and on localhost.
async function copy(text: string): Promise<boolean> {
  if (navigator.clipboard) {
    return navigator.clipboard.writeText(text).then(
      () => true,
      () => false,
    );
  }
  const focused = document.activeElement;
  const field = document.createElement("textarea");
  field.className = "hidden";
  field.value = text;
  document.body.append(field);
  field.select();
  const copied = document.execCommand("copy");
  field.remove();
  if (focused instanceof HTMLElement) focused.focus({ preventScroll: true });
  return copied;
}

export function CopyButton({ text, label }: { text: string; label: string }) {
  const [isCopied, setIsCopied] = useState(false);

  async function onClick() {
    if (!(await copy(text))) return announce("Copying failed.");
    announce("Copied.");
    setIsCopied(true);
    setTimeout(() => setIsCopied(false), 1500);
  }

  return (
    <button type="button" className="tool" aria-label={label} title={label} onClick={() => void onClick()}>
      <Icon name={isCopied ? "check" : "copy"} />
    </button>
  );
}
