// The package `eventsource`, an `EventSource` as browsers have it, on a resumable route.
import assert from "node:assert/strict";
import { EventSource } from "eventsource";
import { relay, run, url } from "./cases.mjs";

const LAST = 100;

// All events of the route, and how many connections they took; the last one has nothing to say.
function follow(address) {
  const numbers = [];
  let connections = 0;
  return new Promise((resolve, reject) => {
    const source = new EventSource(`${address}/count?to=${LAST}`);
    source.onopen = () => connections++;
    source.onmessage = ({ data }) => numbers.push(Number(data));
    source.onerror = ({ code }) => {
      if (source.readyState !== EventSource.CLOSED) return;
      if (code === 204) resolve({ numbers, connections });
      else reject(new Error(`the source was closed with the status ${code}`));
    };
  });
}

const counted = [...Array(LAST).keys()];

await run({
  async "events, and no connection after the last"() {
    assert.deepEqual(await follow(url), { numbers: counted, connections: 1 });
  },

  async reconnect() {
    const { numbers, connections } = await follow(relay);
    assert.ok(connections > 2, "the relay has cut no connection");
    assert.deepEqual(numbers, counted);
  },
});
