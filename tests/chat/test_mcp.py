"""A model that calls the tools of MCP servers: in the process of the test, as a command, and over HTTP."""

import asyncio
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app_toolkit import ConfigError
from app_toolkit.chat import (
    ApprovalRequest,
    ChatError,
    ChatEvent,
    ChatMessage,
    ChatRequest,
    ErrorEvent,
    FinishEvent,
    McpServers,
    ReasoningEvent,
    SourceEvent,
    StatusEvent,
    TextEvent,
    Tool,
    ToolCall,
    ToolCallEvent,
    ToolResultEvent,
    UsageEvent,
    fallback,
    with_mcp_tools,
)
from app_toolkit.chat.chain import Source
from tests.chat.model_events import of_model
from tests.chat.scripted import Scripted, answer, question
from tests.patience import until, wait_until

pytest.importorskip("mcp", reason="mcp is not installed")

from tests.chat import mcp_server

pytestmark = [pytest.mark.anyio, pytest.mark.slow]  # the SDK takes a second to import, and each process as well

ADD = ToolCallEvent(0, "c1", "t_add", '{"a": 1, "b": 2}')
GREET = ToolCallEvent(1, "c2", "t_greet", '{"name": "Ada"}')
DONE = [TextEvent("Done."), FinishEvent("stop", "END")]


@asynccontextmanager
async def closing(servers: McpServers) -> AsyncIterator[McpServers]:
    try:
        yield servers
    finally:
        await servers.aclose()


@pytest.fixture
async def servers(tmp_path: Path) -> AsyncIterator[McpServers]:
    """A server in this process, with the name `t`."""
    async with closing(McpServers({"t": lambda: mcp_server.server(tmp_path)})) as servers:
        yield servers


def command(folder: Path, *arguments: str) -> list[str]:
    return [sys.executable, mcp_server.__file__, str(folder), *arguments]


