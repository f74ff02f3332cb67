"""Continuous batching: the sequences that a model of transformers generates at the same time.

The manager of transformers has a thread that runs one step after the other. A sequence joins at the next step, and
leaves when it is complete or cancelled. A second thread passes the tokens on to the event loops of the requests.
"""

import asyncio
import logging
import threading
from collections.abc import AsyncGenerator, Mapping
from itertools import count
from typing import Any

from transformers.generation import ContinuousBatchingConfig, GenerationConfig

from app_toolkit import ChatError, QueueFull

logger = logging.getLogger("app_toolkit.chat")

POLL_S = 0.25
"""Seconds after which the thread that passes tokens on checks that the other one still runs."""

PAGE_TOKENS = 32
"""Tokens in one page of the KV cache."""

STOP_S = 30.0
"""Seconds that the step in progress has at the end."""


class TokenStream:
    """The tokens of one sequence, as the event loop of its request sees them."""

    def __init__(self) -> None:
        self.latest: Any = None
        """The output of the last step; None: there was no step. It has all tokens so far."""
        self._loop = asyncio.get_running_loop()
        self._changed = asyncio.Event()

    def put(self, output: Any) -> None:
        """Take over an output. For other threads."""
        try:
            self._loop.call_soon_threadsafe(self._take, output)
        except RuntimeError:  # the event loop is closed, so no request waits
            logger.debug("a sequence has lost its event loop")

    def _take(self, output: Any) -> None:
        self.latest = output
        self._changed.set()

    async def next(self) -> Any:
        """Wait for an output that is newer than the last one, and return it."""
        await self._changed.wait()
        self._changed.clear()
        return self.latest


class BatchedDecoder:
    """Generates several sequences at the same time, each with its own length and sampling options."""

    def __init__(
        self, model: Any, defaults: Any, *, max_running: int, max_waiting: int, cache_tokens: int, max_batch_tokens: int
    ) -> None:
        """Start the threads.

        Parameters:
            model: A causal language model of transformers.
            defaults: The `GenerationConfig` of the model, with the ids of the tokens that end a sequence.
            max_running: Sequences that run at the same time.
            max_waiting: Sequences that wait. Further ones are refused.
            cache_tokens: Tokens of all running sequences in the KV cache.
            max_batch_tokens: Tokens of one step. A longer prompt is read in several steps.
        """
        end_tokens = -1 if defaults.eos_token_id is None else defaults.eos_token_id
        self._limit = max_running + max_waiting
        self._sequences: dict[str, TokenStream] = {}
        self._numbers = count()
        self._manager = model.init_continuous_batching(
            # Each request has options of its own, which the manager takes only if these differ from the neutral values.
            GenerationConfig(do_sample=True, temperature=0.5, top_k=1, top_p=0.5, eos_token_id=end_tokens),
            ContinuousBatchingConfig(
                page_size=PAGE_TOKENS,
                num_blocks=-(-cache_tokens // PAGE_TOKENS),
                max_batch_tokens=max_batch_tokens,
                max_requests_per_batch=max_running,
                per_request_processors=True,
                auto_switch_to_flash=False,
            ),
        )
        self._manager.start()
        self._dispatcher = threading.Thread(target=self._dispatch, name="app-toolkit-chat-tokens", daemon=True)
        self._dispatcher.start()

    @property
    def running(self) -> bool:
        """Whether sequences can be generated. False after `close`, or if a step has failed."""
        return bool(self._manager.is_running())

    def close(self) -> None:
        """End the threads after the step in progress. Sequences that are not complete fail."""
        if self._manager.is_running():
            self._manager.stop(block=True, timeout=STOP_S, hard_stop=True)
        self._dispatcher.join(STOP_S)

    async def decode(
        self, prompt: list[int], max_tokens: int, sampling: Mapping[str, float]
    ) -> AsyncGenerator[list[int], None]:
        """Yield the new tokens of a sequence, until one that ends it or `max_tokens`.

        If this generator is closed or cancelled, the sequence leaves at the next step.

        Parameters:
            prompt: Tokens of the prompt.
            max_tokens: Maximum number of new tokens.
            sampling: `temperature`, `top_k` and `top_p`.

        Raises:
            QueueFull: `max_waiting` sequences wait already.
            ChatError: The model does not run (503), or a step has failed (500).
        """
        if len(self._sequences) >= self._limit:
            raise QueueFull(f"{self._limit} sequences run or wait in this replica already")
        id = str(next(self._numbers))
        sequence = self._sequences[id] = TokenStream()
        finished = False
        try:
            if self._manager.add_request(prompt, id, max_tokens, streaming=True, **sampling) is None:
                raise ChatError("the model does not run", status=503, code="model_not_running")
            sent = 0
            while not finished:
                output = await sequence.next()
                finished = output is None or output.is_finished()
                if output is None or output.error is not None:
                    if output is not None:
                        logger.error("a sequence failed: %s", output.error)
                    raise ChatError("the model failed", status=500, code="model_failed")
                tokens, sent = output.generated_tokens[sent:], len(output.generated_tokens)
                if tokens:
                    yield tokens
        finally:
            del self._sequences[id]
            if not finished:
                self._manager.cancel_request(id)

    def _dispatch(self) -> None:
        """Pass outputs on to their sequences, until the manager has ended. Runs in a thread of its own."""
        while True:
            running = self._manager.is_running()
            output = self._manager.get_result(timeout=POLL_S)
            if output is not None:
                sequence = self._sequences.get(output.request_id)
                if sequence is not None:
                    sequence.put(output)
            elif not running:
                break
        for sequence in list(self._sequences.values()):
            sequence.put(None)
