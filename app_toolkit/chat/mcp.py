"""Tools of MCP servers, which a chain runs for its model."""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, TypeVar, get_args

from app_toolkit import ChatError, ConfigError
from app_toolkit.chat.chain import Chain, Source, ask, result_message, usage_sum
from app_toolkit.chat.events import EventChecker, checked
from app_toolkit.chat.protocol import (
    ApprovalRequest,
    ChatEvent,
    ChatMessage,
    ChatRequest,
    FinishEvent,
    OptionalEvent,
    ReasoningEvent,
    TextEvent,
    Tool,
    ToolCall,
    ToolCallEvent,
    ToolResultEvent,
    UsageEvent,
)

logger = logging.getLogger("app_toolkit.chat")

Result = TypeVar("Result")

CLOSE_S = 10.0
"""Seconds that a server may take to end."""

LOST = frozenset({-32000, -32600})
"""The codes of the errors of the SDK after which a connection serves no further call: it is closed, or its session has
ended.
"""

McpServer = str | Sequence[str] | Callable[[], Any]
"""The URL of a server, a command that speaks over its standard streams, or a function that returns a transport of the
SDK.
"""


Approve = Collection[str] | Callable[[ToolCall], bool]
"""The names of the tools whose calls the user has to approve, or a function that returns whether a call is one."""


def with_mcp_tools(model: Source, servers: "McpServers", *, max_rounds: int = 8, approve: Approve = ()) -> Chain:
    """Return a model that can call the tools of MCP servers.

    The chain runs the calls and calls the model again with their results, until the model calls none of these tools.
    Clients get the calls with `executed=True`, and the results. A call of a tool of the client ends the response, as
    without the chain. If the client leaves, the calls that run are cancelled on their servers.

    Parameters:
        model: The model.
        servers: The servers. The chain does not close them.
        max_rounds: Maximum number of times that the model may call tools for one response. After that it is called
            with the `tool_choice` `none`. If it still calls a tool, the result is an error, and the response ends with
            the reason `length`.
        approve: The names that tools have for the model, such as `shop_pay`, whose calls the user has to approve, or a
            function that returns whether a call is one. Such a call is an `ApprovalRequest`, which ends the response.
            The chain runs it when it is in `approved_calls`. Default: none.

    Raises:
        ConfigError: `max_rounds` is below 1, or `approve` is a string.
    """
    if max_rounds < 1:
        raise ConfigError(f"with_mcp_tools: max_rounds = {max_rounds!r}: must be 1 or above")
    if isinstance(approve, str):
        raise ConfigError(f"with_mcp_tools: approve is the string {approve!r}: pass a list of names")
    names = None if callable(approve) else frozenset(approve)
    needs_approval = approve if callable(approve) else lambda call: call.name in approve

    async def chat(request: ChatRequest) -> AsyncGenerator[ChatEvent, None]:
        tools = await servers.tools()

        async def results_of(calls: Iterable[ToolCall]) -> list[ToolResultEvent]:
            async with asyncio.TaskGroup() as group:
                running = [group.create_task(_result(tools.get(call.name), call)) for call in calls]
            return [task.result() for task in running]

        others = tuple(tool for tool in request.tools if tool.name not in tools)
        of_client = frozenset(tool.name for tool in others)
        request = replace(request, tools=(*others, *(tool.described for tool in tools.values())))
        approved = tuple(call for call in request.approved_calls if call.name in tools)
        if approved:
            approved_results = await results_of(approved)
            for result in approved_results:
                yield result
            request = replace(
                request,
                messages=with_results(request.messages, approved, approved_results),
                approved_calls=tuple(call for call in request.approved_calls if call.name not in tools),
                tool_choice=None,
            )
        usage: UsageEvent | None = None
        count = 0  # of the calls of all rounds
        for rounds_left in reversed(range(max_rounds + 1)):
            held_back = tools.keys() if names is None else names & tools.keys()
            if not rounds_left:
                request, held_back = replace(request, tool_choice="none"), frozenset()
            step = Step(request, of_client, held_back, count, usage)
            async with aclosing(step.events(model)) as events:
                async for event in events:
                    yield event
            usage, count = step.usage, count + len(step.calls)
            asked = step.asked
            if step.finish is None:
                return  # the model has failed
            if not asked:
                yield step.finish
                return
            if not rounds_left:
                for call in asked:
                    yield ToolResultEvent(call.id, f"the limit of {max_rounds} rounds of calls is reached", True)
                yield FinishEvent("length")
                return
            waiting = [call for call in asked if call.name in held_back and needs_approval(call)]
            running = [call for call in asked if call not in waiting]
            for call in running:
                if call.name in held_back:
                    yield step.whole(call)
            new_results = await results_of(running)
            for result in new_results:
                yield result
            for call in waiting:
                yield ApprovalRequest(call)
            results = {result.id: result for result in (*step.results, *new_results)}
            unanswered = sum(call.id not in results for call in step.calls)
            if unanswered:
                yield FinishEvent("tool_calls" if unanswered > len(waiting) else "stop")  # of tools of the client
                return
            by_model = [call for call in request.approved_calls if call.id in results]
            messages = with_results(request.messages, by_model, (results[call.id] for call in by_model))
            messages += tuple(step.messages(results))
            request = replace(request, messages=messages, approved_calls=(), tool_choice=None)

    return Chain((model,), chat)


