"""Files as one archive: which of them, when two are the same, and how they come to lie on a node."""

import hashlib
import io
import os
import stat
import tarfile
import threading
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from app_toolkit.errors import ConfigError, TargetError
from app_toolkit.userapp import artifact
from app_toolkit.userapp.artifact import Artifact, Unpacked, select
from tests.patience import PATIENCE_S
from tests.security.other_user import NOBODY, needs_root, other_user, shared_folder


@pytest.fixture
def app(tmp_path: Path) -> Path:
    folder = tmp_path / "app"
    (folder / "shop").mkdir(parents=True)
    (folder / "main.py").write_text("from shop import app")
    (folder / "shop" / "__init__.py").write_text("app = 1")
    return folder


def pack(folder: Path, *include: str) -> Artifact:
    return artifact.pack(select(folder, include))


def write(folder: Path, *names: str, text: str = "x") -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


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
    write(app, ".git/config", "node_modules/x/y.js", "shop/__pycache__/x.pyc", "old.pyc", "env/pyvenv.cfg")
    (app / "nothing").mkdir()
    assert pack(app) == before
    assert names(before.archive) == ["main.py", "shop/__init__.py"]


def test_a_test_run_does_not_change_the_artifact(app: Path) -> None:
    before = pack(app)
    write(app, ".pytest_cache/v/cache", ".coverage", ".coverage.host.123", "htmlcov/index.html", "coverage.xml")
    write(
        app, ".hypothesis/x", ".mypy_cache/x", ".ruff_cache/x", ".tox/x", "test-results/x", "shop/a.pyo", "server.log"
    )
    assert pack(app) == before


APPLICATIONS = "port: 8000\napplications:\n  shop:\n    target: main:app\n"


def test_application_files_do_not_change_the_artifact(app: Path) -> None:
    before = pack(app)
    write(app, "app.yaml", "deploy/prod.yml", text=APPLICATIONS)
    write(app, "short.yaml", text="applications: {shop: {target: 'main:app'}}")
    write(app, "pyproject.toml", text='[project]\nname = "x"\n\n[tool.app_toolkit.applications.shop]\ntarget = "a:b"')
    assert pack(app) == before
    assert names(pack(app, "app.yaml").archive) == ["app.yaml", "main.py", "shop/__init__.py"]


def test_other_yaml_and_toml_files_are_packed(app: Path) -> None:
    write(app, "pyproject.toml", text='[project]\nname = "x"\n')
    write(app, "settings.yaml", text="applications: [mail, web]\n")
    write(app, "mail.yaml", text="applications: {mail: {smtp: {target: relay}}}\n")
    write(app, "mail.log.html")
    write(app, "texts.yml", text="target: x\n")
    assert {"mail.log.html", "mail.yaml", "pyproject.toml", "settings.yaml", "texts.yml"} < {*names(pack(app).archive)}


def test_settings_and_databases_are_left_out_and_named(app: Path) -> None:
    write(app, ".env", ".env.local", "app.db", "app.db-wal", "data/shop.sqlite3", "logs/a.log", "logs/a.log.1")
    selected = select(app)
    assert [name for name, _ in selected.files] == ["main.py", "shop/__init__.py"]
    assert selected.left_out == (".env", ".env.local", "app.db", "app.db-wal", "data/shop.sqlite3")


@pytest.mark.parametrize(
    ("include", "packed"),
    [
        ([".env"], [".env", "data/.env"]),
        (["./.env"], [".env", "data/.env"]),
        (["data/*.db"], ["data/words.db"]),
        (["*.db", "*.log"], ["data/words.db", "old.log"]),
        (["node_modules/"], ["node_modules/x.js"]),
    ],
)
def test_files_that_are_asked_for_are_packed(app: Path, include: list[str], packed: list[str]) -> None:
    write(app, ".env", "data/.env", "data/words.db", "old.log", "node_modules/x.js")
    selected = select(app, include)
    assert [name for name, _ in selected.files if name not in ("main.py", "shop/__init__.py")] == packed
    assert not {*packed} & {*selected.left_out}


