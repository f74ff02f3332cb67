"""Stored conversations with branches, attachments and approvals, while whatever carries them is killed."""

import asyncio
import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle
from pathlib import Path
from random import Random
from typing import Any

import httpx

from benchmarks.chaos.conversations_victim import (
    BUDGET,
    FRUGAL_AT_ONCE,
    FRUGAL_BUDGET,
    FRUGAL_KEY,
    KEY,
    PAY,
    TOKENS,
    WORDS,
    response_to,
)
from benchmarks.chaos.report import Row
from benchmarks.chaos.shared import killed
from benchmarks.chaos.system import System
from benchmarks.redis_server import RedisServer

VICTIM = Path(__file__).parent / "conversations_victim.py"
APP, LOG = "conversations", "stream-log"
SEED = 1
AGAIN_S = 0.2
"""Seconds until a client tries again."""
REPLIES_S = 120.0
"""Seconds in which a question must have a complete response."""
ATTACHED_BYTES = 20_000

Message = dict[str, Any]


class Unexpected(Exception):
    """The server did what a client of a stored conversation does not expect."""


@dataclass(slots=True)
class Response:
    """What a client has read of a response."""

    id: str = ""
    text: str = ""
    asks: bool = False
    """Whether it asks for an approval."""
    is_complete: bool = False


@dataclass(slots=True)
class Counts:
    """What all clients have seen."""

    sent: int = 0
    interrupted: int = 0
    resumed: int = 0
    """Responses that a client has read to their ends over another connection."""
    problems: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Turn:
    """A message of the user, and the complete response to it that the client has shown last."""

    question: Message
    response: Response


