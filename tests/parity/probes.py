"""The table of probes: each asks a server something, and returns what it saw as plain data."""

import asyncio
import json
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from websockets.exceptions import ConnectionClosed

from .client import HOST, Client, Exchange, Observation, chunk, head

Probe = Callable[[Client], Awaitable[Observation]]
PROBES: dict[str, Probe] = {}

JSON = ("content-type", "application/json")
FORM = ("content-type", "application/x-www-form-urlencoded")

DIRECT = ("x-direct", "yes")  # without a BaseHTTPMiddleware


def probe(function: Probe) -> Probe:
    assert function.__name__ not in PROBES, function.__name__
    PROBES[function.__name__] = function
    return function


def asks(
    name: str, method: str, target: str | bytes, *headers: tuple[str, str], body: Any = b"", json_body: Any = None
) -> None:
    """A probe that is one request."""
    if json_body is not None:
        body = json.dumps(json_body).encode()
        headers = (*headers, JSON)

    async def ask(client: Client) -> Observation:
        return await client.ask(method, target, headers, body)

    ask.__name__ = name
    probe(ask)


# --- methods ------------------------------------------------------------------------------------------------
for verb in ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "QUERY"):
    asks(f"method_{verb}", verb, "/inputs/method")
asks("method_not_allowed", "DELETE", "/inputs/numbers/5")
asks("method_not_allowed_on_a_shared_path", "DELETE", "/outputs/json")
asks("head_of_an_api_route", "HEAD", "/inputs/numbers/5")
asks("head_of_a_starlette_route", "HEAD", "/starlette/plain")
asks("starlette_route", "GET", "/starlette/plain")
asks("starlette_route_wrong_method", "POST", "/starlette/plain")
asks("asgi_endpoint", "PATCH", "/starlette/any")
asks("asgi_endpoint_head", "HEAD", "/starlette/any")

# --- paths --------------------------------------------------------------------------------------------------
asks("root", "GET", "/")
asks("root_with_an_empty_query", "GET", "/?")
asks("unknown_path", "GET", "/no/such/path")
asks("unknown_path_below_an_ingress", "GET", "/outputs/no-such-path")
asks("unknown_path_posted", "POST", "/live/none", body=b"some body")
asks("path_number", "GET", "/inputs/numbers/42")
asks("path_number_out_of_range", "GET", "/inputs/numbers/1001")
asks("path_number_is_a_word", "GET", "/inputs/numbers/word")
asks("path_number_with_a_newline", "GET", "/inputs/numbers/5%0A")
asks("fixed_path_with_a_newline", "GET", "/outputs/json%0A")
asks("convertor_int", "GET", "/inputs/convertors/int/12")
asks("convertor_int_newline", "GET", "/inputs/convertors/int/12%0A")
asks("convertor_int_negative", "GET", "/inputs/convertors/int/-12")
asks("convertor_of_our_own", "GET", "/inputs/convertors/even/34")
asks("convertor_of_our_own_no_match", "GET", "/inputs/convertors/even/35")
asks("path_encoded_space", "GET", "/inputs/words/a%20b")
asks("path_encoded_slash", "GET", "/inputs/words/a%2Fb")
asks("path_encoded_percent", "GET", "/inputs/words/100%25")
asks("path_encoded_question_mark", "GET", "/inputs/words/why%3F")
asks("path_encoded_unicode", "GET", "/inputs/words/gr%C3%BC%C3%9Fe")
asks("path_encoded_not_utf8", "GET", "/inputs/words/%FF%FE")
asks("path_encoded_newline", "GET", "/inputs/words/a%0A")
asks("path_encoded_letters_of_the_route", "GET", "/%69nputs/words/x")
asks("path_semicolon_and_plus", "GET", "/inputs/words/a;v=1+b")
asks("rest_of_a_path", "GET", "/inputs/rest/a/b/c.txt")
asks("rest_is_empty", "GET", "/inputs/rest/")
asks("rest_with_dots", "GET", "/inputs/rest/../words/x")
asks("rest_with_encoded_dots", "GET", "/inputs/rest/%2e%2e/words/x")
asks("rest_with_double_slashes", "GET", "/inputs/rest//a//b")
asks("double_slash_at_the_start", "GET", "//inputs/words/x")
asks("dots_at_the_start", "GET", "/../inputs/words/x")
asks("dot_segments_between_ingresses", "GET", "/outputs/../inputs/words/x")
asks("absolute_form", "GET", f"http://{HOST}/inputs/raw-query?a=1")
asks("fragment_in_the_target", "GET", "/inputs/raw-query?a=1#part")
asks("asterisk_form", "OPTIONS", "*")
asks("raw_utf8_in_the_target", "GET", "/inputs/words/grüße".encode())
asks("case_of_the_path", "GET", "/Inputs/words/x")
asks("long_path", "GET", "/inputs/words/" + "w" * 4000)
asks("slash_is_added", "GET", "/slash?a=b")
asks("slash_is_removed", "GET", "/no-slash/")
asks("slash_is_removed_for_a_post", "POST", "/inputs/json/", json_body={"name": "n"})
asks("slash_is_removed_in_an_ingress", "GET", "/outputs/json/")
asks("shared_path_get", "GET", "/outputs/json")
asks("shared_path_post", "POST", "/outputs/json")
asks("shared_prefix", "GET", "/outputs/of-the-app")

