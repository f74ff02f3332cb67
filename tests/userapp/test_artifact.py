"""Files as one archive: which of them, when two are the same, and how they come to lie on a node."""

import hashlib
import io
import os
import tarfile
import threading
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from app_toolkit.errors import ConfigError, TargetError
from app_toolkit.userapp import artifact
from app_toolkit.userapp.artifact import Unpacked, pack
from tests.patience import PATIENCE_S


@pytest.fixture
def app(tmp_path: Path) -> Path:
    folder = tmp_path / "app"
    (folder / "shop").mkdir(parents=True)
    (folder / "main.py").write_text("from shop import app")
    (folder / "shop" / "__init__.py").write_text("app = 1")
    return folder


def names(archive: bytes) -> list[str]:
    with tarfile.open(fileobj=io.BytesIO(zlib.decompress(archive))) as tar:
        return tar.getnames()


def never() -> bytes | None:
    raise AssertionError("it is there already")


def found(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_same_files_are_the_same_artifact(app: Path, tmp_path: Path) -> None:
    first = pack(app)
    copy = tmp_path / "elsewhere"
    (copy / "shop").mkdir(parents=True)
    for name in ("shop/__init__.py", "main.py"):  # in another order
        (copy / name).write_bytes((app / name).read_bytes())
        os.utime(copy / name, (1, 1))
    assert pack(copy) == first


@pytest.mark.parametrize(
    "change",
    [
        lambda app: (app / "main.py").write_text("from shop import api"),
        lambda app: (app / "main.py").rename(app / "start.py"),
        lambda app: (app / "main.py").chmod(0o755),
        lambda app: (app / "empty.py").touch(),
    ],
    ids=["content", "name", "executable", "one more"],
)
def test_other_files_are_another_artifact(app: Path, change: Callable[[Path], object]) -> None:
    before = pack(app)
    change(app)
    assert pack(app).hash != before.hash


def test_files_of_no_application_are_left_out(app: Path) -> None:
    before = pack(app)
    for name in (".git/config", "node_modules/x/y.js", "shop/__pycache__/x.pyc", "old.pyc", "env/pyvenv.cfg"):
        (app / name).parent.mkdir(parents=True, exist_ok=True)
        (app / name).write_text("x")
    (app / "nothing").mkdir()
    assert pack(app) == before
    assert names(before.archive) == ["main.py", "shop/__init__.py"]


def test_links_are_followed_and_circles_end(app: Path, tmp_path: Path) -> None:
    (tmp_path / "weights").write_text("w")
    (app / "weights").symlink_to(tmp_path / "weights")
    (app / "shop" / "again").symlink_to(app)
    (app / "lost").symlink_to(tmp_path / "missing")
    assert names(pack(app).archive) == ["main.py", "shop/__init__.py", "weights"]


def test_error_names_the_largest_files_if_a_folder_is_too_large(app: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(artifact, "MOST_BYTES", 100)
    (app / "data").mkdir()
    (app / "data" / "large").write_bytes(bytes(90))
    with pytest.raises(ConfigError, match=r"more than the 100 bytes that are packed, 'data' alone 90: keep what is"):
        pack(app)


def test_unreadable_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"the files below .*/missing cannot be packed"):
        pack(tmp_path / "missing")


def test_artifact_is_unpacked_once_and_equals_the_packed_files(app: Path, tmp_path: Path) -> None:
    (app / "main.py").chmod(0o755)
    packed = pack(app)
    first = Unpacked(packed.hash, lambda: packed.archive, tmp_path / "node")
    second = Unpacked(packed.hash, never, tmp_path / "node")
    assert first.folder == second.folder == tmp_path / "node" / packed.hash
    assert found(first.folder) == {"main.py": "from shop import app", "shop/__init__.py": "app = 1"}
    assert os.access(first.folder / "main.py", os.X_OK)
    first.close()
    second.close()


@pytest.mark.parametrize("attempt", range(3))
def test_of_many_that_come_at_once_one_unpacks_and_none_waits_for_another_to_let_go(
    app: Path, tmp_path: Path, attempt: int
) -> None:
    packed, asked = pack(app), []
    together, all_there, over = threading.Barrier(8), threading.Semaphore(0), threading.Event()

    def fetch() -> bytes:
        asked.append(threading.get_ident())
        return packed.archive

    def come() -> None:
        together.wait()
        unpacked = Unpacked(packed.hash, fetch, tmp_path / "node")
        all_there.release()
        over.wait()
        unpacked.close()

    threads = [threading.Thread(target=come) for _ in range(8)]
    for thread in threads:
        thread.start()
    there = sum(all_there.acquire(timeout=PATIENCE_S) for _ in threads)
    over.set()
    for thread in threads:
        thread.join()
    assert (there, len(asked)) == (8, 1)


def test_files_in_use_stay_and_others_are_removed_if_room_is_needed(app: Path, tmp_path: Path) -> None:
    node, packed = tmp_path / "node", []
    for number in range(3):
        (app / "main.py").write_text(str(number))
        packed.append(pack(app))
    held = Unpacked(packed[0].hash, lambda: packed[0].archive, node)
    Unpacked(packed[1].hash, lambda: packed[1].archive, node).close()
    assert held.folder.is_dir()
    assert (node / packed[1].hash).is_dir()
    last = Unpacked(packed[2].hash, lambda: packed[2].archive, node)
    assert {path.name for path in node.iterdir() if path.is_dir()} == {packed[0].hash, packed[2].hash}
    held.close()
    last.close()


def test_interrupted_unpacking_is_started_again(app: Path, tmp_path: Path) -> None:
    packed, node = pack(app), tmp_path / "node"
    node.mkdir(mode=0o700)
    (node / f"{packed.hash}.partial" / "shop").mkdir(parents=True)
    (node / f"{packed.hash}.partial" / "half.py").write_text("x")
    unpacked = Unpacked(packed.hash, lambda: packed.archive, node)
    assert found(unpacked.folder).keys() == {"main.py", "shop/__init__.py"}
    unpacked.close()


def with_one_entry(name: str, type: bytes = tarfile.REGTYPE) -> tuple[str, bytes]:
    """The hash and the archive of what nobody but an attacker would pack."""
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as archive:
        entry = tarfile.TarInfo(name)
        entry.type, entry.linkname = type, "/etc/passwd"
        archive.addfile(entry)
    return hashlib.sha256(tar.getvalue()).hexdigest(), zlib.compress(tar.getvalue())


@pytest.mark.parametrize(
    ("name", "type"),
    [
        ("../evil.py", tarfile.REGTYPE),
        ("shop/../../evil.py", tarfile.REGTYPE),
        ("/tmp/evil.py", tarfile.REGTYPE),
        ("evil.py", tarfile.SYMTYPE),
        ("evil.py", tarfile.LNKTYPE),
        ("evil.py", tarfile.FIFOTYPE),
    ],
)
def test_archive_with_anything_but_files_below_the_folder_is_refused(name: str, type: bytes, tmp_path: Path) -> None:
    hash, archive = with_one_entry(name, type)
    with pytest.raises(TargetError, match=r"cannot be unpacked: .*evil.py' is not a regular file below the folder"):
        Unpacked(hash, lambda: archive, tmp_path / "node")
    assert found(tmp_path).keys() == {f"node/{hash}.lock", f"node/{hash}.unpack.lock"}


def test_an_archive_of_something_else_is_refused_and_leaves_nothing(app: Path, tmp_path: Path) -> None:
    packed, node = pack(app), tmp_path / "node"
    with pytest.raises(TargetError, match="not those that were packed as 1a"):
        Unpacked("1a", lambda: packed.archive, node)
    with pytest.raises(TargetError, match="cannot be unpacked"):
        Unpacked("1a", lambda: packed.archive[:20], node)
    with pytest.raises(TargetError, match="are no longer in the store"):
        Unpacked("1a", lambda: None, node)
    assert {path.name for path in node.iterdir()} == {"1a.lock", "1a.unpack.lock"}
