// Runs the cases of one client against a server, one after another, and prints which of them passed.
// node MODULE URL RELAY: RELAY is the address of a relay to the same server that cuts each connection after some bytes.

const PATIENCE_MS = 30_000;
const STOP_MS = 2_000; // within this time after a client has gone, its model must have stopped

export const [, , url, relay] = process.argv;

export class NotServed extends Error {}

export async function run(cases) {
  process.on("unhandledRejection", () => {}); // of a case that has failed before it waited for all that it began
  const verdicts = {};
  for (const [name, check] of Object.entries(cases)) verdicts[name] = await verdict(check);
  console.log(JSON.stringify(verdicts));
  process.exit(0); // connections that a client keeps open
}

async function verdict(check) {
  let timer;
  const limit = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`it took more than ${PATIENCE_MS} ms`)), PATIENCE_MS);
  });
  try {
    await Promise.race([check(), limit]);
    return "passed";
  } catch (error) {
    return error instanceof NotServed ? "not served" : String(error).slice(0, 300);
  } finally {
    clearTimeout(timer);
  }
}

export async function hasRoute(path) {
  const { paths } = await (await fetch(`${url}/openapi.json`)).json();
  if (!(path in paths)) throw new NotServed();
}

export const name = () => `w${Math.random().toString(16).slice(2, 10)}`;

const number = async (path) => (await fetch(url + path)).json();

export const refusals = (word) => number(`/refused?name=${word}`);

export const untilRunning = (word) => until(word, (count) => count > 0, PATIENCE_MS);

export const untilStopped = (word) => until(word, (count) => count === 0, STOP_MS);

async function until(word, condition, limit) {
  const deadline = performance.now() + limit;
  while (!condition(await number(`/running?word=${word}`))) {
    if (performance.now() > deadline) throw new Error(`the responses to ${word} did not change within ${limit} ms`);
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}