# --- query, headers, cookies --------------------------------------------------------------------------------
asks("query", "GET", "/inputs/query?needed=x&number=3&several=a&several=b&with-dash=12345&flag=on")
asks("query_encoded", "GET", "/inputs/query?needed=a%20b+c%26d&several=%C3%A4&several=")
asks("query_missing", "GET", "/inputs/query?number=3")
asks("query_wrong", "GET", "/inputs/query?needed=x&number=three&flag=maybe&with-dash=123456")
asks("query_raw", "GET", "/inputs/raw-query?b=2&a=1&b=3&&c&d==e&%zz=%")
asks("query_long", "GET", "/inputs/raw-query?q=" + "q" * 8000)
asks("header", "GET", "/inputs/headers", ("X-Token", "t"), ("x-many", "1"), ("X-MANY", "2"), ("under_score", "u"))
asks("header_missing", "GET", "/inputs/headers")
asks(
    "headers_in_order",
    "GET",
    "/inputs/all-headers",
    ("X-B", "1"),
    ("x-a", "2"),
    ("X-B", "3"),
    ("x-empty", ""),
    ("x-latin", "caf\u00e9"),
    ("accept", "a, b"),
    ("accept", "c"),
    ("user-agent", "parity"),
    ("connection", "keep-alive"),
)
asks("many_headers", "GET", "/inputs/all-headers", *[(f"x-{n}", str(n)) for n in range(60)])
asks("long_header", "GET", "/inputs/headers", ("x-token", "t" * 8000))
asks("cookies", "GET", "/inputs/cookies", ("cookie", "session=abc; count=3; other=x%20y"))
asks("cookies_in_two_headers", "GET", "/inputs/cookies", ("cookie", "session=abc"), ("cookie", "count=4"))
asks("cookies_wrong", "GET", "/inputs/cookies", ("cookie", "count=many"))
asks("host_not_trusted", "GET", "/", ("host", "evil.test"))
asks("forwarded_headers", "GET", "/links", ("x-forwarded-for", "203.0.113.7"), ("x-forwarded-proto", "https"))