def is_open(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def over_http(folder: Path, port: int = 0) -> Iterator[str]:
    if not port:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
    with subprocess.Popen(command(folder, str(port)), stderr=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: is_open(port))
            yield f"http://127.0.0.1:{port}/mcp"
        finally:
            process.terminate()


async def passed(model: Source, **options: Any) -> list[ChatEvent]:
    """What a router gets from a model."""
    return await of_model(await answer(model, **options))


@pytest.mark.parametrize("mark", [None, False])
async def test_a_model_gets_the_tools_and_the_results_of_its_calls(mark: bool | None, servers: McpServers) -> None:
    calls = [replace(call, executed=mark) for call in (ADD, GREET)]
    model = Scripted([ReasoningEvent("Hm."), TextEvent("Wait."), *calls, FinishEvent("tool_calls")], DONE)
    assert await passed(with_mcp_tools(model, servers)) == [
        ReasoningEvent("Hm."),
        TextEvent("Wait."),
        replace(ADD, executed=True),
        replace(GREET, executed=True),
        ToolResultEvent("c1", {"result": 3}),
        ToolResultEvent("c2", "Hello, Ada."),
        *DONE,
    ]
    first, second = model.requests
    assert [tool.name for tool in first.tools] == ["t_add", "t_greet", "t_fail", "t_die", "t_wait"]
    assert (first.tools[0].description, first.tools[0].parameters["required"]) == ("Add two numbers.", ["a", "b"])  # type: ignore[index]
    assert second.messages == (
        *first.messages,
        ChatMessage(
            "assistant",
            "Wait.",
            (ToolCall("c1", "t_add", '{"a": 1, "b": 2}'), ToolCall("c2", "t_greet", '{"name": "Ada"}')),
            reasoning="Hm.",
        ),
        ChatMessage("tool", '{"result": 3}', tool_call_id="c1"),
        ChatMessage("tool", "Hello, Ada.", tool_call_id="c2"),
    )


async def test_events_for_front_ends_pass(servers: McpServers) -> None:
    model = Scripted([SourceEvent("https://example.com", id="s1"), ADD], [StatusEvent("Writing"), *DONE])
    passed_on = await passed(with_mcp_tools(model, servers))
    assert passed_on[0] == SourceEvent("https://example.com", id="s1")
    assert passed_on[3:] == [StatusEvent("Writing"), *DONE]


async def test_the_calls_of_several_rounds_have_ids_and_indexes_of_their_own(servers: McpServers) -> None:
    events = await passed(with_mcp_tools(Scripted([ADD], [ADD], DONE), servers))
    calls = [event for event in events if isinstance(event, ToolCallEvent) and event.id]
    assert [call.index for call in calls] == [0, 1]
    assert len({call.id for call in calls}) == 2
    assert [event.id for event in events if isinstance(event, ToolResultEvent)] == [call.id for call in calls]


async def test_the_usage_is_the_sum_of_all_rounds(servers: McpServers) -> None:
    model = Scripted([ADD, UsageEvent(10, 1)], [TextEvent("a"), UsageEvent(20, 2), UsageEvent(20, 3), FinishEvent()])
    events = await passed(with_mcp_tools(model, servers))
    assert [event for event in events if isinstance(event, UsageEvent)] == [
        UsageEvent(10, 1),
        UsageEvent(30, 3),
        UsageEvent(30, 4),
    ]
    failing = with_mcp_tools(Scripted([UsageEvent(5, 0), ChatError("full")]), servers)
    events = await passed(fallback(failing, Scripted([TextEvent("a"), UsageEvent(1, 1)])))
    assert [event for event in events if isinstance(event, UsageEvent)][-1] == UsageEvent(6, 1)


async def test_a_call_that_fails_is_a_result_for_the_model(servers: McpServers) -> None:
    calls = [
        ToolCallEvent(0, "c1", "t_fail", "{}"),
        ToolCallEvent(1, "c2", "t_add", "[1]"),
        ToolCallEvent(2, "c3", "nothing", "{}"),
    ]
    model = Scripted(calls, DONE)
    events = await passed(with_mcp_tools(model, servers))
    assert [message.is_error for message in model.requests[1].messages] == [False, False, True, True, True]
    assert [event for event in events if isinstance(event, ToolResultEvent)] == [
        ToolResultEvent("c1", "Error executing tool fail", True),
        ToolResultEvent("c2", "the arguments must be a JSON object", True),
        ToolResultEvent("c3", "there is no tool 'nothing'", True),
    ]
    assert events[-2:] == DONE


async def test_a_call_of_a_tool_of_the_client_ends_the_response(servers: McpServers) -> None:
    model = Scripted([ADD, ToolCallEvent(1, "c2", "ask_user", "{}")], DONE)
    events = await passed(
        with_mcp_tools(model, servers), request=question("hello", tools=(Tool("ask_user"), Tool("t_add")))
    )
    assert events[-2:] == [ToolResultEvent("c1", {"result": 3}), FinishEvent("tool_calls")]
    (request,) = model.requests
    assert [tool.name for tool in request.tools].count("t_add") == 1


async def test_a_model_that_runs_tools_itself_goes_on(servers: McpServers) -> None:
    own = [ToolCallEvent(0, "c0", "search", "{}"), ToolResultEvent("c0", {"hits": 1})]
    model = Scripted([*own, ToolCallEvent(1, "c1", "t_add", '{"a": 1, "b": 2}')], DONE)
    events = await passed(with_mcp_tools(model, servers))
    assert events[-2:] == DONE
    assert [message.text for message in model.requests[1].messages[-2:]] == ['{"hits": 1}', '{"result": 3}']


async def test_the_tool_choice_of_the_client_counts_for_the_first_call_only(servers: McpServers) -> None:
    model = Scripted([ADD], DONE)
    await answer(with_mcp_tools(model, servers), question("hello", tool_choice="required"))
    assert [request.tool_choice for request in model.requests] == ["required", None]


async def test_the_rounds_are_limited(servers: McpServers) -> None:
    model = Scripted([ADD])
    events = await passed(with_mcp_tools(model, servers, max_rounds=2))
    assert [request.tool_choice for request in model.requests] == [None, None, "none"]
    *_, last, finish = events
    assert isinstance(last, ToolResultEvent)
    assert (last.result, last.is_error) == ("the limit of 2 rounds of calls is reached", True)
    assert finish == FinishEvent("length")
    obedient = Scripted([ADD], [ADD], DONE)
    assert (await passed(with_mcp_tools(obedient, servers, max_rounds=2)))[-2:] == DONE


async def test_a_model_that_fails_ends_the_response(servers: McpServers) -> None:
    assert (await answer(with_mcp_tools(Scripted([ADD, ErrorEvent("broken")]), servers)))[-1] == ErrorEvent("broken")
    with pytest.raises(ChatError, match="full"):
        await answer(with_mcp_tools(Scripted([ChatError("full")]), servers))


PAY = [TextEvent("I add."), ADD, GREET]


@pytest.mark.parametrize(
    "approve", [{"t_add", "nothing"}, lambda call: "1" in call.arguments], ids=["names", "function"]
)
async def test_a_call_that_needs_an_approval_ends_the_response_and_the_others_are_run(
    approve: Any, servers: McpServers
) -> None:
    model = Scripted(PAY, DONE)
    assert await passed(with_mcp_tools(model, servers, approve=approve)) == [
        TextEvent("I add."),
        replace(GREET, index=0, executed=True),
        ToolResultEvent("c2", "Hello, Ada."),
        ApprovalRequest(ToolCall("c1", "t_add", ADD.arguments)),
        FinishEvent(),
    ]
    assert len(model.requests) == 1


async def test_an_approved_call_is_run_before_the_model_and_in_no_later_round(servers: McpServers) -> None:
    greeted = ToolCall("c2", "t_greet", GREET.arguments)
    request = ChatRequest(
        (
            ChatMessage("user", "Add."),
            ChatMessage("assistant", "I add.", (greeted,)),
            ChatMessage("tool", "Hello, Ada.", tool_call_id="c2"),
        ),
        approved_calls=(approved := ToolCall("c1", "t_add", ADD.arguments), ToolCall("own", "pay", "{}")),
    )
    again = ToolCallEvent(0, "c3", "t_greet", GREET.arguments)
    model = Scripted([ToolResultEvent("own", "paid"), again], DONE)
    events = await answer(with_mcp_tools(model, servers, approve={"t_add"}), request)
    assert [event.id for event in events if isinstance(event, ToolResultEvent)] == ["c1", "own", "c3"]
    first, second = model.requests
    assert first.messages == (
        request.messages[0],
        replace(request.messages[1], tool_calls=(greeted, approved)),
        request.messages[2],
        ChatMessage("tool", '{"result": 3}', tool_call_id="c1"),
    )
    assert ([call.id for call in first.approved_calls], second.approved_calls) == (["own"], ())
    assert [message.tool_call_id for message in second.messages if message.role == "tool"] == ["c2", "c1", "own", "c3"]


async def test_the_model_reads_why_a_call_was_denied(servers: McpServers) -> None:
    denied = ChatRequest(
        (
            ChatMessage("user", "Add."),
            ChatMessage("assistant", "I add.", (ToolCall("c1", "t_add", ADD.arguments),)),
            ChatMessage("tool", "too much", tool_call_id="c1"),
        )
    )
    model = Scripted(DONE)
    assert await answer(with_mcp_tools(model, servers, approve={"t_add"}), denied) == DONE
    assert model.requests[0].messages == denied.messages


@pytest.fixture(params=["stdio", "http"])
def process(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[McpServers]:
    """A server in a process of its own, with the name `t`."""
    if request.param == "stdio":
        yield McpServers({"t": command(tmp_path)})
    else:
        with over_http(tmp_path) as url:
            yield McpServers({"t": url})


async def test_a_client_that_leaves_cancels_the_call_on_the_server(process: McpServers, tmp_path: Path) -> None:
    model = Scripted([ADD, FinishEvent()], [ToolCallEvent(0, "c2", "t_wait", "{}")])
    async with closing(process):
        leaving = asyncio.create_task(answer(with_mcp_tools(model, process)))
        await until((tmp_path / "begun").exists)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        await until((tmp_path / "cancelled").exists)
    assert (len(model.requests), model.running) == (2, 0)


async def test_a_command_that_dies_is_an_error_result_and_is_started_again(tmp_path: Path) -> None:
    model = Scripted([ToolCallEvent(0, "c1", "t_die", "{}")], DONE)
    async with closing(McpServers({"t": command(tmp_path)})) as servers:
        events = await passed(with_mcp_tools(model, servers))
        assert events[1:] == [ToolResultEvent("c1", "the MCP server 't' cannot be reached", True), *DONE]
        assert "t_add" in await servers.tools()


async def test_a_server_over_http_that_is_started_again_is_connected_to_again(tmp_path: Path) -> None:
    with over_http(tmp_path) as url:
        servers = McpServers({"t": url})
        await servers.tools()
    async with closing(servers):
        with pytest.raises(ChatError, match="the MCP server 't' cannot be reached") as failed:
            await servers.tools()
        assert (failed.value.status, failed.value.code) == (502, "mcp_unreachable")
        with over_http(tmp_path, int(url.split(":")[2].split("/")[0])):
            assert "t_add" in await servers.tools()


async def test_a_command_that_does_not_exist_is_an_error_before_the_model_is_called() -> None:
    model = Scripted(DONE)
    async with closing(McpServers({"t": ["/no/such/program"]})) as servers:
        with pytest.raises(ChatError, match="the MCP server 't' cannot be reached"):
            await answer(with_mcp_tools(model, servers))
    assert not model.requests


async def test_a_server_that_does_not_answer_in_time_is_an_error() -> None:
    silent = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    async with closing(McpServers({"t": silent}, connect_timeout_s=0.1)) as servers:
        with pytest.raises(ChatError, match="the MCP server 't' cannot be reached"):
            await servers.tools()


async def test_a_call_that_takes_too_long_is_an_error_and_the_connection_stays(tmp_path: Path) -> None:
    async with closing(McpServers({"t": lambda: mcp_server.server(tmp_path)}, call_timeout_s=0.1)) as servers:
        tools = await servers.tools()
        result = await tools["t_wait"].call(ToolCall("c1", "t_wait", "{}"))
        assert (result.id, result.is_error) == ("c1", True)
        assert "the MCP server 't' has failed" in result.result
        assert await tools["t_greet"].call(ToolCall("c2", "t_greet", '{"name": "Ada"}')) == ToolResultEvent(
            "c2", "Hello, Ada."
        )


def test_options_out_of_bounds_are_refused() -> None:
    with pytest.raises(ConfigError, match="max_rounds = 0"):
        with_mcp_tools(Scripted(DONE), McpServers({}), max_rounds=0)
    with pytest.raises(ConfigError, match="approve is the string 't_add'"):
        with_mcp_tools(Scripted(DONE), McpServers({}), approve="t_add")
    with pytest.raises(ConfigError, match="call_timeout_s = 0"):
        McpServers({}, call_timeout_s=0)