class Chat:
    """A client that remembers what it has sent and read, as the page of a chat does."""

    def __init__(self, http: httpx.AsyncClient, prefix: str, id: str, rng: Random, counts: Counts) -> None:
        self.id = id
        self.questions: dict[str, tuple[Message, str | None]] = {}
        """The messages of the user that the server has answered, each with the id of its parent."""
        self.responses: dict[str, tuple[str, str]] = {}
        """The texts of the responses that were read to their ends, each with the id of its question."""
        self.approved: dict[str, int] = {}
        """How often the answer to each request for an approval was sent, by the id of the call."""
        self.denied: set[str] = set()
        self.files: dict[str, str] = {}
        """The hashes of the files that were uploaded, by their addresses."""
        self._http = http
        self._prefix = prefix
        self._rng = rng
        self._counts = counts
        self._branch: list[Turn] = []
        self._made = 0

    async def converse(self, turns: int) -> None:
        """Ask, edit, ask for another response, attach a file, and approve or deny."""
        await self._ask(self._question("hello"))
        for _ in range(turns - 1):
            match self._rng.choice(("ask", "ask", "attach", "edit", "again", "approve", "deny")):
                case "ask":
                    await self._ask(self._question("tell me"))
                case "attach":
                    await self._ask(await self._with_file(self._question("read it")))
                case "edit":
                    at = self._rng.randrange(len(self._branch))
                    edited, self._branch = self._branch[at].question, self._branch[:at]
                    await self._ask(self._question("rather"), messageId=edited["id"])
                case "again":
                    question = self._branch.pop().question
                    if self.read_by_the_model(question).startswith(PAY):
                        await self._pay(question, approved=True)
                    else:
                        await self._ask(question)
                case "approve":
                    await self._pay(self._question(PAY), approved=True)
                case "deny":
                    await self._pay(self._question(PAY), approved=False)

    async def _pay(self, question: Message, *, approved: bool) -> None:
        asking = await self._until_answered(question)
        if not asking.asks:
            raise Unexpected("a response did not ask for an approval")
        message = await self._stored(asking.id)
        *parts, call = message["parts"]
        call = {**call, "state": "approval-responded", "approval": {**call["approval"], "approved": approved}}
        if approved:
            self.approved[call["toolCallId"]] = 0
        else:
            self.denied.add(call["toolCallId"])
        answer = {**message, "parts": [*parts, call]}
        async with asyncio.timeout(REPLIES_S):
            response = await self._answer(answer, call["toolCallId"])
        self._accept(question, response)

    async def _answer(self, answer: Message, call: str) -> Response:
        """Send the answer to a request for an approval, until the response is complete."""
        has_run = False
        while True:
            if call in self.approved and not has_run:
                self.approved[call] += 1
            response = await self._send({"id": self.id, "message": answer})
            if response is None or not response.is_complete:
                response = await self._resumed()
            if response is not None and response.is_complete and response.text:
                return Response(answer["id"], response.text, is_complete=True)
            stored = await self._stored(answer["id"])
            if is_complete(stored) and text_of(stored):
                return Response(stored["id"], text_of(stored), is_complete=True)
            if any(part.get("state") in ("output-available", "output-denied") for part in stored["parts"]):
                answer, has_run = stored, True  # the model continues with the result
            await asyncio.sleep(AGAIN_S)

    async def _ask(self, question: Message, **fields: str) -> None:
        self._accept(question, await self._until_answered(question, **fields))

    def _accept(self, question: Message, response: Response) -> None:
        self._branch.append(Turn(question, response))
        expected = response_to([self.read_by_the_model(turn.question) for turn in self._branch])
        # A response after an approval follows what was stored of an interrupted one.
        if not response.text.endswith(expected):
            self._counts.problems.append(f"{self.id}: a response is not that to its branch")
        self.responses[response.id] = (response.text, question["id"])

    async def _until_answered(self, question: Message, **fields: str) -> Response:
        parent = self._branch[-1].response.id if self._branch else None
        self.questions.setdefault(question["id"], (question, parent))
        # A page sends all messages that it shows, so that the server finds the one that the question follows.
        shown = [{"id": turn.response.id, "role": "assistant", "parts": []} for turn in self._branch[-1:]]
        body = {"id": self.id, "messages": [*shown, question], **fields}
        async with asyncio.timeout(REPLIES_S):
            while True:
                response = await self._send(body)
                if response is None or not response.is_complete:
                    response = await self._resumed()
                if response is not None and response.is_complete:
                    return response
                with suppress(LookupError):
                    return await self._stored_response(question["id"])
                await asyncio.sleep(AGAIN_S)

    async def _send(self, body: Mapping[str, Any]) -> Response | None:
        """Return what was read of the response; None: it did not begin."""
        self._counts.sent += 1
        response = await self._read("POST", "/chat", json=body)
        if response is None or not response.is_complete:
            self._counts.interrupted += 1
        return response

    async def _resumed(self) -> Response | None:
        """Return the active response, read from its start; None: there is none, or it is an earlier one."""
        await self.conversation()  # no proxy accepts connections for a moment after the only one was killed
        response = await self._read("GET", f"/chat/{self.id}/stream")
        if response is not None and response.id in self.responses:  # its process has died, so that it has not ended
            return None
        if response is not None and response.is_complete:
            self._counts.resumed += 1
        return response

    async def _read(self, method: str, path: str, **fields: Any) -> Response | None:
        response = Response()
        with suppress(httpx.HTTPError):
            async with self._http.stream(method, f"{self._prefix}{path}", **fields) as answer:
                if answer.status_code in (204, 409, 502, 503):
                    return None
                if answer.status_code != 200:
                    raise Unexpected(f"{method} {path}: {answer.status_code} {(await answer.aread()).decode()[:200]}")
                async for line in answer.aiter_lines():
                    if line.startswith("data: {"):
                        add_part(response, json.loads(line.removeprefix("data: ")))
        return response if response.id else None

    async def conversation(self) -> dict[str, Message]:
        """Return all messages that the server has stored, by their ids."""
        while True:
            with suppress(httpx.HTTPError):
                answer = await self._http.get(f"{self._prefix}/conversations/{self.id}", params={"all": "true"})
                if answer.status_code == 200:
                    messages = answer.json()["messages"]
                    counted = Counter(message["id"] for message in messages)
                    if counted.total() != len(counted):
                        self._counts.problems.append(f"{self.id}: two messages have one id")
                    return {message["id"]: message for message in messages}
                if answer.status_code == 404:
                    return {}
            await asyncio.sleep(AGAIN_S)

    async def _stored(self, id: str) -> Message:
        """Return a stored message. Raises `LookupError`."""
        return (await self.conversation())[id]

    async def _stored_response(self, question: str) -> Response:
        """Return the newest complete response to a question that the client has not read. Raises `LookupError`."""
        messages = await self.conversation()
        for message in reversed(messages.values()):
            if message["parent_id"] == question and message["id"] not in self.responses and is_complete(message):
                asks = any(part.get("state") == "approval-requested" for part in message["parts"])
                return Response(message["id"], text_of(message), asks, True)
        raise LookupError(question)

    def _question(self, text: str) -> Message:
        self._made += 1
        number = f"{self.id}-{self._made}"
        return {"id": f"u-{number}", "role": "user", "parts": [{"type": "text", "text": f"{text} {number}"}]}

    async def _with_file(self, question: Message) -> Message:
        """Upload a file, and return the message with it."""
        content, media_type = self._rng.randbytes(ATTACHED_BYTES).hex(), "text/plain"
        file = {"file": ("file.txt", content, media_type)}
        async with asyncio.timeout(REPLIES_S):
            while True:
                with suppress(httpx.HTTPError):
                    answer = await self._http.post(f"{self._prefix}/files", files=file)
                    if answer.status_code == 201:
                        break
                    if answer.status_code not in (502, 503):
                        raise Unexpected(f"an upload: {answer.status_code} {answer.text[:200]}")
                await asyncio.sleep(AGAIN_S)
        url = answer.json()["url"]
        self.files[url] = hashlib.sha256(content.encode()).hexdigest()
        part = {"type": "file", "mediaType": media_type, "filename": "file.txt", "url": url}
        return {**question, "parts": [*question["parts"], part]}

    def read_by_the_model(self, question: Message) -> str:
        """Return what the model of the victim reads of a message of the user."""
        return " ".join(
            part["text"] if part["type"] == "text" else self.files.get(part["url"], "") for part in question["parts"]
        )