# --- bodies -------------------------------------------------------------------------------------------------
asks("json_body", "POST", "/inputs/json", json_body={"name": "ä", "parts": [{"name": "p", "weight": 1}]})
asks("json_body_invalid", "POST", "/inputs/json", json_body={"parts": [{"name": 1, "weight": 0}]})
asks("json_body_broken", "POST", "/inputs/json", JSON, body=b'{"name": ')
asks("json_body_missing", "POST", "/inputs/json", JSON)
asks("json_body_without_a_type", "POST", "/inputs/json", body=b'{"name": "n"}')
asks("form_body", "POST", "/inputs/form", FORM, body=b"name=a+b%C3%A4&tag=1&tag=2")
asks("form_body_missing", "POST", "/inputs/form", FORM, body=b"tag=1")
asks("raw_body", "POST", "/inputs/raw", body=bytes(range(256)))
asks("raw_body_empty", "POST", "/inputs/raw", ("content-length", "0"))
asks("raw_body_5_mb", "POST", "/inputs/raw", body=b"0123456789abcdef" * 64 * 1024 * 5)
asks("streamed_body_5_mb", "POST", "/inputs/stream", body=[b"0123456789abcdef" * 4096] * 80)
asks("chunked_body", "POST", "/inputs/raw", body=[b"one", b"two" * 1000, b"x"])
asks("chunked_json", "POST", "/inputs/json", JSON, body=[b'{"na', b'me": "in pieces"}'])
asks("body_of_a_get", "GET", "/inputs/raw-query?a=1", body=b"a body that nobody reads")
asks("body_of_a_delete", "DELETE", "/inputs/timed/thing", body=b"ignored")
asks("body_too_large_for_its_route", "POST", "/inputs/limited", body=b"x" * 101)
asks("body_of_allowed_size", "POST", "/inputs/limited", body=b"x" * 100)
asks("body_gzipped_is_left_alone", "POST", "/inputs/raw", ("content-encoding", "gzip"), body=b"\x1f\x8b rest")


def multipart(*parts: tuple[str, bytes]) -> tuple[tuple[str, str], bytes]:
    boundary = b"a-fixed-boundary"
    lines = b"".join(
        b"--%s\r\nContent-Disposition: form-data; %s\r\n\r\n%s\r\n" % (boundary, disposition.encode(), data)
        for disposition, data in parts
    )
    return ("content-type", f"multipart/form-data; boundary={boundary.decode()}"), lines + b"--%s--\r\n" % boundary


_type, _body = multipart(
    ('name="file"; filename="gr\u00fc\u00dfe.txt"\r\nContent-Type: text/plain', b"hello"),
    ('name="more"; filename="1.bin"', bytes(range(256)) * 100),
    ('name="more"; filename="2.bin"', b""),
    ('name="note"', b"a note"),
)
asks("upload", "POST", "/inputs/upload", _type, body=_body)
asks("upload_chunked", "POST", "/inputs/upload", _type, body=[_body[:50], _body[50:]])
asks("upload_missing", "POST", "/inputs/upload", _type, body=multipart(('name="note"', b"x"))[1])
_type, _body = multipart(('name="file"; filename="big"', b"x" * 5_000_000))
asks("upload_5_mb", "POST", "/inputs/upload", _type, body=_body)

# --- dependencies, state, middleware ------------------------------------------------------------------------
asks("dependency_override", "GET", "/inputs/overridden")
asks("security_missing", "GET", "/inputs/bearer")
asks("security_bearer", "GET", "/inputs/bearer", ("authorization", "Bearer abc"))
asks("def_endpoint_runs_in_a_thread", "GET", "/inputs/in-a-thread")
asks("route_class", "GET", "/inputs/timed/thing")
asks("route_class_status", "DELETE", "/inputs/timed/thing")
asks("lifespan_state_and_app_state", "GET", "/state")
asks("middleware_stops_a_request", "GET", "/inputs/words/x", ("x-stop-here", "yes"))
asks("cors_simple", "GET", "/outputs/json", ("origin", "https://front.test"))
asks("cors_other_origin", "GET", "/outputs/json", ("origin", "https://other.test"))
for name, asked in (("preflight", "PUT"), ("preflight_refused", "DELETE")):
    asks(
        f"cors_{name}",
        "OPTIONS",
        "/inputs/json/k",
        ("origin", "https://front.test"),
        ("access-control-request-method", asked),
        ("access-control-request-headers", "x-token"),
    )
