"""Files of users in a folder, and in places of fsspec."""

import asyncio
import os
import pickle
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from app_toolkit.chat import Attachment, ChatError, FileStore, StoredFile
from app_toolkit.errors import ConfigError

pytestmark = pytest.mark.anyio

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 100


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "files", max_size=1_000, max_user_size=2_000, max_user_files=3)


def left(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*") if path.is_file()]


async def content_of(store: FileStore, file: StoredFile) -> bytes:
    return b"".join([chunk async for chunk in store.content(file.id)])


async def test_a_file_is_found_by_its_user_only(store: FileStore) -> None:
    file = await store.put("ada", PNG, name="../a.png")
    assert (file.name, file.media_type, file.size) == ("a.png", "image/png", len(PNG))
    assert await store.get("ada", file.id) == file
    assert await store.list("ada") == [file]
    assert await content_of(store, file) == PNG
    assert await store.get("bob", file.id) is None
    assert await store.list("bob") == []
    assert not await store.delete("bob", file.id)
    assert await store.delete("ada", file.id)
    assert await store.get("ada", file.id) is None


@pytest.mark.parametrize("id", ["", "file-../../etc/passwd", "file-" + "0" * 64, "file-" + "0" * 63 + "/"])
async def test_an_unknown_id_is_no_file(store: FileStore, id: str) -> None:
    assert await store.get("ada", id) is None
    with pytest.raises(ChatError, match="there is no file") as raised:
        await anext(store.content(id))
    assert raised.value.status == 404


async def test_other_work_goes_on_while_the_content_of_a_url_is_decoded(store: FileStore) -> None:
    url = "data:image/png;base64," + "%41" * 400_001  # not valid, so that nothing else is done
    turns = 0

    async def work() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    working = asyncio.create_task(work())
    for decoded in (store.put_url("ada", url), store.read(Attachment("image/png", url))):
        before = turns
        with pytest.raises(ChatError, match="not valid"):
            await decoded
        assert turns > before + 1
    working.cancel()


async def test_the_newest_file_is_the_first_one(store: FileStore) -> None:
    files = [await store.put("ada", f"text {number}".encode()) for number in range(3)]
    assert await store.list("ada") == files[::-1]


async def test_a_model_reads_attachments_with_a_copy_of_the_store(store: FileStore) -> None:
    file = await store.put("ada", b"hello", name="a.txt")
    copy = pickle.loads(pickle.dumps(store))
    assert await copy.read(Attachment("text/plain", store.url_of(file.id), file_id=file.id)) == b"hello"
    assert await copy.read(Attachment("text/plain", "data:text/plain;base64,aGk=")) == b"hi"
    assert await copy.read(Attachment("text/plain", "data:,a%20b")) == b"a b"
    with pytest.raises(ChatError, match="not a file of this server"):
        await copy.read(Attachment("text/plain", "https://example.com/a.txt"))
    with pytest.raises(ChatError, match="not valid"):
        await copy.read(Attachment("text/plain", "data:text/plain;base64,?"))


async def test_the_same_content_of_a_url_is_stored_once(store: FileStore) -> None:
    first = await store.put_url("ada", "data:text/plain;base64,aGk=", name="a.txt")
    assert await store.put_url("ada", "data:text/plain;base64,aGk=") == first
    assert (await store.put_url("bob", "data:text/plain;base64,aGk=")).id != first.id


@pytest.mark.parametrize(
    ("content", "media_type", "status", "message"),
    [
        (b"a" * 1_001, "text/plain", 413, "the file 'a' has more than 1,000 bytes, the limit of a file"),
        (b"", "text/plain", 400, "the file 'a' is empty"),
        (b"<script>", "image/png", 415, "the file 'a' says that it is image/png, but its content is not"),
        (b"<svg/>", "image/svg+xml", 415, "the file 'a' has the type image/svg"),
        (b"\0", "", 415, "the file 'a' has the type application/octet-stream: allowed are"),
    ],
)
async def test_a_file_that_is_refused_leaves_nothing(
    store: FileStore, tmp_path: Path, content: bytes, media_type: str, status: int, message: str
) -> None:
    with pytest.raises(ChatError, match=message.replace("(", ".")) as raised:
        await store.put("ada", content, name="a", media_type=media_type)
    assert raised.value.status == status
    assert left(tmp_path) == []


async def test_the_files_of_a_user_are_limited(store: FileStore) -> None:
    for size in (1_000, 999):
        await store.put("ada", b"a" * size)
    with pytest.raises(ChatError, match="would have more than 2,000 bytes"):
        await store.put("ada", b"bb")
    await store.put("ada", b"b")
    with pytest.raises(ChatError, match="the user has 3 files, which is the limit"):
        await store.put("ada", b"c")
    await store.put("bob", b"c")


async def test_uploads_at_the_same_time_keep_the_limits(store: FileStore) -> None:
    uploads = [store.put("ada", b"a" * 900) for _ in range(5)]
    results = await asyncio.gather(*uploads, return_exceptions=True)
    assert all(isinstance(result, StoredFile | ChatError) for result in results), results
    assert len(await store.list("ada")) <= 2


async def test_an_upload_that_breaks_leaves_nothing(store: FileStore, tmp_path: Path) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"a" * 600
        raise ValueError("the client has gone")

    with pytest.raises(ValueError, match="has gone"):
        await store.put("ada", broken())
    assert left(tmp_path) == []


async def test_an_upload_that_is_cancelled_leaves_nothing(store: FileStore, tmp_path: Path) -> None:
    waiting = asyncio.Event()

    async def endless() -> AsyncIterator[bytes]:
        yield b"a"
        waiting.set()
        await asyncio.Event().wait()

    upload = asyncio.ensure_future(store.put("ada", endless()))
    await waiting.wait()
    assert len(left(tmp_path)) == 1
    upload.cancel()
    with pytest.raises(asyncio.CancelledError):
        await upload
    assert left(tmp_path) == []


async def test_what_a_killed_process_has_left_is_removed_by_a_later_upload(store: FileStore, tmp_path: Path) -> None:
    file = await store.put("ada", b"a")
    folder = next((tmp_path / "files").iterdir())
    key = file.id[-32:]
    dead, young = folder / f"{'0' * 32}.content", folder / f"{'1' * 32}.content.12345678.part"
    for path in (dead, young):
        path.write_bytes(b"x")
    os.utime(dead, (0, 0))
    os.utime(folder / f"{key}.content", (0, 0))
    other = await store.put("ada", b"b")
    names = {f"{stem}.{end}" for stem in (key, other.id[-32:]) for end in ("content", "json")}
    assert set(left(tmp_path)) == {*names, young.name}


async def test_processes_share_a_folder(store: FileStore, tmp_path: Path) -> None:
    program = (
        "import asyncio, sys\n"
        "from app_toolkit.chat import FileStore\n"
        "store = FileStore(sys.argv[1])\n"
        "print(asyncio.run(store.put('ada', b'from a process')).id)\n"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, str(tmp_path / "files"), stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    (file,) = await store.list("ada")
    assert file.id == output.decode().strip()
    assert await content_of(store, file) == b"from a process"


async def test_a_folder_that_cannot_be_written_is_a_503(tmp_path: Path) -> None:
    (tmp_path / "files").write_text("no folder")
    with pytest.raises(ChatError) as raised:
        await FileStore(tmp_path / "files").put("ada", b"a")
    assert raised.value.status == 503
    assert raised.value.message == "the files cannot be read or written: Not a directory"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
async def test_a_full_disk_is_a_507(store: FileStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.open
    monkeypatch.setattr(
        os, "open", lambda path, flags, mode=0o777: write("/dev/full" if ".part" in str(path) else path, os.O_WRONLY)
    )
    with pytest.raises(ChatError, match="no room for more files") as raised:
        await store.put("ada", b"a")
    assert (raised.value.status, left(tmp_path)) == (507, [])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_size": 0}, "max_size = 0: must be 1 or above"),
        ({"url": "api/files"}, "url = 'api/files': must be a path"),
        ({"media_types": "image/png"}, "pass a list"),
        ({"media_types": ["png"]}, "media_types has 'png': write it as"),
        ({"location": "nowhere://user:secret@place"}, "cannot use a URL with nowhere://|needs fsspec"),
    ],
)
def test_an_option_out_of_bounds_is_refused(tmp_path: Path, options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        FileStore(**{"location": tmp_path, **options})  # type: ignore[arg-type]
