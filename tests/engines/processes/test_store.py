"""The state store in a damaged file. The contract of all stores is in `tests/engines/test_contract.py`."""

import resource
from pathlib import Path

import pytest

from app_toolkit.engines.processes.store import SQLiteStore
from app_toolkit.errors import ControlError, CorruptValue

pytestmark = pytest.mark.anyio


async def test_a_damaged_file_is_an_error_until_something_is_deleted(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "store.db")
    await store.compare_and_set("key", None, b"value")
    (tmp_path / "store.db").write_bytes(b"damaged" * 1_000)
    with pytest.raises(CorruptValue, match=r"the state store .*store\.db is damaged: file is not a database"):
        await store.get("key")
    await store.delete("key")
    assert await store.get("key") is None
    await store.compare_and_set("key", None, b"another value")
    assert await store.get("key") == b"another value"


async def test_what_a_store_that_stays_open_writes_is_seen_by_others_at_once(tmp_path: Path) -> None:
    store, other = SQLiteStore(tmp_path / "store.db"), SQLiteStore(tmp_path / "store.db")
    with store.kept_open():
        await store.compare_and_set("key", None, b"value")
        assert (tmp_path / "store.db-wal").exists()
        assert await other.get("key") == b"value"
        await other.compare_and_set("key", b"value", b"another value")
        assert await store.get("key") == b"another value"
    assert not (tmp_path / "store.db-wal").exists()


async def test_a_store_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "store.db")
    await store.compare_and_set("key", None, b"value")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1024, hard))
    try:
        with pytest.raises(ControlError, match=r"the state store .*store\.db cannot be used: disk I/O error"):
            await store.compare_and_set("other", None, bytes(100_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