asks("gzip", "GET", "/outputs/file", ("accept-encoding", "gzip"))
asks("gzip_not_for_small_ones", "GET", "/outputs/json", ("accept-encoding", "gzip"))
asks("links_between_ingresses", "GET", "/links")
asks("docs", "GET", "/docs")
asks("redoc", "GET", "/redoc")
asks("openapi", "GET", "/openapi.json")

# --- responses ----------------------------------------------------------------------------------------------
for path in ("json", "plain", "bytes", "empty", "cookies", "headers", "many-headers", "stream"):
    asks(f"response_{path.replace('-', '_')}", "GET", f"/outputs/{path}")
for code in (200, 203, 204, 205, 206, 226, 299, 300, 304, 400, 402, 410, 418, 421, 451, 500, 501, 503, 599):
    asks(f"status_{code}", "GET", f"/outputs/status/{code}")
for code in (301, 302, 303, 307, 308):
    asks(f"redirect_{code}", "GET", f"/outputs/redirect/{code}")
asks("redirect_to_another_ingress", "GET", "/outputs/redirect-to-name")
asks("status_of_a_delete", "DELETE", "/outputs/nothing")
asks("status_of_a_post", "POST", "/outputs/created")
asks("own_date_and_server", "GET", "/outputs/own-date-and-server")
asks("etag", "GET", "/outputs/etag")
asks("etag_not_modified", "GET", "/outputs/etag", ("if-none-match", '"version-1"'))
asks("file", "GET", "/outputs/file")
asks("file_head", "HEAD", "/outputs/file")
asks("file_range", "GET", "/outputs/file", ("range", "bytes=10-19"))
asks("file_range_suffix", "GET", "/outputs/file", ("range", "bytes=-10"))
asks("file_range_unsatisfiable", "GET", "/outputs/file", ("range", "bytes=100000-"))
asks("file_range_malformed", "GET", "/outputs/file", ("range", "lines=1-2"))
asks("file_missing", "GET", "/outputs/missing-file")
asks("stream_in_a_thread", "GET", "/outputs/stream-in-a-thread")
asks("stream_of_nothing", "GET", "/outputs/stream?pieces=0")
asks("stream_of_many", "GET", "/outputs/stream?pieces=1000")
asks("stream_head", "HEAD", "/outputs/stream")
asks("big_response", "GET", "/outputs/big")
asks("big_response_streamed", "GET", "/outputs/big-stream")
asks("json_lines_in_a_thread", "GET", "/live/json-lines-in-a-thread")
asks("http_exception", "GET", "/outputs/http-exception")
asks("exception_with_a_handler", "GET", "/refuse/409")
asks("exception_without_a_handler", "GET", "/outputs/unhandled")
asks("exception_in_a_thread", "GET", "/outputs/unhandled-in-a-thread")
asks("broken_stream", "GET", "/outputs/broken-stream")
asks("broken_stream_is_cut_off", "GET", "/outputs/broken-stream", DIRECT)
asks("shorter_than_promised", "GET", "/outputs/too-short")
asks("shorter_than_promised_is_cut_off", "GET", "/outputs/too-short", DIRECT)

# --- mounts and files ---------------------------------------------------------------------------------------
asks("mounted_starlette", "GET", "/mounted/inside/word")
asks("mounted_deeper", "GET", "/mounted/deeper/inside/word%20x")
asks("mounted_unknown", "GET", "/mounted/none")
asks("mounted_without_a_slash", "GET", "/mounted")
asks("mounted_fastapi", "GET", "/sub/items/5")
asks("mounted_fastapi_invalid", "GET", "/sub/items/five")
asks("mounted_fastapi_openapi", "GET", "/sub/openapi.json")
asks("static_file", "GET", "/static/letters.txt")
asks("static_head", "HEAD", "/static/letters.txt")
asks("static_missing", "GET", "/static/none.txt")
asks("static_outside", "GET", "/static/../app.py")
asks("static_outside_encoded", "GET", "/static/%2e%2e/app.py")
asks("static_folder", "GET", "/static/front")
asks("static_folder_index", "GET", "/static/front/")
asks("static_method", "POST", "/static/letters.txt")
asks("static_in_an_ingress", "GET", "/own-files/letters.txt")
asks("frontend", "GET", "/site/")
asks("frontend_asset", "GET", "/site/app.js")
asks("frontend_missing", "GET", "/site/none.js")


