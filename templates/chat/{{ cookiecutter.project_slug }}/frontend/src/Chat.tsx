import { useChat } from "@ai-sdk/react";
import { Alert, Button, Code, Group, Loader, Text, Textarea } from "@mantine/core";
import { DefaultChatTransport, getToolName, isToolUIPart } from "ai";
import { type KeyboardEvent, useEffect, useRef, useState } from "react";
import { CopyButton } from "./CopyButton";
import type { Message } from "./conversations";
import { Markdown } from "./Markdown";

const API = "/api/chat";
const INTERRUPTED = "The response was interrupted."; // as the server says it; a TypeError is a connection that broke
const NEAR_END = 80; // pixels

// The server has the earlier messages. A message with a known id takes its place, and those after it are removed.
const transport = new DefaultChatTransport<Message>({
  api: API,
  prepareSendMessagesRequest: ({ id, messages, trigger }) => ({ body: { id, trigger, message: messages.at(-1) } }),
});

type ChatProps = { id: string; messages: Message[]; onChange: () => void };

export function Chat({ id, messages: stored, onChange }: ChatProps) {
  const { messages, sendMessage, regenerate, stop, status, error } = useChat<Message>({
    id,
    messages: stored,
    transport,
    resume: true, // a page that is loaded during a response follows it
    throttle: 50,
    onFinish: onChange,
  });
  const busy = status === "submitted" || status === "streaming";
  const last = messages.at(-1);

  useEffect(() => {
    if (status === "streaming") onChange();
  }, [status, onChange]);

  // The model continues without a reader, so the server has to stop it, too.
  async function stopResponse() {
    const headers = { "content-type": "application/json" };
    try {
      await fetch(`${API}/${encodeURIComponent(id)}/stop`, { method: "POST", headers, body: "{}" });
    } finally {
      await stop();
    }
  }

  return (
    <div className="chat">
      <Messages messages={messages} busy={busy} />
      <div className="column">
        {error && (
          <Alert color="red" role="alert">
            {error instanceof TypeError ? INTERRUPTED : error.message}
          </Alert>
        )}
        {!busy && last && (
          <Button variant="subtle" size="compact-sm" onClick={() => void regenerate()}>
            Try again
          </Button>
        )}
        <Composer busy={busy} onSend={(text) => void sendMessage({ text })} onStop={() => void stopResponse()} />
      </div>
    </div>
  );
}

function Messages({ messages, busy }: { messages: Message[]; busy: boolean }) {
  const box = useRef<HTMLElement>(null);
  const atEnd = useRef(true);
  useEffect(() => {
    if (atEnd.current) box.current?.scrollTo(0, box.current.scrollHeight);
  }, [messages]);

  function onScroll() {
    const { scrollHeight, scrollTop, clientHeight } = box.current!;
    atEnd.current = scrollHeight - scrollTop - clientHeight < NEAR_END;
  }

  return (
    <section className="messages" aria-label="Messages" tabIndex={0} ref={box} onScroll={onScroll}>
      <div className="column">
        {messages.length === 0 && <Text className="welcome">Ask something to begin.</Text>}
        {messages.map((message, index) => (
          <View key={message.id} message={message} busy={busy && index === messages.length - 1} />
        ))}
        {busy && messages.at(-1)?.role === "user" && <Loader type="dots" aria-label="Waiting for the response" role="img" />}
      </div>
    </section>
  );
}

const textOf = ({ parts }: Message) => parts.map((part) => (part.type === "text" ? part.text : "")).join("");

function View({ message, busy }: { message: Message; busy: boolean }) {
  const own = message.role === "user";
  const { incomplete, error } = message.metadata ?? {};
  return (
    <article className={message.role} aria-label={own ? "You" : "Assistant"}>
      {message.parts.map((part, index) => (
        <Part key={index} part={part} plain={own} />
      ))}
      {incomplete && !busy && <Alert color="yellow">{error ?? "This response was stopped."}</Alert>}
      {!busy && textOf(message) && <CopyButton text={textOf(message)} label="Copy" />}
    </article>
  );
}

function Part({ part, plain }: { part: Message["parts"][number]; plain: boolean }) {
  if (isToolUIPart(part)) {
    return (
      <details>
        <summary>
          Tool <Code>{getToolName(part)}</Code>
        </summary>
        <Value title="Input" value={part.input} />
        <Value title="Output" value={part.output} />
        <Value title="Error" value={part.errorText} />
      </details>
    );
  }
  if (part.type === "reasoning") {
    return (
      <details>
        <summary>Reasoning</summary>
        <p className="plain" dir="auto">
          {part.text}
        </p>
      </details>
    );
  }
  if (part.type !== "text") return null;
  if (!plain) return <Markdown text={part.text} />;
  return (
    <div className="plain" dir="auto">
      {part.text}
    </div>
  );
}

function Value({ title, value }: { title: string; value: unknown }) {
  if (value === undefined) return null;
  return (
    <>
      <Text size="sm">{title}</Text>
      <Code block tabIndex={0}>
        {typeof value === "string" ? value : JSON.stringify(value, null, 2)}
      </Code>
    </>
  );
}

type ComposerProps = { busy: boolean; onSend: (text: string) => void; onStop: () => void };

function Composer({ busy, onSend, onStop }: ComposerProps) {
  const [text, setText] = useState("");

  function send() {
    if (busy || !text.trim()) return;
    onSend(text.trim());
    setText("");
  }

  function onKeyDown(event: KeyboardEvent) {
    if (event.key === "Enter" && !event.shiftKey && !event.nativeEvent.isComposing) {
      event.preventDefault();
      send();
    }
    if (event.key === "Escape" && busy) onStop();
  }

  return (
    <form
      onSubmit={(event) => {
        event.preventDefault();
        send();
      }}
    >
      <Group align="end" wrap="nowrap" gap="xs" pb="md">
        <Textarea
          className="prompt"
          aria-label="Message"
          placeholder="Write a message"
          dir="auto"
          autosize
          minRows={1}
          maxRows={10}
          autoFocus
          value={text}
          onChange={(event) => setText(event.currentTarget.value)}
          onKeyDown={onKeyDown}
        />
        {busy ? (
          <Button variant="default" onClick={onStop}>
            Stop
          </Button>
        ) : (
          <Button type="submit">Send</Button>
        )}
      </Group>
    </form>
  );
}
