import { AssistantRuntimeProvider, ComposerPrimitive } from "@assistant-ui/react";
import { useCallback, useEffect, useRef, useState } from "react";
import * as api from "./api";
import { Composer } from "./Composer";
import { exportAs, type Format } from "./export";
import { Icon } from "./icons";
import { useConversation } from "./runtime";
import { Sidebar } from "./Sidebar";
import { Messages } from "./Thread";

const UNTITLED = "New conversation";
const tabs = new BroadcastChannel("conversations");
const idOfAddress = () => location.hash.slice(1) || api.newId();

export function App() {
  const [isOpen, setIsOpen] = useState(false);
  const [id, setId] = useState(idOfAddress);
  const [search, setSearch] = useState("");
  const [conversations, setConversations] = useState<api.Summary[]>([]);
  const [models, setModels] = useState<string[]>([]);
  const [model, setModel] = useState("");
  const [version, setVersion] = useState(0); // of the stored conversation that is shown
  const [stored, setStored] = useState<{ key: string; conversation: api.Stored }>();
  const [title, setTitle] = useState(UNTITLED);
  const [error, setError] = useState("");
  const asked = useRef(0); // lists of conversations
  const key = `${id}:${version}`;

  const fail = useCallback((failure: unknown) => setError(api.sentence(failure)), []);
  const reload = useCallback(() => setVersion((before) => before + 1), []);
  const refresh = useCallback(() => {
    const number = ++asked.current;
    api.list(search).then((found) => {
      if (number === asked.current) setConversations(found);
      setError("");
    }, fail);
  }, [search, fail]);

  useEffect(refresh, [refresh]);
  useEffect(() => {
    api.models().then(setModels, fail);
  }, [fail]);
  useEffect(() => {
    const found = conversations.find((conversation) => conversation.id === id);
    if (found || !search) setTitle(found?.title ?? UNTITLED);
  }, [conversations, id, search]);
  useEffect(() => {
    document.title = title;
  }, [title]);

  useEffect(() => {
    const follow = () => setId(idOfAddress());
    window.addEventListener("popstate", follow);
    return () => window.removeEventListener("popstate", follow);
  }, []);

  // Another tab has changed a conversation.
  useEffect(() => {
    tabs.onmessage = ({ data }) => {
      refresh();
      if (data === id) reload();
    };
  }, [id, refresh, reload]);

  useEffect(() => {
    const loading = new AbortController();
    // The server does not have a conversation without an address.
    const loaded = location.hash ? api.load(id, loading.signal) : Promise.resolve(api.EMPTY);
    loaded.then(
      (conversation) => setStored({ key, conversation }),
      (failure: unknown) => loading.signal.aborted || fail(failure),
    );
    return () => loading.abort();
  }, [id, key, fail]);

  const open = useCallback((next: string) => {
    history.pushState(null, "", next ? `#${next}` : location.pathname);
    setId(next || api.newId());
    if (!next) setSearch("");
    setIsOpen(false);
  }, []);

  // The address has no conversation before the first message.
  const changed = useCallback(
    (isOwn: boolean) => {
      if (!location.hash) history.replaceState(null, "", `#${id}`);
      if (isOwn) tabs.postMessage(id); // a tab that follows the response of another one tells nobody
      refresh();
    },
    [id, refresh],
  );

  useEffect(() => {
    function onKeyDown(event: KeyboardEvent) {
      const isWriting = (event.target as HTMLElement).closest("input, textarea, select, dialog");
      if (event.ctrlKey && event.shiftKey && event.key.toLowerCase() === "o") open("");
      else if (event.key === "/" && !isWriting) document.getElementById("prompt")?.focus();
      else return;
      event.preventDefault();
    }
    document.addEventListener("keydown", onKeyDown);
    return () => document.removeEventListener("keydown", onKeyDown);
  }, [open]);

  return (
    <>
      <a className="skip" href="#prompt" onClick={(event) => (event.preventDefault(), document.getElementById("prompt")?.focus())}>
        Skip to the message field
      </a>
      <Sidebar
        conversations={conversations}
        current={id}
        isOpen={isOpen}
        search={search}
        onSearch={setSearch}
        onOpen={open}
        onClose={() => setIsOpen(false)}
        onChange={refresh}
        onError={fail}
      />
      {isOpen && <div className="backdrop" onClick={() => setIsOpen(false)} />}
      <main inert={isOpen}>
        <header>
          <button id="menu" type="button" className="tool" aria-label="Show conversations" aria-expanded={isOpen} aria-controls="sidebar" onClick={() => setIsOpen(true)}>
            <Icon name="menu" />
          </button>
          <h1 dir="auto">{title}</h1>
          {models.length > 1 && (
            <select id="model" aria-label="Model" value={model} onChange={(event) => setModel(event.target.value)}>
              {models.map((name) => (
                <option key={name}>{name}</option>
              ))}
            </select>
          )}
          {title !== UNTITLED && <Export onExport={(format) => void exportAs(format, id, title).catch(fail)} />}
        </header>
        {stored?.key.startsWith(`${id}:`) ? (
          <Conversation key={stored.key} id={id} stored={stored.conversation} model={model} failure={error} onChange={changed} onReload={reload} />
        ) : (
          <div id="scroller">{error && <Notice text={error} />}</div>
        )}
      </main>
    </>
  );
}

const Export = ({ onExport }: { onExport: (format: Format) => void }) => (
  <>
    <button id="export" type="button" className="tool" popoverTarget="formats" aria-label="Export the conversation" title="Export the conversation">
      <Icon name="export" />
    </button>
    <div id="formats" popover="auto" role="group" aria-label="Export the conversation">
      <button type="button" popoverTarget="formats" onClick={() => onExport("Markdown")}>
        Markdown
      </button>
      <button type="button" popoverTarget="formats" onClick={() => onExport("JSON")}>
        JSON, with all versions
      </button>
    </div>
  </>
);

const Notice = ({ text, action, onAction }: { text: string; action?: string; onAction?: () => void }) => (
  <div className="notice" role="alert">
    <p>{text}</p>
    {action && (
      <button type="button" onClick={onAction}>
        {action}
      </button>
    )}
  </div>
);

type ConversationProps = { id: string; stored: api.Stored; model: string; failure: string; onChange: (isOwn: boolean) => void; onReload: () => void };

function Conversation({ failure, ...props }: ConversationProps) {
  const { runtime, error, isUnanswered, state, retry } = useConversation(props);
  const text = error && (error instanceof TypeError ? "The connection to the server was lost." : error.message);
  return (
    <AssistantRuntimeProvider runtime={runtime}>
      <ComposerPrimitive.AttachmentDropzone className="dropzone">
        <Messages state={state} />
        <div className="notices">
          {failure && <Notice text={failure} />}
          {isUnanswered ? (
            <Notice text={text ?? "There is no response."} action="Try again" onAction={retry} />
          ) : (
            text && <Notice text={text} action="Load again" onAction={props.onReload} />
          )}
        </div>
        <Composer id={props.id} />
      </ComposerPrimitive.AttachmentDropzone>
    </AssistantRuntimeProvider>
  );
}
