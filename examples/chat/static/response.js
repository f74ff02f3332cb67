// Receives a response to its end, through lost connections.

import * as api from "./api.js";
import { add, begin } from "./record.js";
import { Interrupted, parts } from "./stream.js";

const RECONNECT_MS = 60_000; // how long a lost connection is tried again without a new part
const PAUSE_MS = 250; // before the second attempt; each pause is twice as long as the one before
const MAX_PAUSE_MS = 4000;
const UNAVAILABLE = [502, 503, 504]; // of a proxy that finds no replica

// Returns "ended"; "none": no response is active; or "left": `signal` has ended the reading. `request` sends the question;
// without it, the response that is active is followed. Callbacks: onStart(), onChange(part), onId(id), onReconnect().
export async function receive(message, id, request, signal, callbacks) {
  let following = request === undefined;
  const earlier = message.parts; // of a message that is continued
  let furthest = 0; // the most parts that arrived in one attempt, because each replays the response from its start
  let since; // when the connection was lost
  for (let pause = PAUSE_MS; ; pause = Math.min(2 * pause, MAX_PAUSE_MS)) {
    let arrived = 0;
    try {
      const response = await (following ? api.follow(id, signal) : request(signal));
      if (response.status === 204) return "none";
      await take(message, earlier, response, callbacks, () => ++arrived >= furthest);
      return "ended";
    } catch (error) {
      if (signal.aborted) return "left";
      const isLost = error instanceof Interrupted || error instanceof TypeError || (following && UNAVAILABLE.includes(error.status));
      if (arrived > furthest) [furthest, since, pause] = [arrived, undefined, PAUSE_MS];
      since ??= Date.now();
      if (!isLost || Date.now() - since >= RECONNECT_MS) {
        message.metadata = isLost ? { incomplete: true, disconnected: true } : { incomplete: true, error: error.message, status: error.status };
        return "ended";
      }
      callbacks.onReconnect();
      following = true;
      await new Promise((resolve) => setTimeout(resolve, pause * (0.5 + Math.random() / 2)));
      if (signal.aborted) return "left";
    }
  }
}

// Read one attempt. The message is shown as it was until `isNews` says that the attempt has come as far.
async function take(message, earlier, response, { onStart, onChange, onId }, isNews) {
  const record = begin(earlier);
  let first = true;
  for await (const part of parts(response)) {
    const news = isNews();
    if (first) onStart();
    first = false;
    if (part.type === "start") onId(part.messageId);
    add(record, part);
    if (!news) continue;
    Object.assign(message, record);
    onChange(part);
  }
  Object.assign(message, record);
}
