import "katex/dist/katex.min.css";
import { type CodeHeaderProps, escapeCurrencyDollars, MarkdownTextPrimitive, normalizeMathDelimiters } from "@assistant-ui/react-markdown";
import katex from "katex";
import { type ComponentProps, useEffect, useRef } from "react";
import rehypeHighlight from "rehype-highlight";
import remarkGfm from "remark-gfm";
import remarkMath from "remark-math";
import { CopyButton } from "./copy";

const REMARK = [remarkGfm, remarkMath];
const REHYPE = [rehypeHighlight];
const withMath = (text: string) => escapeCurrencyDollars(normalizeMathDelimiters(text));

const Link = ({ href, children }: { href?: string; children?: React.ReactNode }) => (
  <a href={href} target="_blank" rel="noopener noreferrer">
    {children}
  </a>
);

const CodeHeader = ({ language, code }: CodeHeaderProps) => (
  <div className="bar">
    <span>{language && language !== "unknown" ? language : "text"}</span>
    <CopyButton text={code} label="Copy code" />
  </div>
);

// KaTeX sets styles by the DOM, which the content security policy permits. TeX with a mistake stays as it is.
function Formula({ code, isDisplayed = true }: { code: string; isDisplayed?: boolean }) {
  const box = useRef<HTMLSpanElement>(null);
  useEffect(() => katex.render(code, box.current!, { displayMode: isDisplayed, throwOnError: false, strict: "ignore", maxExpand: 1000, maxSize: 50 }), [code, isDisplayed]);
  return isDisplayed ? <span className="math" ref={box} tabIndex={0} role="group" aria-label="Formula" /> : <span ref={box} />;
}

const BY_LANGUAGE = { math: { CodeHeader: () => null, SyntaxHighlighter: Formula } };

const components = {
  // The page has the heading of the first level.
  h1: "h2",
  h2: "h3",
  h3: "h4",
  h4: "h5",
  h5: "h6",
  a: ({ href, children }: ComponentProps<"a">) => <Link href={href}>{children}</Link>,
  // An image would tell a stranger's server who reads the message.
  img: ({ src, alt }: ComponentProps<"img">) => <Link href={String(src)}>{alt || String(src)}</Link>,
  input: ({ checked }: ComponentProps<"input">) => (
    <span className="task" role="img" aria-label={checked ? "Done" : "Not done"}>
      {checked ? "☑" : "☐"}
    </span>
  ),
  code: ({ node: _, ...rest }: ComponentProps<"code"> & { node?: unknown }) =>
    rest.className?.includes("math-inline") ? <Formula code={String(rest.children)} isDisplayed={false} /> : <code {...rest} />,
  pre: ({ node: _, ...rest }: ComponentProps<"pre"> & { node?: unknown }) => (
    <pre {...rest} tabIndex={0} dir="ltr" role="group" aria-label="Code" />
  ),
  table: ({ children }: ComponentProps<"table">) => (
    <div className="table" tabIndex={0} role="group" aria-label="Table">
      <table>{children}</table>
    </div>
  ),
  CodeHeader,
} as const;

// react-markdown renders no HTML of the model, and no links with other protocols than those of the web and of mail.
export default function Markdown() {
  return (
    <div className="text" dir="auto">
      <MarkdownTextPrimitive
        remarkPlugins={REMARK}
        rehypePlugins={REHYPE}
        components={components}
        componentsByLanguage={BY_LANGUAGE}
        preprocess={withMath}
        smooth={false}
        defer
      />
    </div>
  );
}
