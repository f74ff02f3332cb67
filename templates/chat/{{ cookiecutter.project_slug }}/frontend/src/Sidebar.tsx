// The conversations: a list with a search, and on a phone a drawer.

import { useEffect, useRef, useState } from "react";
import { change, remove, type Summary } from "./api";
import { Dialog } from "./Dialog";
import icon from "./icon.svg";
import { Icon } from "./icons";

const TITLE = {{ cookiecutter.project_name|tojson }};
const THEMES = ["system", "light", "dark"];

type SidebarProps = {
  conversations: Summary[];
  current: string;
  isOpen: boolean;
  search: string;
  onSearch: (words: string) => void;
  onOpen: (id: string) => void;
  onClose: () => void;
  onChange: () => void;
  onError: (error: unknown) => void;
};

type Asked = { kind: "rename" | "remove"; conversation: Summary };

export function Sidebar({ conversations, current, isOpen, search, onSearch, onOpen, onClose, onChange, onError }: SidebarProps) {
  const [asked, setAsked] = useState<Asked>();
  const closing = useRef<HTMLButtonElement>(null);
  useEffect(() => {
    if (isOpen) closing.current?.focus();
  }, [isOpen]);

  async function perform(work: Promise<unknown>) {
    try {
      await work;
      onChange();
    } catch (error) {
      onError(error);
    }
  }

  const entry = (conversation: Summary) => {
    const { id, title } = conversation;
    return (
      <li key={id} className={id === current ? "current" : ""}>
        <button type="button" className="open" dir="auto" title={title} aria-current={id === current ? "page" : undefined} onClick={() => onOpen(id)}>
          {title}
        </button>
        <button type="button" className="tool" aria-label={`Rename “${title}”`} onClick={() => setAsked({ kind: "rename", conversation })}>
          <Icon name="edit" />
        </button>
        <button type="button" className="tool" aria-label={`Delete “${title}”`} onClick={() => setAsked({ kind: "remove", conversation })}>
          <Icon name="remove" />
        </button>
      </li>
    );
  };

  return (
    <div
      id="sidebar"
      className={isOpen ? "open" : ""}
      role={isOpen ? "dialog" : "complementary"}
      aria-modal={isOpen || undefined}
      aria-label="Sidebar"
      onKeyDown={(event) => event.key === "Escape" && !asked && onClose()}
    >
      <div className="brand">
        <img src={icon} alt="" />
        <span>{TITLE}</span>
        <button id="close" ref={closing} type="button" className="tool" aria-label="Hide conversations" onClick={onClose}>
          <Icon name="close" />
        </button>
      </div>
      <button type="button" className="new" onClick={() => onOpen("")}>
        <Icon name="new" />
        New conversation
      </button>
      <input id="search" type="search" maxLength={200} autoComplete="off" aria-label="Search conversations" placeholder="Search" value={search} onChange={(event) => onSearch(event.target.value)} />
      <nav id="conversations" aria-label="Conversations">
        <ul>{conversations.map(entry)}</ul>
        {!conversations.length && <p className="empty">{search ? "No conversation has these words." : "Your conversations appear here."}</p>}
      </nav>
      <div className="settings">
        <Theme />
      </div>
      {asked?.kind === "rename" && <Rename conversation={asked.conversation} onClose={() => setAsked(undefined)} onRename={(title) => void perform(change(asked.conversation.id, { title }))} />}
      {asked?.kind === "remove" && (
        <Dialog
          title="Delete the conversation?"
          action="Delete"
          isDangerous
          onClose={() => setAsked(undefined)}
          onAction={() => {
            if (asked.conversation.id === current) onOpen("");
            void perform(remove(asked.conversation.id));
          }}
        >
          <p dir="auto">{asked.conversation.title}</p>
        </Dialog>
      )}
    </div>
  );
}

type RenameProps = { conversation: Summary; onRename: (title: string) => void; onClose: () => void };

function Rename({ conversation, onRename, onClose }: RenameProps) {
  const [title, setTitle] = useState(conversation.title);
  return (
    <Dialog title="Rename the conversation" action="Rename" onClose={onClose} onAction={() => onRename(title)}>
      <label htmlFor="name">Title</label>
      <input id="name" dir="auto" maxLength={80} required autoComplete="off" value={title} onChange={(event) => setTitle(event.target.value)} />
    </Dialog>
  );
}

function Theme() {
  const [theme, setTheme] = useState(() => localStorage.getItem("theme") ?? "system");
  useEffect(() => {
    localStorage.setItem("theme", theme);
    document.documentElement.dataset.theme = theme;
  }, [theme]);
  return (
    <button type="button" className="plain" onClick={() => setTheme(THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length]!)}>
      Theme: {theme}
    </button>
  );
}
