"""API keys that are created and revoked while processes run. Each `api_keys` of a file stands for one process."""

import logging
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import httpx
import pytest
from fastapi import Depends, FastAPI
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app_toolkit import ChatError, ConfigError
from app_toolkit.chat import KeyFile, KeyLimits, api_keys, keys_router
from app_toolkit.chat.key_files import parse_keys
from app_toolkit.cli.main import main
from tests.chat.served import in_process

pytestmark = pytest.mark.anyio

ROOT = {"authorization": "Bearer root-0123456789abcdef"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text("# the keys\n")
    path.chmod(0o640)
    return path


def read(file: Path) -> tuple[str, int]:
    """The text and the mode of a file."""
    return file.read_text(), stat.S_IMODE(file.stat().st_mode)


def write(file: Path, text: str | None) -> None:
    """Write a file by hand, or delete it."""
    file.unlink(missing_ok=True)
    if text is not None:
        file.write_text(text)


def process(file: Path, clock: list[float], **options: Any) -> FastAPI:
    """An app whose route needs a key of the file."""
    keys, app = api_keys(file=file, now=lambda: clock[0], **options), FastAPI()
    app.include_router(keys_router(keys, admin=api_keys({"root": "root-0123456789abcdef"})), prefix="/admin/keys")

    @app.get("/")
    async def name(name: Annotated[str, Depends(keys)]) -> str:
        return name

    return app


async def status(http: httpx.AsyncClient, key: str) -> int:
    return (await http.get("/", headers={"x-api-key": key})).status_code


async def test_a_change_is_noticed_in_every_process_after_a_second_and_survives_a_restart(file: Path) -> None:
    clock = [0.0]
    async with in_process(process(file, clock)) as one, in_process(process(file, clock)) as other:
        created = await one.post("/admin/keys", json={"name": "ada"}, headers=ROOT)
        assert (created.status_code, created.headers["cache-control"]) == (201, "no-store")
        key = created.json()["key"]
        assert (await status(one, key), await status(other, key)) == (200, 401)
        clock[0] = 1.0
        assert (await status(one, key), await status(other, key)) == (200, 200)
        async with in_process(process(file, clock)) as restarted:
            assert (await restarted.get("/admin/keys", headers=ROOT)).json() == [{"name": "ada"}]
        assert (await other.delete("/admin/keys/ada", headers=ROOT)).status_code == 204
        assert (await status(one, key), await status(other, key)) == (200, 401)
        clock[0] = 2.0
        assert await status(one, key) == 401
    assert read(file) == ("# the keys\n", 0o640)


async def test_only_an_administrator_changes_keys_and_mistakes_have_a_status(file: Path) -> None:
    async with in_process(process(file, [0.0])) as http:
        key = (await http.post("/admin/keys", json={"name": "ada"}, headers=ROOT)).json()["key"]
        for headers in ({}, {"x-api-key": key}):
            assert (await http.get("/admin/keys", headers=headers)).status_code == 401
            assert (await http.post("/admin/keys", json={"name": "eve"}, headers=headers)).status_code == 401
            assert (await http.delete("/admin/keys/ada", headers=headers)).status_code == 401
        for name, expected in (("ada", 409), ("a b", 422), ("a=b", 422), ("", 422), ("..", 422)):
            assert (await http.post("/admin/keys", json={"name": name}, headers=ROOT)).status_code == expected
        assert (await http.delete("/admin/keys/eve", headers=ROOT)).status_code == 404
        assert key not in read(file)[0]
        write(file, "nameless\n")
        failed = await http.post("/admin/keys", json={"name": "eve"}, headers=ROOT)
        assert (failed.status_code, failed.json()["code"]) == (503, "keys_unavailable")


async def test_keys_stay_when_the_file_becomes_invalid_or_vanishes(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock, key = [0.0], KeyFile(file).create("ada")
    entry, _ = read(file)
    async with in_process(process(file, clock)) as http:
        for text in (f"{entry}nameless\n", None):
            write(file, text)
            clock[0] += 1
            assert await status(http, key) == 200
        assert [record.levelno for record in caplog.records if "earlier API keys" in record.message] == [
            logging.ERROR,
            logging.ERROR,
        ]
        write(file, "")
        clock[0] += 1
        assert await status(http, key) == 401


async def test_a_key_that_is_created_later_has_its_limits(file: Path) -> None:
    app = process(file, [0.0], limits={"ada": KeyLimits(max_per_minute=1)})
    async with in_process(app) as http:
        key = (await http.post("/admin/keys", json={"name": "ada"}, headers=ROOT)).json()["key"]
        assert [await status(http, key) for _ in range(2)] == [200, 429]


def test_keys_that_are_created_at_the_same_time_are_all_stored(tmp_path: Path) -> None:
    path = tmp_path / "new"
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda number: KeyFile(path).create(f"key{number}"), range(40)))
    keys = KeyFile(path)
    keys.read()
    assert set(keys.hashes()) == {f"key{number}" for number in range(40)}
    assert len(set(made)) == 40
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert {entry.name for entry in tmp_path.iterdir()} == {"new", ".new.lock"}


NAMES = st.lists(st.text("abc1@", min_size=1, max_size=3), unique=True, min_size=1, max_size=6)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(NAMES, st.data())
def test_revoking_removes_one_entry_of_a_file_written_by_hand(
    file: Path, names: list[str], data: st.DataObject
) -> None:
    separators = data.draw(st.lists(st.sampled_from([",", " , ", "\n", ",\n", "\n# a=b\n"]), min_size=6, max_size=6))
    entries = [f"{name}={name:x>16}" for name in names]
    file.write_text("".join(entry + separator for entry, separator in zip(entries, separators, strict=False)))
    comments = file.read_text().count("#")
    name = data.draw(st.sampled_from(names))
    KeyFile(file).revoke(name)
    assert [kept for kept, _ in parse_keys(file.read_text(), "")] == [kept for kept in names if kept != name]
    assert file.read_text().count("#") == comments


def test_a_file_that_cannot_be_written_is_an_error_of_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ChatError, match=r"the file .* cannot be changed: .*No such file") as refused:
        KeyFile(tmp_path / "missing" / "keys").create("ada")
    assert refused.value.status == 503


def test_a_router_needs_a_file_and_other_keys_for_administrators(file: Path) -> None:
    keys = api_keys({"ada": "ada-0123456789abcdef"})
    with pytest.raises(ConfigError, match="the keys are not in a file"):
        keys_router(keys, admin=keys)
    in_file = api_keys(file=file)
    with pytest.raises(ConfigError, match="admin is keys"):
        keys_router(in_file, admin=in_file)


def test_the_command_creates_lists_and_revokes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def run(*words: str) -> tuple[str, str]:
        with suppress(SystemExit):
            main(["keys", *words, "--file", os.fspath(tmp_path / "keys")])
        shown = capsys.readouterr()
        return shown.out, shown.err

    key, _ = run("create", "ada")
    assert len(key.strip()) == 43
    assert run("list") == ("ada\n", "")
    assert "there is an API key 'ada' already" in run("create", "ada")[1]
    assert run("revoke", "ada") == ("", "")
    assert run("list") == ("", "")
    assert "there is no API key 'ada'" in run("revoke", "ada")[1]
    assert "name the key" in run("create")[1]
