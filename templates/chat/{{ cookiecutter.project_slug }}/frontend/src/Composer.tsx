import { AuiIf, type CompleteAttachment, ComposerPrimitive, ThreadPrimitive, useAui, useAuiEvent, useAuiState } from "@assistant-ui/react";
import { type KeyboardEvent, useEffect, useRef, useState } from "react";
import { announce } from "./announce";
import { Added } from "./attachments";
import { Icon } from "./icons";

const drafts = new Map<string, string>(); // texts that are not sent, by the ids of their conversations

export function Composer({ id }: { id: string }) {
  const aui = useAui();
  const text = useAuiState((s) => s.composer.text);
  const isRestored = useRef(false);
  const isRunning = useAuiState((s) => s.thread.isRunning);
  const isAsked = useAuiState((s) => s.thread.messages.at(-1)?.status?.type === "requires-action");
  const [queue, setQueue] = useState<{ text: string; attachments: CompleteAttachment[] }[]>([]);
  const isSending = useRef(false);
  useAuiEvent("composer.attachmentAddError", ({ message }) => announce(message));

  // A conversation that is loaded again, or opened again, has its draft.
  useEffect(() => {
    if (isRestored.current) drafts.set(id, text);
    else aui.composer.setText(drafts.get(id) ?? "");
    isRestored.current = true;
  }, [aui, id, text]);

  // Messages that were written during a response follow it.
  useEffect(() => {
    if (isRunning) isSending.current = false;
    if (isRunning || isAsked || isSending.current || !queue.length) return;
    isSending.current = true;
    const { text, attachments } = queue[0]!;
    aui.thread.append({ role: "user", content: [{ type: "text", text }], attachments });
    setQueue(queue.slice(1));
  }, [aui, isRunning, isAsked, queue]);

  function onKeyDown(event: KeyboardEvent) {
    if (event.key !== "Enter" || event.shiftKey || event.nativeEvent.isComposing || !isRunning) return;
    event.preventDefault();
    const { text, attachments } = aui.composer.getState();
    const uploaded = attachments.flatMap((attachment): CompleteAttachment[] =>
      attachment.content?.length ? [{ ...attachment, content: attachment.content, status: { type: "complete" } }] : [],
    );
    if (!text.trim() || uploaded.length < attachments.length) return;
    setQueue([...queue, { text: text.trim(), attachments: uploaded }]);
    void aui.composer.reset();
    announce("The message is sent after the response.");
  }

  return (
    <div id="composer-area">
      <ThreadPrimitive.ScrollToBottom className="latest">
        <Icon name="down" />
        Latest
      </ThreadPrimitive.ScrollToBottom>
      {queue.length > 0 && (
        <section className="queue" aria-label="Queued messages">
          <p>They are sent after the response.</p>
          <ul>
            {queue.map(({ text, attachments }, index) => (
              <li key={index}>
                <span dir="auto">{[...attachments.map(({ name }) => name), text].join(", ")}</span>
                <button type="button" className="tool" aria-label={`Remove “${text}” from the queue`} onClick={() => setQueue(queue.toSpliced(index, 1))}>
                  <Icon name="close" />
                </button>
              </li>
            ))}
          </ul>
        </section>
      )}
      <ComposerPrimitive.Root id="composer">
        <Tray />
        <ComposerPrimitive.AddAttachment id="attach" className="tool" aria-label="Attach files" title="Attach files">
          <Icon name="attach" />
        </ComposerPrimitive.AddAttachment>
        <ComposerPrimitive.Input id="prompt" aria-label="Message" placeholder="Write a message" dir="auto" rows={1} maxRows={12} autoFocus autoComplete="off" aria-describedby="hint" onKeyDown={onKeyDown} />
        {isRunning ? (
          <ComposerPrimitive.Cancel id="stop" className="round" aria-label="Stop" aria-keyshortcuts="Escape">
            <Icon name="stop" />
          </ComposerPrimitive.Cancel>
        ) : (
          <ComposerPrimitive.Send className="round" aria-label="Send">
            <Icon name="send" />
          </ComposerPrimitive.Send>
        )}
      </ComposerPrimitive.Root>
      <p id="hint">
        <kbd>Enter</kbd> sends, or queues during a response. <kbd>Esc</kbd> stops.
      </p>
    </div>
  );
}

const ADDED = { Attachment: Added };

// The files of the message that is written.
export const Tray = () => (
  <AuiIf condition={(s) => s.composer.attachments.length > 0}>
    <ul className="tray" aria-label="Files of the message">
      <ComposerPrimitive.Attachments components={ADDED} />
    </ul>
  </AuiIf>
);