def with_results(
    messages: Sequence[ChatMessage], calls: Sequence[ToolCall], results: Iterable[ToolResultEvent]
) -> tuple[ChatMessage, ...]:
    """Return messages with further calls in the last message of the model, and their results."""
    if not calls:
        return tuple(messages)
    answered = tuple(map(result_message, results))
    index = len(messages)
    while index and messages[index - 1].role == "tool":
        index -= 1
    if index and messages[index - 1].role == "assistant":
        last = messages[index - 1]
        called = replace(last, tool_calls=(*last.tool_calls, *calls))
        return (*messages[: index - 1], called, *messages[index:], *answered)
    return (*messages, ChatMessage("assistant", tool_calls=tuple(calls)), *answered)


class Step:
    """One call of the model, and what it has yielded."""

    def __init__(
        self,
        request: ChatRequest,
        of_client: Collection[str],
        held_back: Collection[str],
        first_index: int,
        usage: UsageEvent | None,
    ) -> None:
        """Prepare a call.

        Parameters:
            of_client: The names of the tools of the client. The chain runs the calls of all others.
            held_back: The names of the tools whose calls may need an approval. They are yielded with their result, if
                the model has run them itself.
            first_index: The index of the first tool call for clients.
            usage: What the earlier calls of the model have cost.
        """
        self._request = request
        self._of_client = of_client
        self._held_back = held_back
        self._first_index = first_index
        self.usage = usage
        self.calls: list[ToolCall] = []
        self.results: list[ToolResultEvent] = []
        """Of the tools that the model has run itself."""
        self.finish: FinishEvent | None = None
        """How the model has stopped. None: it has failed, or not stopped yet."""
        self._text: list[str] = []
        self._reasoning: list[str] = []

    async def events(self, model: Source) -> AsyncGenerator[ChatEvent, None]:
        """Call the model, and yield its events without the last one."""
        earlier = self.usage
        arguments: list[list[str]] = []
        used = [call.id for message in self._request.messages for call in message.tool_calls]
        approved = [call.id for call in self._request.approved_calls]
        checker = EventChecker(self._request.model, used, approved, get_args(OptionalEvent))
        events = checked(ask(model, self._request), checker, holds_usage=False)
        async with aclosing(events):
            async for event in events:
                match event:
                    case UsageEvent():
                        event = self.usage = usage_sum(earlier, event)
                    case TextEvent():
                        self._text.append(event.text)
                    case ReasoningEvent():
                        self._reasoning.append(event.text)
                    case ToolCallEvent():
                        if event.id:
                            self.calls.append(ToolCall(event.id, event.name, ""))
                            arguments.append([])
                        arguments[event.index].append(event.arguments)
                        if self.calls[event.index].name in self._held_back:
                            continue
                        is_of_client = self.calls[event.index].name in self._of_client
                        executed = event.executed if is_of_client else True
                        event = replace(event, index=self._first_index + event.index, executed=executed)
                    case ToolResultEvent():
                        self.results.append(event)
                        for index, call in enumerate(self.calls):
                            if call.id == event.id and call.name in self._held_back:
                                yield self.whole(replace(call, arguments="".join(arguments[index])))
                    case FinishEvent():
                        self.finish = event
                        continue
                yield event
        self.calls = [
            replace(call, arguments="".join(parts)) for call, parts in zip(self.calls, arguments, strict=True)
        ]

    @property
    def asked(self) -> list[ToolCall]:
        """The calls that the chain has to run."""
        answered = {result.id for result in self.results}
        return [call for call in self.calls if call.name not in self._of_client and call.id not in answered]

    def whole(self, call: ToolCall) -> ToolCallEvent:
        """Return a call that was held back."""
        (index,) = (index for index, begun in enumerate(self.calls) if begun.id == call.id)
        return ToolCallEvent(self._first_index + index, call.id, call.name, call.arguments, executed=True)

    def messages(self, results: Mapping[str, ToolResultEvent]) -> list[ChatMessage]:
        """Return what the step adds to the conversation."""
        answer = ChatMessage("assistant", "".join(self._text), tuple(self.calls), reasoning="".join(self._reasoning))
        return [
            answer,
            *(result_message(results[call.id]) for call in self.calls),
        ]


