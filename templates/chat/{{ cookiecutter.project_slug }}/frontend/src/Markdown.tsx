import { Anchor, Code, Table, Typography } from "@mantine/core";
import { type ComponentProps, type ReactElement, memo } from "react";
import ReactMarkdown, { type Components } from "react-markdown";
import remarkGfm from "remark-gfm";
import { CopyButton } from "./CopyButton";

const PLUGINS = [remarkGfm];

// react-markdown renders no HTML of the model, and no links with other protocols than those of the web and of mail.
export const Markdown = memo(({ text }: { text: string }) => (
  <Typography dir="auto">
    <ReactMarkdown remarkPlugins={PLUGINS} components={components}>
      {text}
    </ReactMarkdown>
  </Typography>
));

function CodeBlock({ children }: ComponentProps<"pre">) {
  const { className = "", children: code } = (children as ReactElement<ComponentProps<"code">>).props;
  const text = String(code);
  return (
    <div className="code">
      <div className="bar">
        <span>{className.replace("language-", "") || "text"}</span>
        <CopyButton text={text} label="Copy code" />
      </div>
      <Code block tabIndex={0} dir="ltr">
        {text}
      </Code>
    </div>
  );
}

const components: Components = {
  // The page has the heading of the first level.
  h1: "h2",
  h2: "h3",
  h3: "h4",
  h4: "h5",
  h5: "h6",
  a: ({ href, children }) => (
    <Anchor href={href} target="_blank" rel="noopener noreferrer">
      {children}
    </Anchor>
  ),
  // An image would tell a stranger's server who reads the message.
  img: ({ src, alt }) => (
    <Anchor href={String(src)} target="_blank" rel="noopener noreferrer">
      {alt || String(src)}
    </Anchor>
  ),
  input: ({ checked }) => (
    <span role="img" aria-label={checked ? "Done" : "Not done"}>
      {checked ? "☑" : "☐"}
    </span>
  ),
  pre: CodeBlock,
  table: ({ children }) => (
    <div className="table" tabIndex={0} role="group" aria-label="Table">
      <Table withTableBorder withColumnBorders striped>
        {children}
      </Table>
    </div>
  ),
  thead: ({ children }) => <Table.Thead>{children}</Table.Thead>,
  tbody: ({ children }) => <Table.Tbody>{children}</Table.Tbody>,
  tr: ({ children }) => <Table.Tr>{children}</Table.Tr>,
  th: ({ children, style }) => <Table.Th ta={style?.textAlign}>{children}</Table.Th>,
  td: ({ children, style }) => <Table.Td ta={style?.textAlign}>{children}</Table.Td>,
};
