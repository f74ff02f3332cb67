// Reads a UI message stream: server-sent events whose data are JSON documents, and `[DONE]` at the end.

const SILENT_MS = 45_000; // the server sends a comment every 15 s

export class Refused extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

// The connection was lost, or the server is silent.
export class Interrupted extends Error {}

export async function* parts(response) {
  if (!response.ok) throw new Refused((await response.text()) || `The server answered ${response.status}.`, response.status);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  for (;;) {
    let chunk;
    const alarm = setTimeout(() => reader.cancel().catch(() => {}), SILENT_MS); // the read ends then
    try {
      chunk = await reader.read();
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Interrupted("The connection was lost.");
    } finally {
      clearTimeout(alarm);
    }
    if (chunk.done) throw new Interrupted("The connection was lost.");
    buffer += chunk.value;
    const blocks = buffer.split("\n\n");
    buffer = blocks.pop();
    for (const block of blocks) {
      const data = block.split("\n").filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trimStart()).join("\n");
      if (data === "[DONE]") return;
      if (data) yield JSON.parse(data);
    }
  }
}