def add_part(response: Response, part: Mapping[str, Any]) -> None:
    """Add a part of a UI message stream to what was read."""
    match part["type"]:
        case "start":
            response.id = part["messageId"]
        case "text-delta":
            response.text += part["delta"]
        case "tool-approval-request":
            response.asks = True
        case "finish":
            response.is_complete = True


def is_complete(message: Message) -> bool:
    return not (message.get("metadata") or {}).get("incomplete")


def text_of(message: Message) -> str:
    return "".join(part["text"] for part in message["parts"] if part["type"] == "text")


async def conversations_are_struck(system: System, short: bool) -> list[Row]:
    count, turns, every_s = (12, 4, 3.0) if short else (100, 8, 1.5)
    redis = RedisServer(system.ledger.path.parent)
    await asyncio.to_thread(redis.start)
    try:
        async with system.deployed(LOG, "log", file=VICTIM) as log, system.deployed(APP, "app", file=VICTIM) as app:
            return await _converse(app, log, count, turns, every_s)
    finally:
        redis.kill()


async def _converse(app: System, log: System, count: int, turns: int, every_s: float) -> list[Row]:
    counts = Counts()
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
    host, port = app.address
    async with httpx.AsyncClient(
        base_url=f"http://{host}:{port}", headers=bearer(KEY), limits=limits, timeout=30
    ) as http:
        chats = [Chat(http, app.prefix, f"chat-{number}", Random(SEED + number), counts) for number in range(count)]
        conversing = [asyncio.create_task(chat.converse(turns)) for chat in chats]
        killing = asyncio.create_task(_kill_again_and_again(app, log, every_s))
        try:
            spending = asyncio.create_task(_spend_all(http, app.prefix))
            ended = await asyncio.gather(*conversing, return_exceptions=True)
            frugal = await spending
        finally:
            killing.cancel()
            kills = await killing
        stored = [await chat.conversation() for chat in chats]
        counted = await _spent(http, app.prefix)
    failed = [error for error in ended if error is not None]
    for problem in [*(f"{type(error).__name__}: {error}" for error in failed), *counts.problems][:20]:
        print(problem)
    faults = Counter[str]()
    for chat, messages in zip(chats, stored, strict=True):
        faults += faults_of(chat, messages)
    approved = {call: sent for chat in chats for call, sent in chat.approved.items()}
    executed = app.ledger.of(approved)
    (written,) = (entry.chunks for entry in app.ledger.of([TOKENS]).values())
    reported = sum(tokens_of(message) for messages in stored for message in messages.values() if is_complete(message))
    questions = sum(len(chat.questions) for chat in chats)
    responses = sum(len(chat.responses) for chat in chats)
    return [
        Row("conversations that did not end", len(failed), 0, saw=f"{count} conversations, {questions} questions"),
        *(Row(fault, faults[fault], 0) for fault in FAULTS),
        Row("responses to another branch, and messages with the same id", len(counts.problems), 0),
        Row("approved calls that did not run", len(approved) - len(executed), 0, saw=f"{len(approved)} calls"),
        Row(
            "approved calls that ran more often than their answers were sent",
            sum(entry.starts > approved[call] for call, entry in executed.items()),
            0,
        ),
        Row("denied calls that ran", len(app.ledger.of(call for chat in chats for call in chat.denied)), 0),
        Row("tokens of complete responses that no budget has counted", max(0, reported - counted), 0),
        Row(
            "tokens that the budgets have counted although no model has written them",
            max(0, counted + frugal - written),
            0,
            saw=f"{written:,} written, {counted + frugal:,} counted, {reported:,} of complete responses",
        ),
        Row(
            f"tokens beyond a budget of {FRUGAL_BUDGET}, with {FRUGAL_AT_ONCE} requests at a time",
            frugal - FRUGAL_BUDGET,
            FRUGAL_AT_ONCE * (WORDS + 1),
        ),
        Row(
            "kills",
            kills.total(),
            1,
            at_least=True,
            saw=", ".join(f"{number} of {name}" for name, number in sorted(kills.items())),
        ),
        Row(
            "requests whose response was interrupted",
            counts.interrupted,
            1,
            at_least=True,
            saw=f"{counts.sent:,} requests, {responses} complete responses, {counts.resumed} of them resumed",
        ),
    ]


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def tokens_of(message: Message) -> int:
    """Return the tokens of a response that is stored, as its model has reported them."""
    usage = (message.get("metadata") or {}).get("usage") or {}
    return int(usage.get("inputTokens", 0)) + int(usage.get("outputTokens", 0))


