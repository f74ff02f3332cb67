"""The chat that `chainlit_app` mounts: it says what it is told, and how many messages the session has had."""

import chainlit


@chainlit.on_chat_start
async def start() -> None:
    chainlit.user_session.set("count", 0)
    await chainlit.Message("ready").send()


@chainlit.on_message
async def answer(message: chainlit.Message) -> None:
    count = chainlit.user_session.get("count") + 1
    chainlit.user_session.set("count", count)
    await chainlit.Message(f"{count}: {message.content}").send()
