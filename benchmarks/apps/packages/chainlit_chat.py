"""The chat that `chainlit_app` mounts. It echoes each message with the number of messages in the session."""

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
