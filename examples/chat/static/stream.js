// Reads a UI message stream: server-sent events whose data are JSON documents, and `[DONE]` at the end.

export class Refused extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

export class Interrupted extends Error {}

export async function* parts(response) {
  if (!response.ok) throw new Refused((await response.text()) || `The server answered ${response.status}.`, response.status);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  for (;;) {
    let chunk;
    try {
      chunk = await reader.read();
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Interrupted("The connection was lost.");
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
