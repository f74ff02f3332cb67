"""What an app cannot do to its own unpacked files, also as root, and what it can."""

import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from app_toolkit.userapp.read_only import Protected
from tests import prepared

REFUSED = """
    open("new.txt", "w")
    open("shop.py", "a")
    open("shop.py", "r+b")
    open(INSIDE / "uploads" / "x", "xb")
    open(os.fsencode(INSIDE / "x"), "w")
    open(OUTSIDE / "link" / "x", "w")
    open(OUTSIDE / "of_file", "w")
    open("../" + INSIDE.name + "/x", "w")
    os.chdir("static"), open("../x", "w")
    os.open("x", os.O_CREAT | os.O_WRONLY)
    Path("x.lock").touch()
    Path("uploads").mkdir()
    os.makedirs("uploads/deep", exist_ok=True)
    os.remove("shop.py")
    Path("shop.py").unlink()
    os.rename("shop.py", OUTSIDE / "moved")
    os.replace(OUTSIDE / "other", "shop.py")
    os.rmdir("static")
    os.rename(INSIDE, OUTSIDE / "moved")
    os.symlink(OUTSIDE / "other", "link")
    os.link(OUTSIDE / "other", "link")
    os.truncate("shop.py", 0)
    shutil.copy(OUTSIDE / "other", "copy")
    shutil.move(OUTSIDE / "other", "moved")
    shutil.rmtree("static")
    shutil.copytree("static", "copy")
    tempfile.NamedTemporaryFile(dir=".")
    logging.FileHandler("app.log")
    sqlite3.connect("app.db")
    sqlite3.connect("./static/app.db")
    sqlite3.connect(INSIDE / "app.db")
    sqlite3.connect("file:words.db", uri=True)
    sqlite3.connect("file:words.db?mode=rwc", uri=True)
    sqlite3.connect(f"file://{INSIDE}/words.db?cache=shared", uri=True)
    dbm.dumb.open("counts", "c")
"""

ALLOWED = """
    open("shop.py").read()
    os.open("shop.py", os.O_RDONLY)
    os.listdir(), os.stat("shop.py"), shutil.copy("static/a.css", OUTSIDE / "a.css")
    importlib.import_module("shop")
    open(OUTSIDE / "x", "w")
    open("../outside/y", "w")
    open(f"{INSIDE}-more", "w")
    open(OUTSIDE / "back", "w")
    os.chdir(OUTSIDE), open("z", "w")
    os.remove(OUTSIDE / "of_file")
    os.makedirs("static", exist_ok=True), Path("static").mkdir(exist_ok=True)
    Path("gone.pid").unlink(missing_ok=True), shutil.rmtree("gone", ignore_errors=True)
    os.mkdir("here", dir_fd=FOLDER), os.rename("here", "there", src_dir_fd=FOLDER, dst_dir_fd=FOLDER)
    os.rmdir("there", dir_fd=FOLDER)
    os.close(private.open_file(Path("own.log"), os.O_WRONLY, dir_fd=FOLDER))
    tempfile.TemporaryFile(), tempfile.mkdtemp(dir=OUTSIDE)
    open(os.devnull, "w"), os.fdopen(os.pipe()[1], "wb")
    sqlite3.connect(":memory:"), sqlite3.connect(""), sqlite3.connect("file::memory:", uri=True)
    sqlite3.connect(OUTSIDE / "app.db").execute("create table items(id)")
    sqlite3.connect("file:words.db?mode=ro", uri=True).execute("select * from words")
    sqlite3.connect("file:words.db?immutable=1", uri=True).execute("select * from words")
    subprocess.run(["true"], stdin=subprocess.DEVNULL, check=True)
"""

PROGRAM = """
import dbm.dumb, importlib, json, logging, os, shutil, sqlite3, subprocess, sys, tempfile
from pathlib import Path
from app_toolkit import private
from app_toolkit.userapp.read_only import protect

INSIDE, OUTSIDE = Path(sys.argv[1]), Path(sys.argv[2])
FOLDER = os.open(OUTSIDE, os.O_RDONLY)
sys.path.insert(0, str(INSIDE))
protect(INSIDE, INSIDE)
results = {}
for line in sys.argv[3].strip().splitlines():
    os.chdir(INSIDE)
    try:
        exec(line.strip())
    except OSError as error:
        results[line.strip()] = f"{type(error).__name__} {error}"
    else:
        results[line.strip()] = ""
print(json.dumps(results))
"""


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """The unpacked files, with the modes that root ignores, and a folder beside them."""
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    for folder in (inside / "static", inside / "__pycache__", outside):
        folder.mkdir(parents=True)
    for file in (inside / "shop.py", inside / "static" / "a.css", outside / "other"):
        file.write_text("x = 1")
    with closing(sqlite3.connect(inside / "words.db")) as words:
        words.execute("create table words(word)")
    (outside / "link").symlink_to(inside)
    (outside / "of_file").symlink_to(inside / "shop.py")
    (outside / "back").symlink_to("other")
    return inside, outside


def results(folders: tuple[Path, Path], lines: str) -> dict[str, str]:
    done = prepared.run(PROGRAM, *folders, lines, env={**os.environ, "APP_TOOLKIT_DATA": "/srv/data"})
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


def files(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc"}


def test_each_way_to_change_the_files_is_refused_with_the_place_for_data(folders: tuple[Path, Path]) -> None:
    before = files(folders[0])
    found = results(folders, REFUSED)
    assert {line: error for line, error in found.items() if "APP_TOOLKIT_DATA, /srv/data" not in error} == {}
    assert all(error.startswith(("PermissionError", "Error")) for error in found.values()), found
    assert found['open("new.txt", "w")'] == (
        "PermissionError [Errno 13] new.txt cannot be written, because each revision of a deployed application has its "
        "own copy of its files: keep data in the folder of the environment variable APP_TOOLKIT_DATA, /srv/data"
    )
    assert files(folders[0]) == before


def test_reading_the_files_and_writing_elsewhere_are_not_affected(folders: tuple[Path, Path]) -> None:
    found = results(folders, ALLOWED)
    assert {line: error for line, error in found.items() if error} == {}
    assert [path.suffix for path in (folders[0] / "__pycache__").iterdir()] == [".pyc"], "the import compiles once"


FAILS = """
    os.remove("missing")
    os.rmdir("missing")
    os.rename("missing", "new")
    os.mkdir("static")
    os.symlink("shop.py", "static")
    os.link("shop.py", "static")
    open("shop.py", "x")
    open("missing", "r+")
"""


def test_what_would_change_nothing_fails_as_without_the_protection(folders: tuple[Path, Path]) -> None:
    for error in results(folders, FAILS).values():
        assert error.startswith(("FileNotFoundError [Errno 2]", "FileExistsError [Errno 17]"))


def test_files_beside_those_of_the_app_cannot_be_written_either(tmp_path: Path) -> None:
    """Where the data of a project is whose code is in a folder `src`."""
    protected = Protected(tmp_path / "files", tmp_path)
    with pytest.raises(PermissionError, match=r"\.\./data cannot be written"):
        protected.check("os.mkdir", (str(tmp_path / "data"), 0o777, -1))


def test_a_broken_path_is_left_to_the_operation(tmp_path: Path) -> None:
    protected = Protected(tmp_path, tmp_path)
    protected.check("open", (7, "w", os.O_WRONLY))
    with pytest.raises(ValueError, match="null byte"):
        protected.check("open", ("a\0b", "w", os.O_WRONLY | os.O_CREAT))