@probe
async def static_not_modified(client: Client) -> Observation:
    first = await client.ask("GET", "/static/letters.txt")
    fields = {header[0]: header[-1] for header in first["headers"]}
    return [
        await client.ask("GET", "/static/letters.txt", [("if-none-match", fields["etag"])]),
        await client.ask("GET", "/static/letters.txt", [("if-modified-since", fields["last-modified"])]),
        await client.ask("GET", "/outputs/file", [("range", "bytes=0-3"), ("if-range", fields["etag"])]),
    ]


@probe
async def lifespan_of_each_ingress(client: Client) -> Observation:
    """Which other lifespans ran differs by design; the app's and the ingress's own ran everywhere."""
    observed: dict[str, Observation] = {}
    for ingress in ("inputs", "outputs", "live"):
        answer = await client.ask("GET", f"/{ingress}/lifespans")
        seen = json.loads(answer["body"])
        observed[ingress] = [answer["status"], seen["state"], "app" in seen["ran"], ingress in seen["ran"]]
    return observed


@probe
async def addresses_of_the_connection(client: Client) -> Observation:
    """The app sees the client's port and the server's, as the client sees them."""
    async with client.connection() as connection:
        answer = await (await connection.request("GET", "/inputs/connection")).answer()
        seen = json.loads(answer["body"])
        seen["client"][1] = seen["client"][1] == connection.port
        seen["server"][1] = seen["server"][1] == client.port
    return seen


@probe
async def host_with_a_port(client: Client) -> Observation:
    return await client.ask("GET", "/links", [("host", f"127.0.0.1:{client.port}")])


@probe
async def resources_in_order(client: Client) -> Observation:
    mark = client.mark()
    answer = await client.ask("GET", f"/inputs/resources?mark={mark}")
    return [answer, await log_of(client, mark, 5)]


@probe
async def resources_of_a_failure(client: Client) -> Observation:
    mark = client.mark()
    answer = await client.ask("GET", f"/inputs/resources?fail=1&mark={mark}")
    return [answer, await log_of(client, mark, 5)]


async def log_of(client: Client, mark: str, lines: int) -> Observation:
    while True:
        status, body = await client.left(mark, "log")
        if json.loads(body).count("\n") >= lines:
            return [status, body]
        await asyncio.sleep(0.01)


# --- connections --------------------------------------------------------------------------------------------
@probe
async def two_requests_on_one_connection(client: Client) -> Observation:
    async with client.connection() as connection:
        return [
            await (await connection.request("POST", "/inputs/raw", body=b"first")).answer(),
            await (await connection.request("GET", "/inputs/in-the-loop")).answer(),
            await (await connection.request("GET", "/inputs/in-the-loop")).answer(),
            await (await connection.request("HEAD", "/outputs/file")).answer(),
            await (await connection.request("GET", "/outputs/status/204")).answer(),
            await (await connection.request("GET", "/outputs/stream")).answer(),
            await (await connection.request("GET", "/no/such/path")).answer(),
            await (await connection.request("GET", "/outputs/http-exception")).answer(),
            await (await connection.request("GET", "/")).answer(),
        ]


@probe
async def pipelined_requests(client: Client) -> Observation:
    targets = ["/inputs/words/one", "/outputs/stream", "/inputs/words/two", "/no-such", "/outputs/json"]
    async with client.connection() as connection:
        await connection.send(b"".join(head("GET", target) for target in targets))
        return [await Exchange(connection.reader, "GET").answer() for _ in targets]


