// The SDK of OpenAI for Node.
import assert from "node:assert/strict";
import OpenAI from "openai";
import { hasRoute, name, refusals, run, untilRunning, untilStopped, url } from "./cases.mjs";

const sdk = (maxRetries = 0) => new OpenAI({ baseURL: `${url}/v1`, apiKey: "any", maxRetries });
const { chat, models, embeddings, responses } = sdk();
const said = (content) => [{ role: "user", content }];
const tools = [{ type: "function", function: { name: "look_up", parameters: { type: "object" } } }];

async function all(stream) {
  const items = [];
  for await (const item of stream) items.push(item);
  return items;
}

const text = (chunks) => chunks.map((chunk) => chunk.choices[0]?.delta.content ?? "").join("");

async function triedAgain(status) {
  const word = name();
  const messages = said(`/refuse ${status} ${word}`);
  const stream = await sdk(2).chat.completions.create({ model: "echo", messages, stream: true });
  assert.equal(text(await all(stream)), `${status} ${word}`);
  assert.equal(await refusals(word), 2);
}

await run({
  async models() {
    assert.deepEqual((await all(models.list())).map(({ id }) => id), ["echo", "agent", "lengths"]);
    assert.equal((await models.retrieve("echo")).id, "echo");
  },

  async completion() {
    const { choices, usage } = await chat.completions.create({ model: "echo", messages: said("hello world") });
    assert.equal(choices[0].message.content, "hello world");
    assert.equal(choices[0].finish_reason, "stop");
    assert.equal(usage.total_tokens, 4);
  },

  async streaming() {
    const chunks = await all(
      await chat.completions.create({ model: "echo", messages: said("hello ä world"), stream: true }),
    );
    assert.deepEqual(chunks.map((chunk) => chunk.choices[0].delta.content), ["", "hello", " ä", " world", undefined]);
    assert.equal(new Set(chunks.map(({ id, created, model }) => `${id} ${created} ${model}`)).size, 1);
  },

  async "usage of a stream"() {
    const body = { model: "echo", messages: said("hello world"), stream: true, stream_options: { include_usage: true } };
    const last = (await all(await chat.completions.create(body))).at(-1);
    assert.deepEqual([last.choices, last.usage.total_tokens], [[], 4]);
  },

  async tools() {
    const messages = said("/tool");
    const { choices } = await chat.completions.stream({ model: "echo", messages, tools }).finalChatCompletion();
    const [call] = choices[0].message.tool_calls;
    assert.equal(choices[0].finish_reason, "tool_calls");
    assert.deepEqual([call.function.name, call.function.arguments], ["look_up", '{"text": "hello"}']);
    messages.push(choices[0].message, { role: "tool", tool_call_id: call.id, content: "it rains" });
    const answer = await chat.completions.create({ model: "echo", messages, tools });
    assert.equal(answer.choices[0].message.content, "the tool returned it rains");
  },

  async "tools that the model runs"() {
    const body = { model: "agent", messages: said("hello"), tools };
    for (const { choices } of [await chat.completions.create(body), await chat.completions.stream(body).finalChatCompletion()]) {
      assert.equal(choices[0].message.tool_calls?.length ?? 0, 0);
      assert.deepEqual([choices[0].message.content, choices[0].finish_reason], ["I look.I found one.", "stop"]);
    }
  },

  async "structured output"() {
    const schema = { type: "object", properties: { name: { type: "string" } } };
    const response_format = { type: "json_schema", json_schema: { name: "city", schema, strict: true } };
    const body = { model: "echo", messages: said('{"name":"Oslo"}'), response_format };
    assert.deepEqual((await chat.completions.parse(body)).choices[0].message.parsed, { name: "Oslo" });
  },

  async "several choices"() {
    const whole = await chat.completions.create({ model: "echo", messages: said("a b"), n: 2 });
    const streamed = await chat.completions
      .stream({ model: "echo", messages: said("a b"), n: 2 })
      .finalChatCompletion();
    for (const { choices } of [whole, streamed])
      assert.deepEqual(choices.map(({ index, message }) => [index, message.content]), [[0, "a b"], [1, "a b"]]);
  },

  async embeddings() {
    for (const encoding_format of [undefined, "float"]) {
      const { data } = await embeddings.create({ model: "lengths", input: ["a", "abc"], encoding_format });
      assert.deepEqual(data.map(({ embedding }) => embedding), [[1, 0.5], [3, 0.5]]);
    }
  },

  async errors() {
    await assert.rejects(
      chat.completions.create({ model: "missing", messages: said("hello"), stream: true }),
      (error) => error instanceof OpenAI.NotFoundError && error.code === "model_not_found",
    );
    const stream = await chat.completions.create({ model: "echo", messages: said("word /break"), stream: true });
    await assert.rejects(all(stream), /asked to break/);
  },

  async "abort of a stream"() {
    const word = name();
    const stream = await chat.completions.create({ model: "echo", messages: said(`${word} /forever`), stream: true });
    for await (const chunk of stream) if (chunk.choices[0].delta.content) break;
    await untilStopped(word);
  },

  async "abort of a completion"() {
    const word = name();
    const controller = new AbortController();
    const body = { model: "echo", messages: said(`${word} /forever`) };
    const asking = chat.completions.create(body, { signal: controller.signal });
    const refused = assert.rejects(asking, OpenAI.APIUserAbortError);
    await untilRunning(word);
    controller.abort();
    await refused;
    await untilStopped(word);
  },

  "a 429 is tried again": () => triedAgain(429),
  "a 503 is tried again": () => triedAgain(503),

  async response() {
    await hasRoute("/v1/responses");
    const { output_text, status, usage } = await responses.create({ model: "echo", input: "hello world" });
    assert.deepEqual([output_text, status, usage.total_tokens], ["hello world", "completed", 4]);
  },

  async "stream of a response"() {
    await hasRoute("/v1/responses");
    const stream = responses.stream({ model: "echo", input: "hello world" });
    const events = await all(stream);
    assert.equal((await stream.finalResponse()).output_text, "hello world");
    assert.deepEqual([events[0].type, events.at(-1).type], ["response.created", "response.completed"]);
  },

  async "resume of a response"() {
    await hasRoute("/v1/responses/{response_id}");
    const input = [...Array(60).keys()].join(" ");
    const events = [];
    for await (const event of await responses.create({ model: "echo", input, stream: true, background: true })) {
      events.push(event);
      if (events.length === 12) break;
    }
    const options = { stream: true, starting_after: events.at(-1).sequence_number };
    events.push(...(await all(await responses.retrieve(events[0].response.id, options))));
    const first = events[0].sequence_number;
    assert.deepEqual(events.map((event) => event.sequence_number), events.map((_, index) => first + index));
    const deltas = events.filter(({ type }) => type === "response.output_text.delta");
    assert.equal(deltas.map(({ delta }) => delta).join(""), input);
  },

  async "cancel of a response"() {
    await hasRoute("/v1/responses/{response_id}/cancel");
    const word = name();
    const { id } = await responses.create({ model: "echo", input: `${word} /forever`, background: true });
    await untilRunning(word);
    assert.equal((await responses.cancel(id)).status, "cancelled");
    await untilStopped(word);
  },
});
