// The messages of a conversation.

import {
  ActionBarPrimitive,
  AuiIf,
  BranchPickerPrimitive,
  ComposerPrimitive,
  type FileMessagePartProps,
  MessagePrimitive,
  type ReasoningMessagePartProps,
  type TextMessagePartProps,
  ThreadPrimitive,
  useAui,
  useAuiState,
} from "@assistant-ui/react";
import { lazy, Suspense, useEffect, useRef, useState } from "react";
import { announce } from "./announce";
import type { Metadata } from "./api";
import { File, Sent } from "./attachments";
import { Call } from "./Call";
import { Tray } from "./Composer";
import { CopyButton } from "./copy";
import { Dialog } from "./Dialog";
import icon from "./icon.svg";
import { Icon } from "./icons";

export function Messages({ state }: { state: string }) {
  const isWaiting = useAuiState((s) => s.thread.isRunning && !s.thread.messages.at(-1)?.content.some((part) => "text" in part && part.text));
  return (
    <ThreadPrimitive.Viewport id="scroller" role="region" aria-label="Messages" tabIndex={0}>
      <div id="messages">
        <AuiIf condition={(s) => s.thread.isEmpty}>
          <section className="welcome">
            <img src={icon} alt="" />
            <h2>What would you like to know?</h2>
            <p>Answers survive a reload and a lost connection.</p>
          </section>
        </AuiIf>
        <ThreadPrimitive.Messages components={MESSAGES} />
        {isWaiting && <p className="waiting">{state || "Waiting for the assistant"}</p>}
      </div>
      <Speech />
    </ThreadPrimitive.Viewport>
  );
}

const Question = ({ text }: TextMessagePartProps) => (
  <div className="text" dir="auto">
    {text}
  </div>
);

const Markdown = lazy(() => import("./Markdown"));

const Answer = (part: TextMessagePartProps) => (
  <Suspense fallback={<Question {...part} />}>
    <Markdown />
  </Suspense>
);

const SENT = { Attachment: Sent };
const QUESTION = { Text: Question };

const UserMessage = () => (
  <MessagePrimitive.Root className="message user" role="article" aria-label="You">
    <div className="parts">
      <MessagePrimitive.Attachments components={SENT} />
      <MessagePrimitive.Parts components={QUESTION} />
    </div>
    <ActionBarPrimitive.Root className="actions">
      <CopyMessage />
      <ActionBarPrimitive.Edit className="tool" aria-label="Edit" title="Edit">
        <Icon name="edit" />
      </ActionBarPrimitive.Edit>
      <Versions />
    </ActionBarPrimitive.Root>
  </MessagePrimitive.Root>
);

const EditComposer = () => (
  <MessagePrimitive.Root className="message user" role="article" aria-label="You">
    <ComposerPrimitive.Root className="edit">
      <Tray />
      <ComposerPrimitive.Input aria-label="Edited message" dir="auto" autoFocus />
      <p>The earlier version is kept.</p>
      <div className="choice">
        <ComposerPrimitive.Cancel>Cancel</ComposerPrimitive.Cancel>
        <ComposerPrimitive.Send className="primary">Send</ComposerPrimitive.Send>
      </div>
    </ComposerPrimitive.Root>
  </MessagePrimitive.Root>
);

const MadeFile = ({ data, mimeType, filename }: FileMessagePartProps) => <File address={data} mediaType={mimeType} name={filename} />;

const ANSWER = { Text: Answer, Reasoning, File: MadeFile, Source: () => null, tools: { Fallback: Call } };

function AssistantMessage() {
  const isWriting = useAuiState((s) => s.message.isLast && s.thread.isRunning);
  return (
    <MessagePrimitive.Root className={isWriting ? "message assistant writing" : "message assistant"} role="article" aria-label="Assistant">
      <div className="parts">
        <MessagePrimitive.Parts components={ANSWER} />
        <Sources />
      </div>
      {!isWriting && <AnswerFoot />}
    </MessagePrimitive.Root>
  );
}

const MESSAGES = { UserMessage, AssistantMessage, UserEditComposer: EditComposer };

function AnswerFoot() {
  const { incomplete, error, usage } = useAuiState((s) => s.message.metadata.custom as Metadata);
  const model = useAuiState((s) => s.message.metadata.custom.model as string | undefined);
  const facts = [model, usage && `${usage.inputTokens} tokens in, ${usage.outputTokens} out`].filter(Boolean).join(" · ");
  const isStopped = useAuiState((s) => s.message.status?.type === "incomplete" && s.message.status.reason === "cancelled");
  return (
    <>
      {(incomplete || isStopped) && (
        <div className="notice" role="group" aria-label="Notice">
          <p>{error ?? "This response was stopped."}</p>
        </div>
      )}
      <ActionBarPrimitive.Root className="actions">
        <CopyMessage />
        <ActionBarPrimitive.Reload className="tool" aria-label="Try again" title="Try again">
          <Icon name="retry" />
        </ActionBarPrimitive.Reload>
        <ActionBarPrimitive.FeedbackPositive className="tool" aria-label="Good response" title="Good response">
          <Icon name="good" />
        </ActionBarPrimitive.FeedbackPositive>
        <ActionBarPrimitive.FeedbackNegative className="tool" aria-label="Bad response" title="Bad response">
          <Icon name="bad" />
        </ActionBarPrimitive.FeedbackNegative>
        <Comment />
        <Versions />
        {facts && <span className="facts">{facts}</span>}
      </ActionBarPrimitive.Root>
    </>
  );
}