@probe
async def request_that_dribbles_in(client: Client) -> Observation:
    data = head("POST", "/inputs/raw", body=b"0123456789") + b"0123456789"
    async with client.connection() as connection:
        for byte in data:
            await connection.send(bytes([byte]))
            await asyncio.sleep(0)
        return await Exchange(connection.reader, "POST").answer()


@probe
async def connection_close_is_asked_for(client: Client) -> Observation:
    async with client.connection() as connection:
        answer = await (await connection.request("GET", "/outputs/json", [("connection", "close")])).answer()
        return [answer, await connection.closed_by_server()]


@probe
async def connection_is_kept(client: Client) -> Observation:
    async with client.connection() as connection:
        answer = await (await connection.request("GET", "/outputs/json")).answer()
        return [answer, await connection.closed_by_server()]


@probe
async def http_1_0(client: Client) -> Observation:
    async with client.connection() as connection:
        answer = await (await connection.request("GET", "/inputs/connection", version="HTTP/1.0")).answer()
        seen = json.loads(answer.pop("body"))
        return [answer["status"], seen["http_version"], await connection.closed_by_server()]


@probe
async def http_1_0_streamed(client: Client) -> Observation:
    async with client.connection() as connection:
        answer = await (await connection.request("GET", "/outputs/stream", version="HTTP/1.0")).answer()
        return [answer, await connection.closed_by_server()]


@probe
async def http_1_0_keep_alive(client: Client) -> Observation:
    async with client.connection() as connection:
        wish = [("connection", "keep-alive")]
        answer = await (await connection.request("GET", "/outputs/json", wish, version="HTTP/1.0")).answer()
        return [answer, await connection.closed_by_server()]


@probe
async def expect_continue(client: Client) -> Observation:
    async with client.connection() as connection:
        wish = [("expect", "100-continue"), ("content-length", "4")]
        await connection.send(head("POST", "/inputs/raw", wish))
        interim = await connection.reader.readuntil(b"\r\n\r\n")
        await connection.send(b"body")
        return [interim.decode(), await Exchange(connection.reader, "POST").answer()]


@probe
async def expect_continue_refused(client: Client) -> Observation:
    """An endpoint that does not read its body answers at once, without a 100."""
    async with client.connection() as connection:
        wish = [("expect", "100-continue"), ("content-length", "4")]
        await connection.send(head("POST", "/inputs/unread", wish))
        return await Exchange(connection.reader, "POST").answer()


@probe
async def early_answer_to_an_unread_body(client: Client) -> Observation:
    async with client.connection() as connection:
        await connection.send(head("POST", "/inputs/unread", [("content-length", "1000000")]) + b"x" * 1000)
        return await Exchange(connection.reader, "POST").answer()


@probe
async def answer_while_the_body_is_sent(client: Client) -> Observation:
    """A duplex: each piece of the body comes back before the next is sent."""
    async with client.connection() as connection:
        await connection.send(head("POST", "/starlette/duplex", body=[]))
        exchange = Exchange(connection.reader, "POST")
        heard = b""
        await connection.send(chunk(b"one "))
        pieces = (await exchange.head()).pieces()
        for word in (b"two ", b"three "):
            heard += await anext(pieces)
            await connection.send(chunk(word))
        while heard.count(b" ") < 3:
            heard += await anext(pieces)
        await connection.send(b"0\r\n\r\n")
        async for piece in pieces:
            heard += piece
        return [exchange.status, exchange.headers, heard.decode()]


@probe
async def client_leaves_and_the_handler_sees_it(client: Client) -> Observation:
    mark = client.mark()
    async with client.connection() as connection:
        await connection.request("GET", f"/live/waits-for-the-client-to-leave?mark={mark}")
        await client.left(mark, "entered")
    return await client.left(mark, "seen")


