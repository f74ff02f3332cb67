// The stream of live documents: one request that is read as long as it lasts, and sent again when it ends.

import { request } from "./api.js";

const SOONEST_MS = 500;
const LATEST_MS = 10_000;
const SILENT_MS = 20_000;

// Calls `take` with each document, and `tell` with "live", or with why there is none.
export async function follow(take, tell) {
  let pause = SOONEST_MS;
  for (;;) {
    const controller = new AbortController();
    let timer = null;
    try {
      const response = await request("api/live", { signal: controller.signal });
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        clearTimeout(timer);
        timer = setTimeout(() => controller.abort(), SILENT_MS);
        const { value, done } = await reader.read();
        if (done) throw new Error("the stream ended");
        const events = (rest + value).split("\n\n");
        rest = events.pop();
        for (const event of events) {
          const data = event.split("\n").filter((line) => line.startsWith("data:")).map((line) => line.slice(5).trimStart()).join("\n");
          if (!data) continue;
          pause = SOONEST_MS;
          tell("live");
          take(JSON.parse(data));
        }
      }
    } catch (error) {
      tell(error.status === 503 ? error.message : "reconnecting");
    } finally {
      clearTimeout(timer);
      controller.abort();
    }
    await new Promise((resolve) => setTimeout(resolve, pause));
    pause = Math.min(pause * 2, LATEST_MS);
  }
}