// What the user writes about a response that has a rating.
function Comment() {
  const aui = useAui();
  const submitted = useAuiState((s) => (s.message.role === "assistant" ? s.message.metadata.submittedFeedback : undefined));
  const [text, setText] = useState<string>();
  if (!submitted) return null;
  return (
    <>
      <button type="button" className="plain" title={submitted.comment} onClick={() => setText(submitted.comment ?? "")}>
        {submitted.comment ? "Edit your comment" : "Add a comment"}
      </button>
      {text !== undefined && (
        <Dialog
          title="Comment on the response"
          action="Save"
          onClose={() => setText(undefined)}
          onAction={() => aui.message.submitFeedback({ type: submitted.type, comment: text.trim() })}
        >
          <label htmlFor="comment">Comment</label>
          <textarea id="comment" dir="auto" rows={4} maxLength={10_000} value={text} onChange={(event) => setText(event.target.value)} />
        </Dialog>
      )}
    </>
  );
}

function CopyMessage() {
  const text = useAuiState((s) => s.message.parts.map((part) => (part.type === "text" ? part.text : "")).join(""));
  return text ? <CopyButton text={text} label="Copy" /> : null;
}

let stepped: { index: number; step: number } | undefined; // the button that was pressed last

function Versions() {
  const { index, branchNumber, branchCount } = useAuiState((s) => s.message);
  const group = useRef<HTMLDivElement>(null);

  // The message that is shown then has buttons of its own, which get the focus.
  useEffect(() => {
    if (stepped?.index !== index) return;
    const [previous, next] = group.current?.querySelectorAll("button") ?? [];
    const [same, other] = stepped.step < 0 ? [previous, next] : [next, previous];
    (same?.disabled ? other : same)?.focus();
    announce(`Version ${branchNumber} of ${branchCount}.`);
    stepped = undefined;
  }, [index, branchNumber, branchCount]);

  return (
    <BranchPickerPrimitive.Root ref={group} hideWhenSingleBranch className="versions" role="group" aria-label="Versions">
      <BranchPickerPrimitive.Previous className="tool" aria-label="Previous version" onClick={() => (stepped = { index, step: -1 })}>
        <Icon name="previous" />
      </BranchPickerPrimitive.Previous>
      <span>
        <BranchPickerPrimitive.Number />/<BranchPickerPrimitive.Count />
      </span>
      <BranchPickerPrimitive.Next className="tool" aria-label="Next version" onClick={() => (stepped = { index, step: 1 })}>
        <Icon name="next" />
      </BranchPickerPrimitive.Next>
    </BranchPickerPrimitive.Root>
  );
}

function Reasoning({ text, status }: ReasoningMessagePartProps) {
  return (
    <details className="thoughts">
      <summary>{status.type === "running" ? "Thinking" : "Reasoning"}</summary>
      <p dir="auto">{text}</p>
    </details>
  );
}

function Sources() {
  const parts = useAuiState((s) => s.message.parts);
  const sources = parts.filter((part) => part.type === "source");
  if (!sources.length) return null;
  return (
    <section className="sources" aria-label="Sources">
      <h2>Sources</h2>
      <ol>
        {sources.map(({ id, url, title }) => (
          <li key={id}>
            {url ? (
              <a href={url} target="_blank" rel="noopener noreferrer">
                {title || url}
              </a>
            ) : (
              <span>{title}</span>
            )}
          </li>
        ))}
      </ol>
    </section>
  );
}

// Announces a response by complete paragraphs, each of them once.
function Speech() {
  const isRunning = useAuiState((s) => s.thread.isRunning);
  const text = useAuiState((s) => {
    const last = s.thread.messages.at(-1);
    return last?.role === "assistant" ? last.content.map((part) => (part.type === "text" ? part.text : "")).join("\n\n") : "";
  });
  const spoken = useRef(-1);
  useEffect(() => {
    if (isRunning && spoken.current < 0) spoken.current = 0;
    if (spoken.current < 0) return;
    let end = isRunning ? text.lastIndexOf("\n\n") : text.length;
    // A code block is one paragraph, although it has empty lines.
    while (isRunning && end > spoken.current && text.slice(spoken.current, end).split("```").length % 2 === 0) end = text.lastIndexOf("\n\n", end - 1);
    if (end > spoken.current) announce(text.slice(spoken.current, end).replace(/[*_`#>|\s]+/g, " "));
    spoken.current = isRunning ? Math.max(end, spoken.current) : -1;
  }, [isRunning, text]);
  return null;
}