def _text(prompt: str) -> dict[str, Any]:
    """Return the request for a response that is not stored."""
    return {"messages": [{"id": "1", "role": "user", "parts": [{"type": "text", "text": prompt}]}]}


async def _spent(http: httpx.AsyncClient, prefix: str) -> int:
    """Return the tokens that the key of the conversations has used."""
    async with asyncio.timeout(REPLIES_S):
        while True:
            with suppress(httpx.HTTPError):
                answer = await http.post(f"{prefix}/chat/text", json=_text("how many?"))
                if answer.status_code == 200:
                    return BUDGET - int(answer.headers["x-ratelimit-remaining-tokens"])
            await asyncio.sleep(AGAIN_S)


async def _spend_all(http: httpx.AsyncClient, prefix: str) -> int:
    """Use up the budget of the other key. Return the tokens that it has used when all requests are refused."""

    async def spend() -> int:
        while True:
            with suppress(httpx.HTTPError):
                answer = await http.post(f"{prefix}/chat/text", json=_text("spend"), headers=bearer(FRUGAL_KEY))
                if answer.headers.get("x-should-retry") == "false":
                    return int(re.sub(r"\D", "", answer.text.partition("tokens")[0]))
            await asyncio.sleep(AGAIN_S)

    await asyncio.gather(*(spend() for _ in range(2 * FRUGAL_AT_ONCE)))
    return await spend()


LOST, DOUBLE, CHANGED, MISPLACED, WRONG = FAULTS = (
    "messages of users that were lost",
    "messages of users that were stored twice",
    "messages of users whose text or file is another one",
    "messages of users in another branch",
    "complete responses that are lost, changed, or in another branch",
)


def faults_of(chat: Chat, messages: Mapping[str, Message]) -> Counter[str]:
    """Compare what a client has sent and read with what the server has stored."""
    faults = Counter[str]()
    faults[DOUBLE] = sum(message["role"] == "user" and id not in chat.questions for id, message in messages.items())
    for id, (question, parent) in chat.questions.items():
        if (message := messages.get(id)) is None:
            faults[LOST] += 1
            continue
        faults[CHANGED] += chat.read_by_the_model(message) != chat.read_by_the_model(question)
        faults[MISPLACED] += message["parent_id"] != parent
    for id, (text, question_id) in chat.responses.items():
        message = messages.get(id)
        faults[WRONG] += (
            message is None
            or not text_of(message).endswith(text)
            or message["parent_id"] != question_id
            or not is_complete(message)
        )
    return +faults


async def _kill_again_and_again(app: System, log: System, every_s: float) -> Counter[str]:
    """Kill one process after the other until the task is cancelled. Return how many of each kind."""
    rng, kills = Random(SEED), Counter[str]()
    choices: dict[str, Callable[[], dict[str, int]]] = {
        "a replica of the router": partial(app.replicas, "app"),
        "a replica of the model": partial(app.replicas, "writer"),
        "the proxy": app.proxies,
        "the log": partial(log.replicas, LOG),
    }
    with suppress(asyncio.CancelledError):
        for name, running in cycle(choices.items()):
            await asyncio.sleep(every_s)
            if pids := await asyncio.to_thread(running):
                await killed(rng.choice(sorted(pids.values())))
                kills[name] += 1
    return kills
