// A page of assistant-ui: `useChat` of React with the runtime and the parts of the library, without its styles.
import { useChat } from "@ai-sdk/react";
import {
  ActionBarPrimitive,
  AssistantRuntimeProvider,
  BranchPickerPrimitive,
  ComposerPrimitive,
  MessagePrimitive,
  ThreadPrimitive,
} from "@assistant-ui/react";
import { useAISDKRuntime } from "@assistant-ui/react-ai-sdk";
import { DefaultChatTransport, lastAssistantMessageIsCompleteWithApprovalResponses } from "ai";
import { createRoot } from "react-dom/client";

const query = new URLSearchParams(location.search);
const [api, id, model] = ["api", "id", "model"].map((name) => query.get(name));
const isStored = api.startsWith("/stored");
const transport = new DefaultChatTransport({ api, body: { model } });

const Reasoning = ({ text }) => <i>{text}</i>;

const Tool = ({ toolName, args, result, isError, approval, respondToApproval }) => (
  <pre>
    {toolName} {JSON.stringify(args)}: {isError ? "failed: " : ""}
    {typeof result === "string" ? result : JSON.stringify(result)}
    {approval && approval.approved === undefined && (
      <button onClick={() => respondToApproval({ approved: true })}>Approve</button>
    )}
  </pre>
);

const Source = ({ url }) => <a href={url}>{url}</a>;

const Branches = () => (
  <BranchPickerPrimitive.Root hideWhenSingleBranch>
    <BranchPickerPrimitive.Previous>Previous</BranchPickerPrimitive.Previous>
    <BranchPickerPrimitive.Number />/<BranchPickerPrimitive.Count />
  </BranchPickerPrimitive.Root>
);

const UserMessage = () => (
  <MessagePrimitive.Root className="user">
    <MessagePrimitive.Parts />
    <ActionBarPrimitive.Edit>Edit</ActionBarPrimitive.Edit>
    <Branches />
  </MessagePrimitive.Root>
);

const EditComposer = () => (
  <ComposerPrimitive.Root>
    <ComposerPrimitive.Input aria-label="Edited" />
    <ComposerPrimitive.Send>Save</ComposerPrimitive.Send>
  </ComposerPrimitive.Root>
);

const AssistantMessage = () => (
  <MessagePrimitive.Root className="assistant">
    <MessagePrimitive.Parts components={{ Reasoning, Source, tools: { Fallback: Tool } }} />
    <ActionBarPrimitive.Reload>Retry</ActionBarPrimitive.Reload>
    <Branches />
  </MessagePrimitive.Root>
);

function Page({ messages }) {
  const chat = useChat({
    id,
    messages,
    transport,
    resume: isStored,
    sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithApprovalResponses,
  });
  const stop = async () => {
    if (isStored) await fetch(`${api}/${id}/stop`, { method: "POST" });
    await chat.stop();
  };
  return (
    <AssistantRuntimeProvider runtime={useAISDKRuntime({ ...chat, stop })}>
      <ThreadPrimitive.Root>
        <ThreadPrimitive.Messages components={{ UserMessage, AssistantMessage, EditComposer }} />
        <p role="status">{chat.status}</p>
        {chat.error && <p role="alert">{chat.error.message}</p>}
        <ComposerPrimitive.Root>
          <ComposerPrimitive.Input aria-label="Message" />
          <ComposerPrimitive.Send>Send</ComposerPrimitive.Send>
          <ComposerPrimitive.Cancel>Stop</ComposerPrimitive.Cancel>
        </ComposerPrimitive.Root>
      </ThreadPrimitive.Root>
    </AssistantRuntimeProvider>
  );
}

const stored = isStored && (await fetch(`/stored/conversations/${id}`));
const messages = stored?.ok ? (await stored.json()).messages : [];
createRoot(document.getElementById("page")).render(<Page messages={messages} />);
