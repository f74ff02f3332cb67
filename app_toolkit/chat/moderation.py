"""A chain that refuses requests and responses for reasons of the application."""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing

from app_toolkit import ConfigError
from app_toolkit.chat.chain import Chain, Source, ask
from app_toolkit.chat.protocol import (
    ChatEvent,
    ChatRequest,
    FinishEvent,
    ReasoningEvent,
    StatusEvent,
    TextEvent,
    UsageEvent,
    closing,
)

CheckRequest = Callable[[ChatRequest], Awaitable[str | None]]
"""Returns what the user reads instead of a response. None: the model may answer."""

CheckText = Callable[[ChatRequest, str], Awaitable[str | None]]
"""Gets the text of a response so far, and returns what the user reads instead of the rest. None: it may be shown."""


def moderated(
    model: Source, *, before: CheckRequest | None = None, after: CheckText | None = None, window: int | None = None
) -> Chain:
    """Return a model that answers only what `before` and `after` allow.

    A response that is refused ends with the text that the function has returned and with the reason `content_filter`,
    and the model is closed. An exception of a function is the error of the response: nothing is shown unchecked.

    Parameters:
        model: The model.
        before: Checks the request before the model is called. Default: every request is allowed.
        after: Checks the text and the reasoning of the response, one after the other. Default: all is allowed.
        window: Characters after which `after` is called again, with the whole text so far. Only what it has allowed is
            shown, and remains if a later part is refused. Default: the response is held back until it is complete, and
            checked once.

    Raises:
        ConfigError: `window` is below 1, or there is no `after` for it.
    """
    if window is not None and (window < 1 or after is None):
        raise ConfigError(f"moderated: window = {window!r}: must be 1 or above, with a function for after")

    async def chat(request: ChatRequest) -> AsyncGenerator[ChatEvent, None]:
        if before is not None and (refusal := await before(request)) is not None:
            yield TextEvent(refusal)
            yield FinishEvent("content_filter")
            return
        texts: list[str] = []
        async with closing(ask(model, request)) as events:
            if after is None:
                async for event in events:
                    yield event
                return
            async with aclosing(_batches(events, window)) as batches:
                async for batch in batches:
                    if text := "".join(_texts(batch)):
                        refusal = await after(request, "".join((*texts, text)))
                        if refusal is not None:
                            for event in batch:
                                if isinstance(event, UsageEvent):
                                    yield event
                            yield TextEvent(f"\n\n{refusal}" if texts else refusal)
                            yield FinishEvent("content_filter")
                            return
                        texts.append(text)
                    for event in batch:
                        yield event

    return Chain((model,), chat)


async def _batches(events: AsyncIterator[ChatEvent], window: int | None) -> AsyncGenerator[list[ChatEvent], None]:
    """Yield the events in lists. One ends after `window` characters of text, and before an event that is no text.

    None: there is one list. A `StatusEvent` does not wait: it is a list of its own.
    """
    batch: list[ChatEvent] = []
    length = 0
    async for event in events:
        if isinstance(event, StatusEvent):
            yield [event]
            continue
        is_text = isinstance(event, TextEvent | ReasoningEvent)
        if window is not None and batch and not is_text:
            yield batch
            batch, length = [], 0
        batch.append(event)
        length += sum(map(len, _texts([event])))
        if window is not None and (not is_text or length >= window):
            yield batch
            batch, length = [], 0
    if batch:
        yield batch


def _texts(events: list[ChatEvent]) -> Iterator[str]:
    return (event.text for event in events if isinstance(event, TextEvent | ReasoningEvent))
