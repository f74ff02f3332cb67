"""What type checkers are to say of deployments. Where they are to complain, a comment ignores it, and has to."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, Generic, TypeVar, assert_type

from fastapi import Depends
from pydantic import BaseModel

from app_toolkit import Deployment, Split, Toolkit, deployment, options, split
from app_toolkit.declare.deployment import Bound

T = TypeVar("T")


class Writer(Deployment, num_replicas=2, max_ongoing_requests=64, resources={"num_gpus": 0.5}):
    def __init__(self, model: str, *, words: int = 100) -> None:
        self.model = model

    async def write(self, prompt: str) -> str:
        return prompt


class Front(Deployment, retry="all", user_config={"tone": "dry"}):
    def __init__(self, writer: Writer) -> None:
        self.writer = writer


class Misspelt(Deployment, num_replica=2): ...  # type: ignore[call-arg]


class OfAnotherType(Deployment, num_replicas="two"): ...  # type: ignore[arg-type]


class OfAnotherWord(Deployment, retry="never"): ...  # type: ignore[arg-type]


class MisspeltWithin(Deployment, resources={"gpus": 1}): ...  # type: ignore[typeddict-unknown-key]


class Scaled(Deployment, num_replicas="auto", autoscaling_config={"max_replicas": 3}): ...


class MisspeltBound(Deployment, autoscaling_config={"most_replicas": 3}): ...  # type: ignore[arg-type]


class MisspeltLimit(Deployment, batch={"embed": {"batch_size": 1}}): ...  # type: ignore[typeddict-unknown-key]


class OfIngresses(Deployment, max_open_websockets=1): ...  # type: ignore[call-arg]


# The arguments of `bind` are those of the constructor.
writer = Writer.bind("small", words=3)
assert_type(writer, Bound[Writer])
Writer.bind(3)  # type: ignore[arg-type]
Writer.bind()  # type: ignore[call-arg]
Writer.bind("small", word=3)  # type: ignore[call-arg]

# A handle is typed as the class, and what was bound is not.
assert_type(writer.handle, Writer)
assert_type(Front.bind(writer.handle), Bound[Front])
Front.bind(writer)  # type: ignore[arg-type]
writer.write("x")  # type: ignore[attr-defined]

# Options keep the constructor.
big = Writer.options(num_replicas=3, name="big")
assert_type(big.bind("x"), Bound[Writer])
assert_type(big.options(sync_threads=2).bind("x"), Bound[Writer])
big.bind(3)  # type: ignore[arg-type]
Writer.options(num_replica=3)  # type: ignore[call-arg]


# A class that cannot be subclassed.
class Foreign:
    def __init__(self, path: str) -> None: ...


assert_type(deployment(Foreign, num_replicas=2).bind("x"), Bound[Foreign])
deployment(Foreign).bind(3)  # type: ignore[arg-type]
deployment(Foreign, num_replica=2)  # type: ignore[call-arg]

# The class itself stays an ordinary one.
assert_type(Writer("tiny"), Writer)
assert_type(Writer("tiny").model, str)


@dataclass
class Layered(Deployment, num_replicas=2):
    path: str
    layers: int = 2


class Checked(Deployment, BaseModel, num_replicas=2):
    path: str


class Boxed(Deployment, Generic[T]):
    def __init__(self, value: T) -> None: ...


class Abstract(Deployment, ABC, num_replicas=2):
    @abstractmethod
    async def predict(self) -> int: ...


class Three(Abstract, num_replicas=3):
    async def predict(self) -> int:
        return 3


assert_type(Layered.bind("x", layers=3), Bound[Layered])
Layered.bind(3)  # type: ignore[arg-type]
assert_type(Checked.bind(path="x"), Bound[Checked])
Checked.bind(path=3)  # type: ignore[arg-type]
assert_type(Boxed[int].bind(3), Bound[Boxed[int]])
assert_type(Three.bind(), Bound[Three])

# A dependency of routes.
app = Toolkit(deployments=[writer])


@app.get("/")
async def reply(prompt: str, model: Annotated[Writer, Depends(writer)]) -> str:
    assert_type(await model.write(prompt), str)
    return await model.write(3)  # type: ignore[arg-type]


async def depended() -> None:
    assert_type(await writer(), Writer)
    await writer("x")  # type: ignore[call-arg]


Toolkit(deployments=[writer.handle])  # type: ignore[list-item]


# A split is typed as the class that its members have in common.
class Small(Writer): ...


class Large(Writer):
    async def more(self) -> int:
        return 1


small, large = Small.bind("small"), Large.bind("large")
one_class = split({small: 0.9, Small.bind("other"): 0.1}, name="one-class")
assert_type(one_class, Split[Small])
divided: Split[Writer] = split({small: 0.9, large: 0.1}, name="writer")
copied: Split[Writer] = split({small: 0.9, large: 0.1}, mirror={small: 0.5}, name="copied")
assert_type(divided.handle, Writer)
Front.bind(divided.handle)
divided.set_weights({large: 1})
divided.write("x")  # type: ignore[attr-defined]
split({small.handle: 1}, name="writer")  # type: ignore[arg-type]
split({small: "1"}, name="writer")  # type: ignore[dict-item]


async def inferred() -> None:
    both = split({small: 0.9, large: 0.1}, name="writer")
    assert_type(await both.handle.write("x"), str)
    await both.handle.more()  # type: ignore[attr-defined]


@app.get("/split")
async def divide(prompt: str, model: Annotated[Writer, Depends(divided)]) -> str:
    return await options(model, shard_key="user-7").write(prompt)