class McpServers:
    """Connections to MCP servers. The extra `mcp` has the SDK.

    A server is connected to when its tools are first needed, and again after its connection was lost.
    """

    def __init__(
        self, servers: Mapping[str, McpServer], *, connect_timeout_s: float = 10.0, call_timeout_s: float = 60.0
    ) -> None:
        """Name the servers.

        Parameters:
            servers: The URL of each server (streamable HTTP), its command (stdio), or a function that returns a
                transport of the SDK, by name. A tool has the name `SERVER_TOOL` for models.
            connect_timeout_s: Limit for the connection to a server, in seconds. Default: 10.
            call_timeout_s: Limit for one call of a tool, in seconds. Default: 60.

        Raises:
            ConfigError: A limit is not positive, or the SDK is not installed.
        """
        try:
            import mcp  # noqa: F401 - now, because it takes seconds, for which a request would block the event loop
        except ImportError as error:
            raise ConfigError("McpServers needs the package mcp: pip install 'app-toolkit[mcp]'") from error
        for name, value in (("connect_timeout_s", connect_timeout_s), ("call_timeout_s", call_timeout_s)):
            if value <= 0:
                raise ConfigError(f"McpServers: {name} = {value!r}: must be above 0")
        self._call_timeout_s = call_timeout_s
        self._connections = [Connection(name, server, connect_timeout_s) for name, server in servers.items()]

    async def tools(self) -> Mapping[str, "McpTool"]:
        """Return the tools of all servers, by the names that they have for models.

        Raises:
            ChatError: 502, a server cannot be reached.
        """
        tools: dict[str, McpTool] = {}
        for connection in self._connections:
            for tool in await connection.tools():
                name = f"{connection.name}_{tool.name}"
                described = Tool(name, tool.description or "", tool.input_schema)
                tools[name] = McpTool(described, tool.name, connection, self._call_timeout_s)
        return tools

    async def aclose(self) -> None:
        """Close the connections, and end the servers that run as commands."""
        await asyncio.gather(*(connection.aclose() for connection in self._connections))


@dataclass(frozen=True, slots=True)
class McpTool:
    """A tool of a server."""

    described: Tool
    """As a model gets it."""
    name: str
    """The name that the server has for it."""
    connection: "Connection"
    timeout_s: float

    async def call(self, call: ToolCall) -> ToolResultEvent:
        """Run a call. A failure is a result that says so, because the model can act on it."""
        try:
            arguments = json.loads(call.arguments or "{}")
        except ValueError:
            arguments = None
        if not isinstance(arguments, dict):
            return ToolResultEvent(call.id, "the arguments must be a JSON object", True)
        try:
            result = await self.connection.call(self.name, arguments, self.timeout_s)
        except ChatError as error:
            return ToolResultEvent(call.id, error.message, True)
        return ToolResultEvent(call.id, _content(result), result.is_error)