@probe
async def client_leaves_and_the_handler_finds_out(client: Client) -> Observation:
    mark = client.mark()
    async with client.connection() as connection:
        await connection.request("GET", f"/live/asks-whether-the-client-left?mark={mark}", [DIRECT])
        await client.left(mark, "entered")
    return await client.left(mark, "seen")


@probe
async def client_leaves_and_the_stream_ends(client: Client) -> Observation:
    mark = client.mark()
    async with client.connection() as connection:
        exchange = await connection.request("GET", f"/live/raw?mark={mark}")
        await client.release(mark, 0)
        first = await anext((await exchange.head()).pieces())
    return [first.decode(), await client.left(mark, "ended")]


# --- streams that alternate with their client ---------------------------------------------------------------
async def alternate(
    client: Client, method: str, path: str, *headers: tuple[str, str], read: Callable[[bytes], str] = bytes.decode
) -> Observation:
    """Ask for a step only after the one before was read; a server that holds steps back never ends here."""
    mark = client.mark()
    async with client.connection() as connection:
        exchange = await connection.request(method, f"{path}?mark={mark}", headers)
        await client.release(mark, 0)
        pieces: AsyncIterator[bytes] = (await exchange.head()).pieces()
        heard: list[str] = []
        for step in range(4):
            text = ""
            while f"{step}" not in text:
                text += read(await anext(pieces))
            heard.append(text)
            await client.release(mark, step + 1)
        rest = "".join([read(piece) async for piece in pieces])
    return [exchange.status, exchange.headers, [text.strip() for text in heard], rest.strip()]


def alternates(name: str, method: str, path: str) -> None:
    """A probe that reads a stream step by step."""

    async def alternating(client: Client) -> Observation:
        return await alternate(client, method, path)

    alternating.__name__ = f"{name}_step_by_step"
    probe(alternating)


alternates("sse", "GET", "/live/sse")
alternates("sse_events_by_hand", "POST", "/live/sse-by-hand")
alternates("other_sse", "GET", "/live/other-sse")
alternates("json_lines", "GET", "/live/json-lines")
alternates("raw_stream", "GET", "/live/raw")


@probe
async def gzipped_json_lines_step_by_step(client: Client) -> Observation:
    inflate = zlib.decompressobj(31)
    return await alternate(
        client,
        "GET",
        "/live/json-lines",
        ("accept-encoding", "gzip"),
        read=lambda piece: inflate.decompress(piece).decode(),
    )


# --- after the answer, and signals --------------------------------------------------------------------------
@probe
async def background_tasks_run_after_the_answer(client: Client) -> Observation:
    mark = client.mark()
    answer = await client.ask("POST", f"/live/background?mark={mark}")
    await client.release(mark, 0)
    return [answer, await client.left(mark, "done")]


@probe
async def background_task_of_a_response(client: Client) -> Observation:
    mark = client.mark()
    answer = await client.ask("POST", f"/live/background-of-response?mark={mark}")
    return [answer, await client.left(mark, "done")]


async def signalled(client: Client, name: str) -> Observation:
    mark = client.mark()
    answer = await client.ask("POST", f"/live/signals/{name}?mark={mark}")
    if answer["body"] != '"installed"':
        return answer
    return [answer, await client.left(mark, f"{name}-handled")]


@probe
async def handler_of_signal_signal(client: Client) -> Observation:
    return await signalled(client, "SIGUSR1")


@probe
async def handler_of_add_signal_handler(client: Client) -> Observation:
    return await signalled(client, "SIGUSR2")


# --- WebSockets ---------------------------------------------------------------------------------------------
def converses(name: str, target: str, *messages: str | bytes, leave: bool = False, **options: Any) -> None:
    """A probe that is one WebSocket."""

    async def converse(client: Client) -> Observation:
        return await client.converse(target, messages, leave, **options)

    converse.__name__ = name
    probe(converse)


