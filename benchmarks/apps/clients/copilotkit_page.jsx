// A page of CopilotKit: its chat with a tool of the page, its context and an approval.
import { CopilotChat, CopilotKitProvider, useAgentContext, useFrontendTool, useInterrupt } from "@copilotkit/react-core/v2";
import { createRoot } from "react-dom/client";
import { z } from "zod";

const agentId = new URLSearchParams(location.search).get("agent");

function Chat() {
  useAgentContext({ description: "page", value: "/cart" });
  useFrontendTool({
    name: "look_up",
    description: "Looks up.",
    parameters: z.object({ text: z.string() }),
    handler: async ({ text }) => `it rains on ${text}`,
  });
  useInterrupt({
    agentId,
    render: ({ resolve }) => <button onClick={() => resolve({ approved: true })}>Approve</button>,
  });
  return <CopilotChat agentId={agentId} />;
}

createRoot(document.getElementById("page")).render(
  <CopilotKitProvider runtimeUrl="/copilotkit" showDevConsole={false}>
    <Chat />
  </CopilotKitProvider>,
);