class Connection:
    """The connection to one server. A task holds it, because it has cancel scopes, which belong to one task."""

    def __init__(self, name: str, server: McpServer, connect_timeout_s: float) -> None:
        self.name = name
        self._server = server
        self._connect_timeout_s = connect_timeout_s
        self._ready: asyncio.Future[Any] | None = None
        """The client of the SDK, once it is connected."""
        self._lost = asyncio.Event()
        """Ends the task that holds the connection."""
        self._tasks: set[asyncio.Task[None]] = set()

    async def tools(self) -> list[Any]:
        """Return the tools as the SDK describes them. Raises `ChatError` 502 if the server cannot be reached."""
        if self._ready is not None and self._ready.done() and not self._lost.is_set():
            try:
                return await self._use(_all_tools)
            except ChatError:
                if not self._lost.is_set():
                    raise
        return await self._use(_all_tools)

    async def call(self, tool: str, arguments: dict[str, Any], timeout_s: float) -> Any:
        """Return the result of a tool. Raises `ChatError` if there is none."""
        return await self._use(lambda client: client.call_tool(tool, arguments, read_timeout_seconds=timeout_s))

    async def aclose(self) -> None:
        """Close the connection. A later call opens another one."""
        self._lost.set()
        if tasks := tuple(self._tasks):
            await asyncio.wait(tasks, timeout=CLOSE_S)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _use(self, work: Callable[[Any], Awaitable[Result]]) -> Result:
        """Return what `work` returns for the client of the SDK. A lost connection is closed."""
        import mcp

        ready, lost = self._connected()
        try:
            return await work(await asyncio.shield(ready))
        except Exception as error:
            if isinstance(error, mcp.MCPError) and error.code not in LOST:
                message = f"the MCP server {self.name!r} has failed: {error.message}"
                raise ChatError(message, status=502, code="mcp_error") from error
            lost.set()
            logger.warning("the MCP server %r cannot be reached: %r", self.name, error)
            message = f"the MCP server {self.name!r} cannot be reached"
            raise ChatError(message, status=502, code="mcp_unreachable") from error

    def _connected(self) -> tuple[asyncio.Future[Any], asyncio.Event]:
        """Return the client of the SDK, and the event of its loss. Connect if there is no connection."""
        if self._ready is None or self._lost.is_set():
            self._ready, self._lost = asyncio.get_running_loop().create_future(), asyncio.Event()
            holding = self._hold(self._ready, self._lost)
            task = asyncio.create_task(holding, name=f"app-toolkit MCP server {self.name}")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return self._ready, self._lost

    async def _hold(self, ready: asyncio.Future[Any], lost: asyncio.Event) -> None:
        """Connect, and keep the connection until it is lost."""
        from mcp import Client

        failure: Exception = ConnectionError("the connection was closed")
        try:
            async with asyncio.timeout(self._connect_timeout_s) as limit, Client(_endpoint(self._server)) as client:
                limit.reschedule(None)
                ready.set_result(client)
                await lost.wait()
        except Exception as error:
            failure = error
            logger.debug("the connection to the MCP server %r has ended", self.name, exc_info=True)
        finally:
            lost.set()
            if not ready.done():
                ready.set_exception(failure)
                ready.exception()  # otherwise asyncio logs it if no caller waits any more


def _endpoint(server: McpServer) -> Any:
    """Return a server as the client of the SDK takes it."""
    from mcp import StdioServerParameters

    if isinstance(server, str):
        return server
    if callable(server):
        return server()
    return StdioServerParameters(command=server[0], args=list(server[1:]))


async def _all_tools(client: Any) -> list[Any]:
    page = await client.list_tools()
    tools = list(page.tools)
    while page.next_cursor:
        page = await client.list_tools(cursor=page.next_cursor)
        tools += page.tools
    return tools


async def _result(tool: McpTool | None, call: ToolCall) -> ToolResultEvent:
    """Return the result of a call. None: the model has made up the name of the tool."""
    return ToolResultEvent(call.id, f"there is no tool {call.name!r}", True) if tool is None else await tool.call(call)


def _content(result: Any) -> Any:
    """Return the result of a tool as plain data: its structured content, or else its texts."""
    if result.structured_content is not None:
        return result.structured_content
    return "\n".join(part.text if part.type == "text" else f"[{part.type}]" for part in result.content)
