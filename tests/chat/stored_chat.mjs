// Sends chats with the AI SDK, and prints the messages that it shows and those that the server has stored.
// node stored_chat.mjs URL
import { DefaultChatTransport, readUIMessageStream, validateUIMessages } from "ai";

const url = process.argv[2];
const transport = new DefaultChatTransport({ api: `${url}/api/chat` });
const seen = {};

for (const model of ["text", "agent", "researcher", "broken"]) {
  const question = { id: "question", role: "user", parts: [{ type: "text", text: model }] };
  const options = { chatId: model, messages: [question], trigger: "submit-message", body: { model } };
  const stream = await transport.sendMessages(options);
  let shown;
  for await (const state of readUIMessageStream({ stream, onError: () => {} })) shown = state;
  const { messages } = await (await fetch(`${url}/api/conversations/${model}`)).json();
  await validateUIMessages({ messages });
  seen[model] = { shown: [question, shown], stored: messages };
}
console.log(JSON.stringify(seen));
