import type { ToolCallMessagePartProps } from "@assistant-ui/react";
import { useAuiState } from "@assistant-ui/react";
import { useEffect, useId, useState } from "react";
import { announce } from "./announce";
import { sentence } from "./api";

const show = (value: unknown) => (typeof value === "string" ? value : JSON.stringify(value, null, 2));

// A call of a tool: its arguments and result, and the question whether it may run.
export function Call({ toolName, args, result, isError, approval, respondToApproval }: ToolCallMessagePartProps) {
  const isLast = useAuiState((s) => s.message.isLast);
  const isActive = useAuiState((s) => s.message.isLast && s.thread.isRunning);
  const isAsked = approval !== undefined && approval.approved === undefined;
  let state = isAsked ? "Not answered" : isActive ? "Running" : "Not finished";
  if (approval?.approved === false) state = "Denied";
  else if (result !== undefined) state = isError ? "Failed" : "Done";
  return (
    <>
      <details className="call">
        <summary>
          <span className="name">{toolName}</span>
          <span className={`status ${state.toLowerCase().replace(" ", "-")}`}>{state}</span>
        </summary>
        <Value title="Input" tool={toolName} value={args} />
        <Value title="Output" tool={toolName} value={result} />
      </details>
      {isAsked && isLast && <Approval tool={toolName} input={args} respond={respondToApproval} />}
    </>
  );
}

function Value({ title, tool, value }: { title: string; tool: string; value: unknown }) {
  if (value === undefined) return null;
  return (
    <>
      <p>{title}</p>
      <pre tabIndex={0} role="group" aria-label={`${title} of ${tool}`}>
        {show(value)}
      </pre>
    </>
  );
}

type ApprovalProps = { tool: string; input: unknown; respond: ToolCallMessagePartProps["respondToApproval"] };

function Approval({ tool, input, respond }: ApprovalProps) {
  const id = useId();
  const [reason, setReason] = useState("");
  const [error, setError] = useState("");

  useEffect(() => announce(`The assistant asks whether it may run ${tool}.`), [tool]);

  async function answer(approved: boolean) {
    try {
      await respond(approved || !reason.trim() ? { approved } : { approved, reason: reason.trim() });
    } catch (failure) {
      setError(sentence(failure));
    }
  }

  return (
    <div className="approval" role="group" aria-label={`Approval of ${tool}`}>
      <p>
        May the assistant run <strong className="name">{tool}</strong>?
      </p>
      <pre tabIndex={0} role="group" aria-label={`Input of ${tool}`}>
        {show(input)}
      </pre>
      <label htmlFor={id}>Reason, if you deny it (optional)</label>
      <input id={id} dir="auto" maxLength={1000} autoComplete="off" value={reason} onChange={(event) => setReason(event.target.value)} />
      <div className="choice">
        <button type="button" className="deny" onClick={() => void answer(false)}>
          Deny
        </button>
        <button type="button" className="primary" onClick={() => void answer(true)}>
          Approve
        </button>
      </div>
      {error && <p role="alert">{error}</p>}
    </div>
  );
}
