// A screen reader reads each text once, when it is set.
export function announce(text: string) {
  document.getElementById("announcement")!.textContent = text;
}
