"""Chains that call a model once more, or another one, if a model fails before its first token."""

import asyncio
import logging
import random
from collections.abc import AsyncGenerator
from contextlib import aclosing

from app_toolkit import ChatError, ConfigError, RequestError
from app_toolkit.chat.chain import Chain, Source, ask, usage_sum
from app_toolkit.chat.protocol import (
    ChatEvent,
    ChatRequest,
    ErrorEvent,
    ReasoningEvent,
    StatusEvent,
    TextEvent,
    UsageEvent,
    closing,
)

logger = logging.getLogger("app_toolkit.chat")

RETRIED = frozenset({408, 409, 429})
"""The statuses below 500 with which a model may succeed at the next attempt."""


def fallback(*models: Source) -> Chain:
    """Return a model that calls the next one of `models` if one fails before its first token.

    An error after the first token is the error of the response. So is that of the last model, whenever it fails. The
    usage of a response includes what the failed models have reported.

    Raises:
        ConfigError: There is no model.
    """
    if not models:
        raise ConfigError("fallback needs at least one model")

    async def chat(request: ChatRequest) -> AsyncGenerator[ChatEvent, None]:
        usage: UsageEvent | None = None
        for number, model in enumerate(models, 1):
            attempt = Attempt(model, request, usage)
            try:
                async with aclosing(attempt.events()) as events:
                    async for event in events:
                        yield event
                return
            except Exception as error:
                if attempt.has_begun or number == len(models):
                    raise
                logger.warning("model %d of %d failed before its first token: %r", number, len(models), error)
                usage = attempt.usage

    return Chain(models, chat)


def retried(model: Source, *, attempts: int = 3, first_wait_s: float = 0.5, max_wait_s: float = 10.0) -> Chain:
    """Return a model that is called again if it fails before its first token in a way that may pass.

    These are `ChatError` and errors of the toolkit with the status 408, 409, 429, or 500 and above, and an
    `ErrorEvent`. `retry_wait_s` says how long the model waits before the next attempt.

    Parameters:
        model: The model.
        attempts: Maximum number of calls for one request.
        first_wait_s: Upper bound of the wait after the first attempt in seconds. It doubles with each attempt.
        max_wait_s: Upper bound of each wait in seconds. An error with a longer `retry_after_s` is not retried.

    Raises:
        ConfigError: An option is out of bounds.
    """
    for name, value, least in (
        ("attempts", attempts, 1),
        ("first_wait_s", first_wait_s, 0),
        ("max_wait_s", max_wait_s, 0),
    ):
        if value < least:
            raise ConfigError(f"retried: {name} = {value!r}: must be {least} or above")

    async def chat(request: ChatRequest) -> AsyncGenerator[ChatEvent, None]:
        usage: UsageEvent | None = None
        for number in range(1, attempts + 1):
            attempt = Attempt(model, request, usage)
            try:
                async with aclosing(attempt.events()) as events:
                    async for event in events:
                        yield event
                return
            except Exception as error:
                wait_s = retry_wait_s(error, number, first_wait_s, max_wait_s, random.random())
                if attempt.has_begun or number == attempts or wait_s is None:
                    raise
                logger.warning("attempt %d of %d failed; the next is in %.1f s: %r", number, attempts, wait_s, error)
                usage = attempt.usage
            await asyncio.sleep(wait_s)

    return Chain((model,), chat)


def retry_wait_s(error: Exception, number: int, first_wait_s: float, max_wait_s: float, chance: float) -> float | None:
    """Return the seconds to wait after a failed attempt. None: the error is not retried.

    The wait is a random part of `first_wait_s`, which doubles with each attempt, and at least `retry_after_s` of the
    error.

    Parameters:
        number: The number of the attempt, from 1 on.
        chance: A random number from 0 to 1.
    """
    if not may_pass(error):
        return None
    after_s = getattr(error, "retry_after_s", None) or 0.0
    backoff_s = min(max_wait_s, first_wait_s * 2 ** min(number - 1, 30)) * chance
    return None if after_s > max_wait_s else max(after_s, backoff_s)


def may_pass(error: Exception) -> bool:
    """Return whether a model that has failed with an error may succeed at the next attempt."""
    return isinstance(error, ChatError | RequestError) and (error.status in RETRIED or error.status >= 500)


def first_token_within(model: Source, seconds: float) -> Chain:
    """Return a model that fails with status 504 if it has yielded no token after `seconds`. It is closed then.

    Raises:
        ConfigError: `seconds` is not positive.
    """
    if seconds <= 0:
        raise ConfigError(f"first_token_within: seconds = {seconds!r}: must be above 0")

    async def chat(request: ChatRequest) -> AsyncGenerator[ChatEvent, None]:
        end = asyncio.get_running_loop().time() + seconds
        async with closing(ask(model, request)) as events:
            has_begun = False
            while not has_begun:
                try:
                    async with asyncio.timeout_at(end) as limit:
                        event = await anext(events)
                except StopAsyncIteration:
                    return
                except TimeoutError:
                    if not limit.expired():
                        raise
                    message = f"the model has not begun to answer within {seconds:g} s"
                    raise ChatError(message, status=504, code="first_token_timeout") from None
                has_begun = is_token(event)
                yield event
            async for event in events:
                yield event

    return Chain((model,), chat)


class Attempt:
    """One call of a model. Its failure before its first token is an exception, also if it yields an `ErrorEvent`."""

    def __init__(self, model: Source, request: ChatRequest, usage: UsageEvent | None) -> None:
        """Prepare a call. `usage`: what the earlier attempts have cost."""
        self._model = model
        self._request = request
        self.has_begun = False
        """Whether the model has yielded a token."""
        self.usage = usage
        """What this attempt and the earlier ones have cost so far."""

    async def events(self) -> AsyncGenerator[ChatEvent, None]:
        """Yield the events of the model. Its usage includes that of the earlier attempts."""
        earlier = self.usage
        async with closing(ask(self._model, self._request)) as events:
            async for event in events:
                if isinstance(event, UsageEvent):
                    event = self.usage = usage_sum(earlier, event)
                elif isinstance(event, ErrorEvent) and not self.has_begun:
                    raise ChatError(event.message, status=502, code=event.code)
                self.has_begun = self.has_begun or is_token(event)
                yield event


def is_token(event: ChatEvent) -> bool:
    """Return whether an event is a part of the response. Usage, the status and empty texts are none."""
    if isinstance(event, TextEvent | ReasoningEvent):
        return bool(event.text)
    return not isinstance(event, UsageEvent | StatusEvent)
