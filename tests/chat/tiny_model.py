"""A tiny language model with random weights, and its tokenizer, as they would be on the hub. Nothing is downloaded."""

from pathlib import Path
from typing import Any

import pytest

REASON = "torch and transformers are not installed: pip install 'app-toolkit[transformers]'"
torch: Any = pytest.importorskip("torch", reason=REASON)
transformers: Any = pytest.importorskip("transformers", reason=REASON)
tokenizers: Any = pytest.importorskip("tokenizers", reason=REASON)

WORDS = [f"w{number}" for number in range(200)]
VOCABULARY = {word: number for number, word in enumerate(["<end>", "system", "user", "assistant", *WORDS])}

CONTEXT = 256
"""Tokens that the model can read."""

TEMPLATE = (
    "{% for m in messages %}"
    "{% if m.role == 'tool' %}{{ raise_exception('there is no role tool') }}{% endif %}"
    "{{ m.role }} {{ m.content }} "
    "{% endfor %}assistant"
)


def tiny_model() -> Any:
    torch.manual_seed(7)
    config = transformers.LlamaConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        eos_token_id=0,
        bos_token_id=None,
        pad_token_id=0,
        initializer_range=0.5,
    )
    return transformers.LlamaForCausalLM(config).eval()


def tiny_tokenizer() -> Any:
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(VOCABULARY, unk_token="<end>"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<end>")
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def save(folder: Path, end_token: int = 0) -> None:
    """Write the model and its tokenizer to a folder."""
    model = tiny_model()
    model.generation_config.eos_token_id = [end_token]
    model.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)


REFERENCE = tiny_model()
"""Made before any other model runs, because its weights and all samples are drawn from torch's global generator."""


def alone(prompt: list[int], length: int) -> list[int]:
    """What transformers itself generates for a prompt, with the most probable tokens."""
    output = REFERENCE.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=length)
    return [int(token) for token in output[0, len(prompt) :]]
