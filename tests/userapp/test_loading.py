"""Finding the user's app, and saying why it cannot be found."""

import sys
from pathlib import Path
from typing import Any

import pytest

from app_toolkit.errors import PlanningError, TargetError
from app_toolkit.types import Message, Receive, Scope, Send
from app_toolkit.userapp.loading import Lifespan, configure_logging, host, load
from tests.replica.client import Serve


def test_an_app_is_found_by_module_and_attribute(serve: Serve) -> None:
    spec = serve.spec("app = FastAPI(title='found')")
    app: Any = load(spec.target, spec.app_dir)
    assert app.title == "found"


@pytest.mark.parametrize("target", ["shop", "shop:", ":app", ""])
def test_a_target_has_two_halves(target: str) -> None:
    with pytest.raises(TargetError, match=f"the target '{target}' is not of the form 'module:attribute'"):
        load(target, "/tmp")


@pytest.mark.parametrize(
    ("source", "message", "cause"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero", ZeroDivisionError),
        (
            "import a_library_that_is_missing",
            "No module named 'a_library_that_is_missing'",
            ModuleNotFoundError,
        ),
        ("def broken(:", "SyntaxError", SyntaxError),
        ("import sys; sys.exit(3)", "SystemExit: 3", SystemExit),
    ],
)
def test_an_error_of_the_module_keeps_its_traceback(
    serve: Serve, source: str, message: str, cause: type[BaseException]
) -> None:
    spec = serve.spec(source)
    with pytest.raises(TargetError, match=message) as raised:
        load(spec.target, spec.app_dir)
    assert isinstance(raised.value.__cause__, cause)


def test_app_with_several_ingresses_needs_the_name_of_one() -> None:
    class Several:
        served: str | None = None

        def serve_only(self, ingress: str) -> None:
            if ingress == "unknown":
                raise PlanningError("the app has no ingress 'unknown'")
            self.served = ingress

        async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...

    app = Several()
    assert host(app, "chat") is app
    assert app.served == "chat"
    with pytest.raises(PlanningError):
        host(app, "unknown")


@pytest.mark.anyio
async def test_a_startup_that_fails_silently_still_has_a_reason() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "lifespan.startup.failed"})

    lifespan = Lifespan(app)
    await lifespan({"type": "lifespan"}, _nobody, _drop)
    assert lifespan.failure == "the app gave no reason"


@pytest.mark.anyio
async def test_a_startup_that_raises_keeps_its_traceback() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise ValueError("raw")

    lifespan = Lifespan(app)
    with pytest.raises(ValueError, match="raw"):
        await lifespan({"type": "lifespan"}, _nobody, _drop)
    assert lifespan.failure is not None
    assert lifespan.failure.startswith("Traceback")


async def _nobody() -> Message:
    raise AssertionError("nobody should ask")


async def _drop(message: Message) -> None: ...


@pytest.mark.parametrize(
    ("handler", "said"),
    [
        ("nowhere.Handler", "Unable to configure handler 'own': Cannot resolve 'nowhere.Handler': No module named"),
        ("logging.FileHandler", "Unable to configure handler 'own': "),
    ],
)
def test_a_logging_configuration_that_cannot_be_applied_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, handler: str, said: str
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    config = {"version": 1, "handlers": {"own": {"class": handler}}}
    with pytest.raises(TargetError) as refused:
        configure_logging(config, str(tmp_path))
    assert str(refused.value).startswith(f"logging_config cannot be applied: {said}")
    assert "\n" not in str(refused.value)
