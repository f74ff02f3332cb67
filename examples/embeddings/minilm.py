"""all-MiniLM-L6-v2 on the CPU, run by ONNX Runtime."""

import json

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from safetensors.numpy import load
from tokenizers import Tokenizer

from embeddings.bert import bert
from embeddings.weights import checked, folder

MAX_TOKENS = 256
"""Of one text, as the model's authors set it; what is longer is cut."""


class MiniLM:
    """Texts to vectors of length 1, whose dot product is their similarity."""

    def __init__(self, threads: int = 2) -> None:
        """`threads`: that compute. Raises `ValueError` where a file of the model is not the one that it is to be."""
        files = folder()
        self._tokenizer = Tokenizer.from_str(checked(files / "tokenizer.json").decode())
        self._tokenizer.enable_truncation(MAX_TOKENS)
        self._tokenizer.enable_padding()  # to the longest text of a batch
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        # Threads that spin while they wait take the cores from the event loops beside them.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        shape = json.loads(checked(files / "config.json"))
        graph = bert(
            load(checked(files / "model.safetensors")),
            layers=shape["num_hidden_layers"],
            heads=shape["num_attention_heads"],
            epsilon=shape["layer_norm_eps"],
        )
        self._session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])

    def __call__(self, texts: list[str]) -> NDArray[np.float32]:
        """A row of 384 for each text."""
        encoded = self._tokenizer.encode_batch(texts)
        inputs = {
            "tokens": np.array([each.ids for each in encoded], np.int32),
            "mask": np.array([each.attention_mask for each in encoded], np.int32),
        }
        (vectors,) = self._session.run(None, inputs)
        return vectors
