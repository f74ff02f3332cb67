"""A snapshot of Python files: which are in it, and that a process imports them and no others."""

import importlib
import inspect
import linecache
import sys
import traceback
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from app_toolkit.errors import TargetError
from app_toolkit.userapp import sources
from app_toolkit.userapp.sources import are_older, read, take, use


@pytest.fixture
def app(tmp_path: Path) -> Path:
    folder = tmp_path / "app"
    for name, text in (
        ("snapped.py", "import snapped_shop\nSAID = 'old'\n"),
        ("snapped_shop/__init__.py", "from snapped_shop.inner import fail\n"),
        ("snapped_shop/inner.py", "def fail():\n    raise ValueError('old')\n"),
        ("snapped_space/later.py", "SAID = 'old'\n"),
        ("snapped_shop/data.txt", "data"),
        ("my-scripts/1job.py", "1"),
        (".hidden/x.py", "1"),
        ("__pycache__/x.py", "1"),
        ("venv/pyvenv.cfg", ""),
        ("venv/lib/python3/site.py", "1"),
        ("conda/conda-meta/history", ""),
        ("conda/module.py", "1"),
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "round").symlink_to(folder)
    return folder


@pytest.fixture
def _imports_are_forgotten() -> Iterator[None]:
    path, hooks, modules, lines = list(sys.path), list(sys.path_hooks), set(sys.modules), dict(linecache.cache)
    yield
    sys.path[:], sys.path_hooks[:] = path, hooks
    for name in set(sys.modules) - modules:
        del sys.modules[name]
    linecache.cache.clear()
    linecache.cache.update(lines)
    sys.path_importer_cache.clear()


def files(folder: Path) -> dict[str, bytes]:
    taken = take(folder)
    assert taken.complete
    return read(taken.hash, taken.archive)


def imported(folder: Path, name: str) -> ModuleType:
    sys.path.insert(0, str(folder))
    return importlib.import_module(name)


def test_it_has_the_python_files_that_can_be_imported_from_the_folder(app: Path) -> None:
    assert list(files(app)) == [
        "my-scripts/1job.py",
        "snapped.py",
        "snapped_shop/__init__.py",
        "snapped_shop/inner.py",
        "snapped_space/later.py",
    ]


def test_a_folder_that_a_link_names_again_is_there_under_both_names(app: Path) -> None:
    (app / "snapped_shop" / "common").symlink_to(app / "snapped_space")
    (app / "snapped_space" / "back").symlink_to(app / "snapped_shop")
    found = files(app)
    assert found["snapped_shop/common/later.py"] == found["snapped_space/later.py"]
    assert found["snapped_space/back/inner.py"] == found["snapped_shop/inner.py"]
    assert "snapped_shop/common/back/inner.py" not in found, "the link leads to a folder that it is in"


def test_the_same_files_are_the_same_snapshot(app: Path) -> None:
    first = take(app)
    (app / "snapped_shop" / "data.txt").write_text("other data")
    assert take(app) == first
    (app / "snapped.py").write_text("SAID = 'new'\n")
    assert take(app).hash != first.hash


def test_a_folder_of_many_files_is_not_looked_through_and_that_is_said(
    app: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "MOST_ENTRIES", 8)
    taken = take(app)
    assert not taken.complete
    assert list(read(taken.hash, taken.archive)) == ["snapped.py"]


@pytest.mark.parametrize(
    ("archive", "sentence"),
    [
        (None, "are no longer in the store"),
        (b"no archive", "cannot be read"),
        (zlib.compress(b"others"), "are not those that were packed as"),
    ],
)
def test_archive_with_another_hash_is_refused(app: Path, archive: bytes | None, sentence: str) -> None:
    with pytest.raises(TargetError, match=sentence):
        read(take(app).hash, archive)


@pytest.mark.usefixtures("_imports_are_forgotten")
def test_a_process_imports_the_snapshot_and_sees_the_paths_of_the_folder(app: Path) -> None:
    use(str(app), files(app))
    for name in ("snapped.py", "snapped_shop/inner.py", "snapped_space/later.py"):
        path = app / name
        path.write_text("\n\n" + path.read_text().replace("old", "new"))
    (app / "snapped_shop" / "__init__.py").unlink()
    snapped, later = imported(app, "snapped"), imported(app, "snapped_space.later")
    assert (snapped.SAID, later.SAID) == ("old", "old")
    assert snapped.__file__ == str(app / "snapped.py")
    try:
        snapped.snapped_shop.fail()
    except ValueError as error:
        shown = "".join(traceback.format_exception(error))
    assert f"File \"{app}/snapped_shop/inner.py\", line 2, in fail\n    raise ValueError('old')\n" in shown
    assert inspect.getsource(snapped.snapped_shop.fail) == "def fail():\n    raise ValueError('old')\n"
    linecache.checkcache()
    assert linecache.getline(str(app / "snapped.py"), 2) == "SAID = 'old'\n"


@pytest.mark.usefixtures("_imports_are_forgotten")
def test_the_bytecode_of_another_version_is_neither_read_nor_written(
    app: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    use(str(app), files(app))
    cached = Path(importlib.util.cache_from_source(str(app / "snapped.py")))
    assert imported(app, "snapped").SAID == "old"
    assert cached.exists(), "the file on disk is the same, so its bytecode may be kept"
    cached.unlink()
    (app / "snapped.py").write_text("SAID = 'new'\n")
    del sys.modules["snapped"]
    assert imported(app, "snapped").SAID == "old"
    assert not cached.exists()


@pytest.mark.usefixtures("_imports_are_forgotten")
def test_module_outside_the_snapshot_is_imported_from_disk(app: Path) -> None:
    use(str(app), files(app))
    (app / "snapped_new.py").write_text("SAID = 'new'\n")
    (app / "snapped_shop" / "snapped_new.py").write_text("SAID = 'new'\n")
    assert imported(app, "snapped_new").SAID == "new"
    assert imported(app, "snapped_shop.snapped_new").SAID == "new"
    with pytest.raises(ModuleNotFoundError):
        imported(app, "snapped_nowhere")


def test_files_are_those_on_disk_until_one_of_them_changes(app: Path) -> None:
    snapshot = take(app)
    files = read(snapshot.hash, snapshot.archive)
    changed = max((app / name).stat().st_ctime_ns for name in files)
    assert are_older(str(app), files, changed + 1)
    assert not are_older(str(app), files, changed)
    (app / next(iter(files))).unlink()
    assert not are_older(str(app), files, sys.maxsize)
