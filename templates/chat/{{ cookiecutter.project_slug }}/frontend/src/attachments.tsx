// Files: those that are added to a message, and those of a message.

import { AttachmentPrimitive, useAuiState } from "@assistant-ui/react";
import { removeFile } from "./api";
import { Icon } from "./icons";

const isImage = (mediaType = "") => /^image\/(avif|gif|jpeg|png|webp)$/.test(mediaType);

function useAddress() {
  const part = useAuiState((s) => s.attachment.content?.[0]);
  return part?.type === "image" ? part.image : part?.type === "file" ? part.data : undefined;
}

export function Added() {
  const { name, contentType, status, file } = useAuiState((s) => s.attachment);
  const address = useAddress();
  const discard = () => file && address && void removeFile(address); // a file of an earlier message stays
  const error = status.type === "incomplete" ? ("message" in status && status.message) || "The upload failed." : undefined;
  return (
    <li className={error ? "attached failed" : "attached"}>
      {address && isImage(contentType) ? (
        <img src={address} alt="" />
      ) : (
        <span className="kind">
          <Icon name="file" />
        </span>
      )}
      <span className="words">
        <span className="name" title={name} dir="auto">
          {name}
        </span>
        {status.type === "running" && <progress value={status.progress} max={1} aria-label={`Upload of ${name}`} />}
        {error && (
          <span className="detail" role="alert">
            {error}
          </span>
        )}
      </span>
      <AttachmentPrimitive.Remove className="tool" aria-label={`Remove ${name}`} onClick={discard}>
        <Icon name="close" />
      </AttachmentPrimitive.Remove>
    </li>
  );
}

export function Sent() {
  const { name, contentType } = useAuiState((s) => s.attachment);
  return <File address={useAddress() ?? ""} mediaType={contentType ?? ""} name={name} />;
}

type FileProps = { address: string; mediaType: string; name?: string };

export function File({ address, mediaType, name = "File" }: FileProps) {
  const isShown = isImage(mediaType) && /^(data:|\/)/.test(address); // an image of a stranger's server would tell it who reads
  return (
    <div className="file">
      {isShown ? (
        <span className="image">
          <img src={address} alt={name} loading="lazy" />
        </span>
      ) : (
        <a className="card" href={address} download={name}>
          <Icon name="file" />
          <span className="name" dir="auto">
            {name}
          </span>
        </a>
      )}
    </div>
  );
}