converses("ws_echo", "/live/ws/echo", "text", "ä€😀", "", b"\x00\xff", b"", leave=True)
converses("ws_echo_big", "/live/ws/echo", "t" * 900_000, b"b" * 900_000, leave=True)
converses("ws_echo_without_compression", "/live/ws/echo", "text", b"bytes", leave=True, compression=None)
converses("ws_json", "/live/ws/json", '{"a": [1, null]}')
converses("ws_json_broken", "/live/ws/json", "{")
converses("ws_subprotocol", "/live/ws/subprotocol", subprotocols=["one", "two"])
converses("ws_without_a_subprotocol", "/live/ws/subprotocol")
for number in (1000, 1001, 1008, 1011, 3000, 4999):
    converses(f"ws_close_{number}", f"/live/ws/close/{number}?reason=gr%C3%BCnde")
converses("ws_close_without_a_reason", "/live/ws/close/1000")
converses(
    "ws_parameters",
    "/live/ws/params/7?q=a%20b&token=right",
    additional_headers=[("cookie", "session=s"), ("x-token", "1"), ("x-token", "2")],
)
converses("ws_parameter_invalid", "/live/ws/params/seven")
converses("ws_exception_of_a_dependency", "/live/ws/params/7?token=wrong")
converses("ws_denied", "/live/ws/denied")
converses("ws_denied_with_a_body", "/live/ws/denied-with-a-body")
converses("ws_denied_by_an_http_exception", "/live/ws/denied-by-exception")
converses("ws_unknown_path", "/live/ws/none")
converses("ws_to_an_http_route", "/inputs/words/x")
converses("ws_fails_after_accepting", "/live/ws/fails")
converses("ws_ends_without_closing", "/live/ws/ends/after%20accepting")
converses("ws_ends_without_accepting", "/live/ws/ends/without%20accepting")
converses("ws_ends_as_if_cancelled", "/live/ws/ends/cancelled")
converses("ws_fails_before_accepting", "/live/ws/fails-before-accepting")
converses("ws_starlette_route", "/starlette/ws", "hello")
converses("ws_in_a_mount", "/mounted/ws")
converses("ws_host_not_trusted", "/live/ws/echo", host="evil.test")
asks("ws_path_asked_by_http", "GET", "/live/ws/echo")


@probe
async def ws_closed_by_the_client(client: Client) -> Observation:
    mark = client.mark()
    async with client.websocket(f"/live/ws/closed-by-client?mark={mark}") as websocket:
        await websocket.send("one message")
        await websocket.close(4321, "tschüß")
        closed = websocket.close_code
    return [closed, await client.left(mark, "closed")]


@probe
async def ws_lost_by_the_client(client: Client) -> Observation:
    mark = client.mark()
    async with client.websocket(f"/live/ws/closed-by-client?mark={mark}") as websocket:
        websocket.transport.abort()
        return await client.left(mark, "closed")


@probe
async def ws_stream_step_by_step(client: Client) -> Observation:
    mark = client.mark()
    heard: list[Observation] = []
    async with client.websocket(f"/live/ws/stream?mark={mark}") as websocket:
        for step in range(4):
            await client.release(mark, step)
            heard.append(await websocket.recv())
        try:
            await websocket.recv()
        except ConnectionClosed as closed:
            heard.append(closed.rcvd and closed.rcvd.code)
    return heard


@probe
async def ws_ping(client: Client) -> Observation:
    async with client.websocket("/live/ws/echo") as websocket:
        await (await websocket.ping(b"payload"))
        await websocket.send("after the ping")
        return await websocket.recv()


@probe
async def ws_handshake_of_an_unknown_version(client: Client) -> Observation:
    return await client.ask(
        "GET",
        "/live/ws/echo",
        [
            ("connection", "Upgrade"),
            ("upgrade", "websocket"),
            ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
            ("sec-websocket-version", "12"),
        ],
    )


@probe
async def upgrade_to_something_else(client: Client) -> Observation:
    return await client.ask("GET", "/inputs/words/x", [("connection", "Upgrade"), ("upgrade", "some-protocol")])
