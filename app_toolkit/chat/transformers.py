"""`Transformers`: a chat model of Hugging Face in the replica itself. It needs the extra `transformers`."""

import asyncio
import threading
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any

from app_toolkit import ChatError, ConfigError, Deployment
from app_toolkit.chat.protocol import ChatEvent, ChatRequest, FinishEvent, TextEvent, UsageEvent
from app_toolkit.chat.stop_strings import StopStrings
from app_toolkit.chat.token_text import TokenText

MIN_TEMPERATURE = 0.01
"""Lower temperatures choose the most probable token. A division by them would overflow."""

MAX_TEMPERATURE = 100.0

LIMITS = {"max_running": 1, "max_waiting": 0, "cache_tokens": 64, "max_batch_tokens": 16}
"""The minimum of each option."""


class Transformers(
    Deployment,
    name="transformers",
    max_ongoing_requests=64,
    max_open_streams=0,  # a response occupies the model until its end
    startup_timeout_s=900.0,
    health_check_timeout_s=30.0,
):
    """A chat model of Hugging Face Transformers, which runs in the replica, on its CPUs or its GPU.

    ```python
    model = Transformers.options(resources={"num_gpus": 1}).bind("Qwen/Qwen3-0.6B")
    ```

    Requests are batched continuously: a request joins at the next step of the model, and leaves as soon as it is
    complete or cancelled. The model runs in a thread of its own.
    """

    def __init__(
        self,
        model_id: str,
        *,
        revision: str = "main",
        device: str | None = None,
        dtype: str = "auto",
        attn_implementation: str | None = None,
        max_running: int = 8,
        max_waiting: int = 64,
        cache_tokens: int = 16_384,
        max_batch_tokens: int = 512,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        """Load the model.

        Parameters:
            model_id: Name of a model on the Hugging Face Hub, or a folder.
            revision: Branch, tag or commit on the Hub. Default: `main`.
            device: `cpu`, `cuda`, and so on. Default: the GPU if there is one.
            dtype: Data type of the weights, such as `bfloat16`. Default: `auto`, the one in the model's files.
            attn_implementation: Implementation of attention: `sdpa`, `paged|eager` or `flash_attention_2`. Default: the
                model's.
            max_running: Requests that run at the same time. Default: 8.
            max_waiting: Requests that wait. Further ones get 503. Default: 64.
            cache_tokens: Tokens of all running requests together in the KV cache, and the limit of a single request
                (prompt and response) unless that of the model is lower. Default: 16,384.
            max_batch_tokens: Tokens that one step reads. A longer prompt is read in several steps. Default: 512.
            chat_template_kwargs: Options of the model's chat template, such as `{"enable_thinking": False}`.
                Default: none.

        Raises:
            ConfigError: An option is out of bounds, the model has no chat template, or the package transformers is not
                installed.
        """
        options = _checked(
            max_running=max_running,
            max_waiting=max_waiting,
            cache_tokens=cache_tokens,
            max_batch_tokens=max_batch_tokens,
        )
        try:
            from app_toolkit.chat import decoding
        except ImportError as error:
            raise ConfigError(
                "Transformers needs the packages torch and transformers: pip install 'app-toolkit[transformers]'"
            ) from error
        self._model_id = model_id
        self._tokenizer = _load_tokenizer(model_id, revision)
        self._encoding = threading.Lock()  # a tokenizer must not encode in two threads at the same time
        model = _load_model(model_id, device, revision=revision, dtype=dtype, attn_implementation=attn_implementation)
        config = model.config.get_text_config()
        self._defaults = model.generation_config
        end_tokens = self._defaults.eos_token_id
        self._end_tokens = frozenset(end_tokens if isinstance(end_tokens, list) else [end_tokens])
        self._vocabulary = int(config.vocab_size)
        self._context_length = min(cache_tokens, getattr(config, "max_position_embeddings", None) or cache_tokens)
        self._template_kwargs = dict(chat_template_kwargs or {})
        self._decoder = decoding.BatchedDecoder(model, self._defaults, **options)

    async def check_health(self) -> None:
        """Raise `RuntimeError` if the model does not run any more, so that the replica is replaced."""
        if not self._decoder.running:
            raise RuntimeError(f"the model {self._model_id} does not run any more")

    async def aclose(self) -> None:
        """End the threads of the model."""
        await asyncio.to_thread(self._decoder.close)

    async def count_tokens(self, request: ChatRequest) -> int:
        """Return the number of tokens of the prompt. Raises `ChatError` if the model cannot read the request."""
        _check_supported(request)
        return len(await asyncio.to_thread(self._prompt, request))

    async def chat(self, request: ChatRequest) -> AsyncGenerator[ChatEvent, None]:
        """Yield the response. `seed` has no effect, because all requests share one generator of random numbers.

        Raises:
            ChatError: The request needs what the model cannot do (400), or the prompt is too long (400).
            QueueFull: `max_waiting` requests wait already (503).
        """
        _check_supported(request)
        sampling = self._sampling(request)
        # In a thread, because the template and the tokenizer take long for a long conversation.
        prompt = await asyncio.to_thread(self._prompt, request)
        room = self._context_length - len(prompt)
        if room < 1:
            raise ChatError(
                f"the prompt has {len(prompt):,} tokens: the model can read {self._context_length - 1:,}",
                code="context_length_exceeded",
            )
        max_tokens = min(room, request.max_tokens or self._defaults.max_new_tokens or room)
        text, stop = TokenText(partial(self._tokenizer.decode, skip_special_tokens=True)), StopStrings(request.stop)
        generated, ended = 0, False
        async with aclosing(self._decoder.decode(prompt, max_tokens, sampling)) as batches:
            async for tokens in batches:
                for token in tokens:
                    generated, ended = generated + 1, token in self._end_tokens
                    if not ended and (part := stop.add(text.add(token))):
                        yield TextEvent(part)
                    if stop.stopped:
                        break
                if stop.stopped:
                    break
        if not stop.stopped and (part := stop.add(text.end()) + stop.end()):
            yield TextEvent(part)
        yield UsageEvent(len(prompt), generated)
        yield FinishEvent("stop" if stop.stopped or ended else "length", stop.match)

    def _prompt(self, request: ChatRequest) -> list[int]:
        from jinja2 import TemplateError

        messages = [
            {"role": message.role, "content": message.text}
            # The templates of models that reason read it under this name, and others ignore it.
            | ({"reasoning_content": message.reasoning} if message.reasoning else {})
            for message in request.messages
        ]
        with self._encoding:
            try:
                text = self._tokenizer.apply_chat_template(
                    messages, add_generation_prompt=True, tokenize=False, **self._template_kwargs
                )
            except TemplateError as error:
                raise ChatError(f"the model's chat template refuses the messages: {error}") from error
            return list(self._tokenizer(text, add_special_tokens=False)["input_ids"])

    def _sampling(self, request: ChatRequest) -> dict[str, float]:
        """Return the sampling options of a request; those that it does not set are the model's."""
        defaults = self._defaults
        temperature, top_p = request.temperature, request.top_p
        if temperature is not None and not 0 <= temperature <= MAX_TEMPERATURE:
            raise ChatError(f"temperature is {temperature}: it must be from 0 to {MAX_TEMPERATURE:g}")
        if top_p is not None and not 0 <= top_p <= 1:
            raise ChatError(f"top_p is {top_p}: it must be from 0 to 1")
        if temperature is None:
            temperature = (defaults.temperature or 1.0) if defaults.do_sample else 0.0
        if temperature < MIN_TEMPERATURE:
            return {"temperature": 1.0, "top_k": 1, "top_p": 1.0}
        top_p = defaults.top_p if top_p is None else top_p
        top_k = min(defaults.top_k or self._vocabulary, self._vocabulary)
        return {"temperature": float(temperature), "top_k": top_k, "top_p": 1.0 if top_p is None else float(top_p)}


def _checked(**options: int) -> dict[str, int]:
    """Return the options. Raises `ConfigError` for one below its minimum."""
    for name, value in options.items():
        if value < LIMITS[name]:
            raise ConfigError(f"Transformers: {name} = {value!r}: must be at least {LIMITS[name]}")
    return options


def _check_supported(request: ChatRequest) -> None:
    """Raise `ChatError` if a request needs what this model would silently ignore."""
    if request.continue_from is not None:
        raise ChatError("this model cannot continue a response", code="continue_not_supported")
    if any(message.attachments for message in request.messages):
        raise ChatError("this model reads text only", code="attachments_not_supported")
    if (request.tools and request.tool_choice != "none") or any(message.tool_calls for message in request.messages):
        raise ChatError("this model calls no tools", code="tools_not_supported")
    kind = (request.response_format or {}).get("type", "text")
    if kind != "text":
        raise ChatError(f"this model cannot write in the format {kind!r}", code="response_format_not_supported")


def _load_tokenizer(model_id: str, revision: str) -> Any:
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(model_id, revision=revision, trust_remote_code=False)
    if tokenizer.chat_template is None:
        raise ConfigError(f"Transformers: the tokenizer of {model_id} has no chat template")
    return tokenizer


def _load_model(model_id: str, device: str | None, **options: Any) -> Any:
    """Load a model. It runs no code of the model's authors, and reads no pickled weights, which could have some."""
    import torch
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(
        model_id, use_safetensors=True, trust_remote_code=False, **options
    )
    if device is None:
        device = torch.accelerator.current_accelerator().type if torch.accelerator.is_available() else "cpu"
    return model.to(device)