def test_asking_for_a_file_that_does_not_exist_is_an_error(app: Path) -> None:
    with pytest.raises(ConfigError, match=r"include has '.env', and no file or folder below .*/app has this name"):
        select(app, [".env"])


def test_folders_to_which_the_app_may_write_are_named_but_no_code_and_no_static_files(app: Path) -> None:
    write(app, "uploads/a.png", "uploads/b/c.png", "shop/media/x.jpg")
    write(app, "static/media/x.jpg", "templates/uploads/x.html", "data/__init__.py", "data/words.txt", "assets/a.png")
    assert select(app).data_folders == {"uploads": 2, "shop/media": 1}


def test_artifact_has_a_hash_for_each_file_unless_these_are_too_many(
    app: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = pack(app).files
    (app / "main.py").chmod(0o755)
    after = pack(app).files
    assert before.keys() == after.keys() == {"main.py", "shop/__init__.py"}
    assert [name for name in before if before[name] != after[name]] == ["main.py"]
    monkeypatch.setattr(artifact, "MOST_HASHES", 1)
    assert pack(app).files == {}


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


def test_folder_that_cannot_be_read_is_refused_by_name(tmp_path: Path) -> None:
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
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (first.folder, *first.folder.rglob("*"))}
    assert {modes[name] for name in (packed.hash, "shop", "main.py")} == {0o555}
    assert modes["__init__.py"] == 0o444
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


@needs_root  # whom permissions do not stop
def test_what_was_written_below_the_files_is_named_and_is_not_removed_with_them(app: Path, tmp_path: Path) -> None:
    node, first = tmp_path / "node", pack(app)
    (app / "main.py").write_text("x = 1")
    second = pack(app)
    unpacked = Unpacked(first.hash, lambda: first.archive, node)
    assert unpacked.written() == []
    write(unpacked.folder, "__pycache__/main.pyc", "shop/new/app.duckdb", "main.py")
    assert unpacked.written() == ["main.py", "shop/new/app.duckdb"]
    unpacked.close()
    Unpacked(second.hash, lambda: second.archive, node).close()
    assert (unpacked.folder / "shop" / "new" / "app.duckdb").exists()


UNPACKS = "import importlib\nfrom pathlib import Path\nfrom app_toolkit.userapp.artifact import Unpacked\n"
OTHERS = """
    node, hash, archive, other, of_other = sys.argv[1:]
    unpacked = Unpacked(hash, lambda: bytes.fromhex(archive), Path(node))
    refused = []
    for name in ("main.py", "new.db", "shop/new.txt"):
        try:
            (unpacked.folder / name).write_text("x")
        except PermissionError:
            refused.append(name)
    sys.path.insert(0, str(unpacked.folder))
    importlib.import_module("main")
    compiled = sorted(path.name.partition(".")[0] for path in unpacked.folder.rglob("*.pyc"))
    unpacked.close()
    Unpacked(other, lambda: bytes.fromhex(of_other), Path(node)).close()
    say([refused, compiled, sorted(path.name for path in Path(node).iterdir() if path.is_dir()) == [other]])
"""


@needs_root  # who is not stopped by permissions
def test_nobody_changes_unpacked_files_but_python_compiles_them_and_unused_ones_are_removed(app: Path) -> None:
    first = pack(app)
    (app / "main.py").write_text("x = 1")
    second = pack(app)
    with shared_folder() as folder:
        folder.chmod(0o755)
        home = folder / "home"
        home.mkdir(mode=0o700)
        os.chown(home, NOBODY, NOBODY)
        of = [each for artifact in (first, second) for each in (artifact.hash, artifact.archive.hex())]
        with other_user(OTHERS, home / "node", *of, imports=UNPACKS) as other:
            assert other.says() == [["main.py", "new.db", "shop/new.txt"], ["__init__", "main"], True]
