// What connects the components of assistant-ui with the server: `useChat`, and the stored conversation.

import { useChat } from "@ai-sdk/react";
import type { AppendMessage, AttachmentAdapter, FeedbackAdapter, MessageFormatRepository, PendingAttachment } from "@assistant-ui/react";
import { useAISDKRuntime } from "@assistant-ui/react-ai-sdk";
import { DefaultChatTransport, lastAssistantMessageIsCompleteWithApprovalResponses } from "ai";
import { useEffect, useMemo, useRef, useState } from "react";
import * as api from "./api";

const RECONNECT_MS = 1000;

type Options = { id: string; stored: api.Stored; model: string; onChange: (isOwn: boolean) => void; onReload: () => void };

export function useConversation({ id, stored, model, onChange, onReload }: Options) {
  const [state, setState] = useState("");
  const latest = useRef({ model, edited: null as string | null, isOwn: false, isLost: false });
  latest.current.model = model;

  const transport = useMemo(
    () =>
      new DefaultChatTransport<api.Message>({
        api: api.chats,
        // The server has the earlier messages. It finds the branch by the message before, or by the one that is edited.
        prepareSendMessagesRequest: ({ id, messages, trigger }) => {
          const { model, edited } = latest.current;
          latest.current.isOwn = true;
          return { body: { id, trigger, messages: messages.slice(-2), messageId: edited ?? undefined, model: model || undefined } };
        },
      }),
    [],
  );
  const chat = useChat<api.Message>({
    id,
    transport,
    generateId: api.newId,
    throttle: 50,
    sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithApprovalResponses,
    onData: ({ type, data }) => type === "data-status" && setState((data as { text: string }).text),
    onFinish: () => onChange(latest.current.isOwn),
  });
  const { status, error, resumeStream, regenerate } = chat;

  async function stop() {
    try {
      await api.stop(id);
    } finally {
      await chat.stop();
    }
  }

  const runtime = useAISDKRuntime<api.Message>(
    { ...chat, stop, error: undefined }, // the page shows the error, which is no message
    {
      adapters: { attachments, feedback: useMemo(() => feedback(id), [id]) },
      joinStrategy: "none",
      messageRepository: useMemo(() => repository(stored), [stored]),
      toCreateMessage: (message) => {
        latest.current.edited = message.sourceId;
        return create(message) as never;
      },
      unstable_onBranchChange: ({ headId }) => headId && void api.change(id, { active_id: headId }),
    },
  );

  // A page that is loaded during a response follows it. The effect runs after the one that shows the stored messages.
  useEffect(() => void resumeStream(), [resumeStream]);

  useEffect(() => {
    if (status === "streaming") onChange(latest.current.isOwn);
    if (status !== "streaming" && status !== "submitted") {
      latest.current.isOwn = false;
      setState("");
    }
  }, [status, onChange]);

  // A connection that broke is tried again. Without an active response, the stored one is loaded.
  useEffect(() => {
    if (error instanceof TypeError) {
      latest.current.isLost = true;
      const alarm = setTimeout(() => void resumeStream(), RECONNECT_MS);
      return () => clearTimeout(alarm);
    }
    if (latest.current.isLost && status === "ready") onReload();
    if (status === "streaming") latest.current.isLost = false;
    return undefined;
  }, [error, status, resumeStream, onReload]);

  const isUnanswered = chat.messages.at(-1)?.role === "user" && (status === "ready" || status === "error");
  return { runtime, error, isUnanswered, state, retry: () => void regenerate() };
}

function repository({ active_id, messages }: api.Stored): MessageFormatRepository<api.Message> {
  return {
    headId: active_id,
    messages: messages.map(({ id, role, parts, metadata, parent_id, model, feedback }) => {
      const submittedFeedback = feedback && { type: feedback.rating === "good" ? "positive" : "negative", comment: feedback.comment };
      return { parentId: parent_id, message: { id, role, parts, metadata: { ...metadata, model, ...(submittedFeedback && { submittedFeedback }) } } };
    }),
  };
}

// A message of the user, as the AI SDK has it. A file is a reference to what the server has stored.
function create({ content, attachments = [] }: AppendMessage) {
  const texts = content.flatMap((part) => (part.type === "text" ? [{ type: "text", text: part.text }] : []));
  const files = attachments.flatMap(({ name, contentType, content }) =>
    content.flatMap((part) => {
      const url = part.type === "image" ? part.image : part.type === "file" ? part.data : "";
      return url ? [{ type: "file", url, mediaType: contentType, filename: name }] : [];
    }),
  );
  return { role: "user", parts: [...texts, ...files] };
}

// A file is uploaded when it is chosen, so that an error is shown before the message is sent.
const attachments: AttachmentAdapter = {
  accept: "*",
  async *add({ file }) {
    const type = file.type.startsWith("image/") ? "image" : "file";
    const attachment = { id: api.newId(), type, name: file.name, contentType: file.type, file };
    let progress = 0;
    let wake = () => {};
    const uploaded = api.upload(file, (share) => {
      progress = share;
      wake();
    });
    const settled = uploaded.then(() => true, () => true);
    for (let done = false; !done; ) {
      yield { ...attachment, status: { type: "running", reason: "uploading", progress } } satisfies PendingAttachment;
      done = await Promise.race([settled, new Promise<false>((resolve) => (wake = () => resolve(false)))]);
    }
    const { name, media_type, url } = await uploaded;
    const content = [{ type: "file" as const, data: url, mimeType: media_type, filename: name }];
    yield { ...attachment, name, contentType: media_type, content, status: { type: "requires-action", reason: "composer-send" } };
  },
  async send(attachment) {
    if (!attachment.content?.length) throw new Error(`${attachment.name} is not uploaded: remove it.`);
    return { ...attachment, content: attachment.content, status: { type: "complete" } };
  },
  async remove() {}, // a queued message may still have the file
};

const feedback = (id: string): FeedbackAdapter => ({
  submit({ message, type, comment }) {
    void api.change(id, { rating: { message_id: message.id, feedback: { rating: type === "positive" ? "good" : "bad", comment } } });
  },
});
