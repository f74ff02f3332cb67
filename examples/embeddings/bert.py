"""A BERT sentence encoder as an ONNX graph, from its weights as `transformers` names them.

The nodes of the domain `com.microsoft` are ONNX Runtime's own: each is what would otherwise be a dozen.
"""

from collections.abc import Mapping

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper

OPSET = 17


def bert(weights: Mapping[str, np.ndarray], *, layers: int, heads: int, epsilon: float) -> bytes:
    """From `tokens` and `mask`, int32 of [texts, tokens], to `vectors`, float32 of [texts, width].

    A vector is the mean of a text's tokens, of length 1.
    """
    nodes: list[NodeProto] = []
    held: dict[str, np.ndarray] = {}

    def hold(name: str, value: np.ndarray) -> str:
        held[name] = np.ascontiguousarray(value)
        return name

    def weight(name: str) -> str:
        """What PyTorch multiplies with from the right, transposed, ONNX does from the left."""
        return hold(name, weights[name].T if weights[name].ndim == 2 else weights[name])

    def node(kind: str, inputs: list[str], output: str, domain: str = "com.microsoft", **attributes: object) -> str:
        nodes.append(helper.make_node(kind, inputs, [output], domain=domain, **attributes))
        return output

    def add_and_normalise(output: str, dense: str, norm: str, x: str, skipped: str) -> str:
        """LayerNorm(x W + b + skipped)"""
        product = node("MatMul", [x, weight(f"{dense}.weight")], f"{output}/product", "")
        inputs = [product, skipped, weight(f"{norm}.weight"), weight(f"{norm}.bias"), weight(f"{dense}.bias")]
        return node("SkipLayerNormalization", inputs, output, epsilon=epsilon)

    # Every token is of type 0, so its type's embedding can be a part of its position's.
    position = weights["embeddings.position_embeddings.weight"] + weights["embeddings.token_type_embeddings.weight"][0]
    embedded = [
        "tokens",
        "",
        hold("words", weights["embeddings.word_embeddings.weight"]),
        hold("positions", position),
        "",
        weight("embeddings.LayerNorm.weight"),
        weight("embeddings.LayerNorm.bias"),
    ]
    nodes.append(
        helper.make_node("EmbedLayerNormalization", embedded, ["embedded", ""], domain="com.microsoft", epsilon=epsilon)
    )
    x = "embedded"
    for number in range(layers):
        layer = f"encoder.layer.{number}"
        three = [f"{layer}.attention.self.{name}" for name in ("query", "key", "value")]
        projection = hold(f"{layer}.qkv", np.concatenate([weights[f"{name}.weight"].T for name in three], axis=1))
        bias = hold(f"{layer}.qkv.bias", np.concatenate([weights[f"{name}.bias"] for name in three]))
        attended = node("Attention", [x, projection, bias, "mask"], f"{layer}/attended", num_heads=heads)
        dense = f"{layer}.attention.output"
        x = add_and_normalise(f"{layer}/attention", f"{dense}.dense", f"{dense}.LayerNorm", attended, x)
        wide = node("MatMul", [x, weight(f"{layer}.intermediate.dense.weight")], f"{layer}/wide", "")
        active = node("BiasGelu", [wide, weight(f"{layer}.intermediate.dense.bias")], f"{layer}/active")
        x = add_and_normalise(f"{layer}/output", f"{layer}.output.dense", f"{layer}.output.LayerNorm", active, x)
    # The sum of a text's tokens: as long as it is divided by its length, it may be the mean as well.
    mask = node("Cast", ["mask"], "mask/float", "", to=TensorProto.FLOAT)
    mask = node("Unsqueeze", [mask, hold("axis", np.array([1]))], "mask/row", "")
    total = node("Squeeze", [node("MatMul", [mask, x], "totals", ""), "axis"], "total", "")
    node("LpNormalization", [total], "vectors", "", axis=-1, p=2)

    graph = helper.make_graph(
        nodes,
        "bert",
        [helper.make_tensor_value_info(name, TensorProto.INT32, ["texts", "tokens"]) for name in ("tokens", "mask")],
        [helper.make_tensor_value_info("vectors", TensorProto.FLOAT, ["texts", position.shape[1]])],
        [numpy_helper.from_array(value, name) for name, value in held.items()],
    )
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()
