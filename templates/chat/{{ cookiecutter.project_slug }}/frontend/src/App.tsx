import { useChat } from "@ai-sdk/react";
import { DefaultChatTransport, type UIMessage } from "ai";
import { type KeyboardEvent, useEffect, useRef, useState } from "react";
import Markdown, { type Components } from "react-markdown";
import remarkGfm from "remark-gfm";
import { begin, type Conversation, load, save } from "./conversation";

const API = "/api/chat";
const TITLE = {{ cookiecutter.project_name|tojson }};
const INTERRUPTED = "The response was interrupted."; // as the server says it; a TypeError is a connection that broke
const transport = new DefaultChatTransport({ api: API });

export function App() {
  const [conversation, setConversation] = useState(load);
  return (
    <>
      <header>
        <h1>{TITLE}</h1>
        <button type="button" onClick={() => setConversation(begin())}>
          New conversation
        </button>
      </header>
      <Chat key={conversation.id} {...conversation} />
    </>
  );
}

function Chat({ id, messages: saved }: Conversation) {
  const { messages, sendMessage, regenerate, stop, status, error } = useChat({
    id,
    messages: saved,
    transport,
    resume: true, // a page that is loaded during an answer follows it
  });
  const busy = status === "submitted" || status === "streaming";
  const last = messages.at(-1);

  // An answer that is being written is not saved, because a resumed one is replayed from its start.
  useEffect(() => {
    if (status !== "streaming") save({ id, messages });
  }, [id, messages, status]);

  // The model continues without a reader, so the server has to stop it, too.
  async function stopAnswer() {
    await fetch(`${API}/${encodeURIComponent(id)}/stop`, { method: "POST" });
    await stop();
  }

  return (
    <main>
      <Messages messages={messages} waiting={status === "submitted"} />
      {error && (
        <p className="error" role="alert">
          {error instanceof TypeError ? INTERRUPTED : error.message}
        </p>
      )}
      {!busy && last && (
        <div className="actions">
          <button type="button" onClick={() => void regenerate()}>
            Retry
          </button>
        </div>
      )}
      <Composer busy={busy} onSend={(text) => void sendMessage({ text })} onStop={() => void stopAnswer()} />
    </main>
  );
}

function Messages({ messages, waiting }: { messages: UIMessage[]; waiting: boolean }) {
  const end = useRef<HTMLDivElement>(null);
  useEffect(() => {
    end.current?.scrollIntoView({ block: "end" });
  }, [messages]);

  return (
    <section className="messages" aria-label="Messages" tabIndex={0}>
      {messages.length === 0 && <p className="welcome">Ask something to begin.</p>}
      {messages.map((message) => (
        <article key={message.id} className={message.role} aria-label={message.role === "user" ? "You" : "Assistant"}>
          {message.parts.map((part, index) => (
            <Part key={index} part={part} plain={message.role === "user"} />
          ))}
        </article>
      ))}
      {waiting && <p role="status">Waiting for the answer…</p>}
      <div ref={end} />
    </section>
  );
}

function Part({ part, plain }: { part: UIMessage["parts"][number]; plain: boolean }) {
  if (part.type === "text") return plain ? <p className="plain">{part.text}</p> : <Answer text={part.text} />;
  if (part.type === "reasoning") {
    return (
      <details>
        <summary>Reasoning</summary>
        <p className="plain">{part.text}</p>
      </details>
    );
  }
  return null;
}

// react-markdown renders no HTML of the model, and no links with other protocols than those of the web and of mail.
function Answer({ text }: { text: string }) {
  return (
    <Markdown remarkPlugins={[remarkGfm]} components={components}>
      {text}
    </Markdown>
  );
}

const components: Components = {
  pre: ({ node: _, ...properties }) => <pre tabIndex={0} {...properties} />, // it scrolls, so the keyboard must reach it
};

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
      className="composer"
      onSubmit={(event) => {
        event.preventDefault();
        send();
      }}
    >
      <label className="hidden" htmlFor="prompt">
        Message
      </label>
      <textarea
        id="prompt"
        rows={2}
        autoFocus
        placeholder="Write a message"
        value={text}
        onChange={(event) => setText(event.target.value)}
        onKeyDown={onKeyDown}
      />
      {busy ? (
        <button type="button" onClick={onStop}>
          Stop
        </button>
      ) : (
        <button type="submit" disabled={!text.trim()}>
          Send
        </button>
      )}
    </form>
  );
}
