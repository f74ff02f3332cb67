import { Alert, AppShell, Burger, Button, CloseButton, Group, NavLink, Text, Title } from "@mantine/core";
import { useDisclosure } from "@mantine/hooks";
import { useCallback, useEffect, useState } from "react";
import { Chat } from "./Chat";
import { list, type Message, messagesOf, newId, remove, type Summary } from "./conversations";

const TITLE = {{ cookiecutter.project_name|tojson }};
const HEADER = { height: 56 };
const messageOf = (error: unknown) => (error instanceof Error ? error.message : String(error));

export function App() {
  const [opened, drawer] = useDisclosure();
  const [id, setId] = useState(() => location.hash.slice(1) || newId());
  const [conversations, setConversations] = useState<Summary[]>([]);
  const [messages, setMessages] = useState<{ id: string; messages: Message[] }>();
  const [error, setError] = useState<string>();

  const refresh = useCallback(async () => {
    try {
      setConversations(await list());
      setError(undefined);
    } catch (failure) {
      setError(messageOf(failure));
    }
  }, []);

  useEffect(() => {
    void refresh();
    const follow = () => setId(location.hash.slice(1) || newId());
    window.addEventListener("popstate", follow);
    return () => window.removeEventListener("popstate", follow);
  }, [refresh]);

  useEffect(() => {
    const loading = new AbortController();
    messagesOf(id, loading.signal)
      .then((stored) => setMessages({ id, messages: stored }))
      .catch((failure: unknown) => loading.signal.aborted || setError(messageOf(failure)));
    return () => loading.abort();
  }, [id]);

  function open(next: string) {
    history.pushState(null, "", next ? `#${next}` : location.pathname);
    setId(next || newId());
    drawer.close();
  }

  // The address has no conversation before the first message.
  const begin = useCallback(() => {
    if (!location.hash) history.replaceState(null, "", `#${id}`);
    void refresh();
  }, [id, refresh]);

  async function forget(conversation: Summary) {
    if (!confirm(`Delete “${conversation.title}”?`)) return;
    try {
      await remove(conversation.id);
      if (conversation.id === id) open("");
      await refresh();
    } catch (failure) {
      setError(messageOf(failure));
    }
  }

  const navbar = { width: 280, breakpoint: "sm", collapsed: { mobile: !opened } };

  return (
    <AppShell header={HEADER} navbar={navbar} padding={0}>
      <AppShell.Header>
        <Group h="100%" px="md" wrap="nowrap">
          <Burger opened={opened} onClick={drawer.toggle} hiddenFrom="sm" size="sm" aria-label="Conversations" />
          <Title order={1} size="h4" lineClamp={1}>
            {TITLE}
          </Title>
        </Group>
      </AppShell.Header>
      <AppShell.Navbar p="sm" aria-label="Conversations">
        <Button variant="default" fullWidth mb="sm" onClick={() => open("")}>
          New conversation
        </Button>
        <ul className="conversations">
          {conversations.map((each) => (
            <li key={each.id}>
              <NavLink
                component="button"
                type="button"
                label={each.title}
                dir="auto"
                noWrap
                active={each.id === id}
                aria-current={each.id === id ? "page" : undefined}
                onClick={() => open(each.id)}
              />
              <CloseButton aria-label={`Delete “${each.title}”`} onClick={() => void forget(each)} />
            </li>
          ))}
        </ul>
        {conversations.length === 0 && <Text size="sm">Your conversations appear here.</Text>}
      </AppShell.Navbar>
      <AppShell.Main>
        {error && (
          <Alert color="red" role="alert" m="md">
            {error}
          </Alert>
        )}
        {messages?.id === id && <Chat key={id} id={id} messages={messages.messages} onChange={begin} />}
      </AppShell.Main>
    </AppShell>
  );
}
