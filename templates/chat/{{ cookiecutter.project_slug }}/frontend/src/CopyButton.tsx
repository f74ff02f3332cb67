import { Button } from "@mantine/core";
import { useState } from "react";

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
  const [state, setState] = useState<string>();

  async function onClick() {
    setState((await copy(text)) ? "Copied" : "Copying failed");
    setTimeout(() => setState(undefined), 1500);
  }

  return (
    <Button variant="subtle" size="compact-xs" className="copy" onClick={() => void onClick()}>
      <span aria-live="polite">{state ?? label}</span>
    </Button>
  );
}
