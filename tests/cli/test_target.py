"""Targets of the command line, and the apps that they name."""

import sys
from pathlib import Path

import pytest

from app_toolkit.cli.target import CANDIDATES, Target, load, resolve
from app_toolkit.errors import TargetError

pytestmark = pytest.mark.usefixtures("_imports_are_forgotten")

APP = "from fastapi import FastAPI\napp = FastAPI()\n"


def write(folder: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return folder


def test_a_file_beside_no_init_is_a_module_of_its_folder(tmp_path: Path) -> None:
    write(tmp_path, {"src/shop.py": APP})
    found = resolve("src/shop.py", folder=tmp_path)
    assert found == Target("shop", None, tmp_path / "src", tmp_path / "src/shop.py")


def test_a_file_in_packages_is_named_from_the_first_folder_without_init(tmp_path: Path) -> None:
    write(tmp_path, {"src/a/__init__.py": "", "src/a/b/__init__.py": "", "src/a/b/shop.py": APP})
    found = resolve("src/a/b/shop.py", folder=tmp_path)
    assert (found.module, found.app_dir) == ("a.b.shop", tmp_path / "src")


def test_a_package_is_named_by_its_folder_or_its_init(tmp_path: Path) -> None:
    write(tmp_path, {"src/shop/__init__.py": APP})
    for name in ("src/shop", "src/shop/", "src/shop/__init__.py"):
        found = resolve(name, folder=tmp_path)
        assert (found.module, found.app_dir) == ("shop", tmp_path / "src")


def test_a_file_may_name_its_object(tmp_path: Path) -> None:
    write(tmp_path, {"shop.py": APP})
    assert resolve("shop.py:app.inner", folder=tmp_path).attribute == "app.inner"
    assert resolve(f"{tmp_path}/shop.py:app", folder=Path("/")).app_dir == tmp_path


def test_a_module_is_imported_from_the_current_folder_or_the_one_that_is_named(tmp_path: Path) -> None:
    assert resolve("shop:app", folder=tmp_path) == Target("shop", "app", tmp_path)
    assert resolve("a.shop", folder=tmp_path) == Target("a.shop", None, tmp_path)
    assert resolve("shop:app", folder=tmp_path, app_dir=tmp_path / "src").app_dir == tmp_path / "src"


def test_app_dir_decides_the_name_of_a_file_below_it(tmp_path: Path) -> None:
    write(tmp_path, {"src/a/shop.py": APP})
    found = resolve("src/a/shop.py", folder=tmp_path, app_dir=tmp_path / "src")
    assert (found.module, found.app_dir) == ("a.shop", tmp_path / "src")
    with pytest.raises(TargetError, match="is not below the folder"):
        resolve("src/a/shop.py", folder=tmp_path, app_dir=tmp_path / "other")


def test_without_a_target_the_entrypoint_counts_before_any_file(tmp_path: Path) -> None:
    write(tmp_path, {"main.py": APP})
    found = resolve(None, folder=tmp_path, entrypoint="shop.web:api")
    assert found == Target("shop.web", "api", tmp_path)


@pytest.mark.parametrize("candidate", CANDIDATES)
def test_without_an_entrypoint_the_usual_files_are_tried(tmp_path: Path, candidate: str) -> None:
    write(tmp_path, {candidate: APP})
    assert resolve(None, folder=tmp_path).file == tmp_path / candidate


def test_the_first_of_the_usual_files_wins(tmp_path: Path) -> None:
    write(tmp_path, {"app/main.py": APP, "api.py": APP, "app.py": APP})
    assert resolve(None, folder=tmp_path).module == "app"
    assert resolve(None, folder=tmp_path).app_dir == tmp_path


@pytest.mark.parametrize(
    ("target", "sentence"),
    [
        (
            None,
            r"no target was given, .*pyproject.toml has no \[tool.fastapi\] entrypoint, and none of main.py",
        ),
        ("nowhere.py", "there is no file 'nowhere.py' in "),
        ("src/", "is not a package"),
        ("two..dots", "'two..dots' is neither a file nor of the form 'module:attribute'"),
        (" shop:app", "' shop:app' is neither a file nor of the form 'module:attribute'"),
        ("shop:", "'' in 'shop:' is not the name of an object"),
        ("shop:a b", "'a b' in 'shop:a b' is not the name of an object"),
        (":app", "':app' is neither"),
        ("src/my.app.py", "cannot be imported: 'my.app' has a dot in it"),
    ],
)
def test_a_target_that_is_none_is_refused_in_one_sentence(tmp_path: Path, target: str | None, sentence: str) -> None:
    write(tmp_path, {"src/my.app.py": APP})
    with pytest.raises(TargetError, match=sentence):
        resolve(target, folder=tmp_path)


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("my-app", "my-app.py"),
        ("1app", "1app.py"),
        ("app copy", "app copy.py"),
        ("dashed.api-v1", "dashed/api-v1.py"),
        ("my-service.main-app", "my-service/main-app.py"),
    ],
)
def test_a_module_may_have_a_name_that_no_import_statement_can_have(tmp_path: Path, name: str, file: str) -> None:
    write(tmp_path, {file: APP})
    assert load(resolve(f"{name}:app", folder=tmp_path))[1] == f"{name}:app"


@pytest.mark.parametrize(
    ("source", "attribute"),
    [
        ("first = FastAPI()\napp = FastAPI()", "app"),
        ("api = FastAPI()\nother = FastAPI()", "api"),
        ("app = 3\nzebra = FastAPI()\naardvark = FastAPI()", "zebra"),
    ],
)
def test_the_app_is_found_by_its_name_or_as_the_first(tmp_path: Path, source: str, attribute: str) -> None:
    write(tmp_path, {"found_by_name.py": f"from fastapi import FastAPI\n{source}\n"})
    app, where = load(resolve("found_by_name.py", folder=tmp_path))
    assert where == f"found_by_name:{attribute}"
    assert app is getattr(sys.modules["found_by_name"], attribute)


def test_an_app_may_sit_inside_an_object(tmp_path: Path) -> None:
    write(tmp_path, {"nested.py": "from fastapi import FastAPI\nclass site:\n    web = FastAPI()\n"})
    assert load(resolve("nested:site.web", folder=tmp_path))[1] == "nested:site.web"


@pytest.mark.parametrize(
    ("source", "target", "sentence"),
    [
        ("web = 3", "wrong:app", r"the module 'wrong' \(.*wrong.py\) has no 'app'; it has web$"),
        ("app = web = 3", "wrong:ap", r"the module 'wrong' \(.*wrong.py\) has no 'ap'; did you mean 'app'\?$"),
        ("", "wron:app", r"no module 'wron' in .* packages; did you mean 'wrong'\?$"),
        ("", "wrong", "holds no FastAPI app"),
        ("app = 3", "wrong:app", "wrong:app is an int, and a target is a FastAPI app"),
        ("", "absent:app", "no module 'absent' in "),
        (
            "import absent",
            "wrong",
            "the module 'wrong' does not import: ModuleNotFoundError: No module named 'absent'",
        ),
        ("raise ValueError", "wrong", r"does not import: ValueError(\n|$)"),
        ("raise SystemExit(3)", "wrong", r"it ends the process \(SystemExit: 3\)"),
        ("def f(:", "wrong", "does not import: SyntaxError"),
    ],
)
def test_error_of_a_module_is_one_sentence(tmp_path: Path, source: str, target: str, sentence: str) -> None:
    write(tmp_path, {"wrong.py": source})
    with pytest.raises(TargetError, match=sentence) as raised:
        load(resolve(target, folder=tmp_path))
    assert "\n" not in str(raised.value)


def test_error_shows_only_the_users_traceback(tmp_path: Path) -> None:
    write(tmp_path, {"broken.py": "def build():\n    raise ValueError('no model')\n\nbuild()\n"})
    with pytest.raises(TargetError) as raised:
        load(resolve("broken.py", folder=tmp_path))
    (note,) = raised.value.__notes__
    assert note.endswith("ValueError: no model")
    assert note.count("File ") == 2
    assert note.count("broken.py") == 2


def test_a_long_traceback_is_cut_to_its_end(tmp_path: Path) -> None:
    write(tmp_path, {"deep.py": "def f(n):\n    f(n - 1) if n else 1 / 0\n\nf(50)\n"})
    with pytest.raises(TargetError) as raised:
        load(resolve("deep.py", folder=tmp_path))
    assert len(raised.value.__notes__[0].splitlines()) < 20


def test_a_file_whose_name_is_taken_is_not_mistaken_for_the_other(tmp_path: Path) -> None:
    write(tmp_path, {"json.py": APP})
    with pytest.raises(TargetError, match=r"importing 'json' gave .* and not .*: another module has that name"):
        load(resolve("json.py", folder=tmp_path))


def test_a_factory_or_a_deployment_is_found_by_the_usual_names_alone(tmp_path: Path) -> None:
    write(tmp_path, {"made.py": "from fastapi import FastAPI\ndef api(): return FastAPI(title='made')\n"})
    app, where = load(resolve("made.py", folder=tmp_path))
    assert (where, app.title) == ("made:api", "made")  # type: ignore[union-attr]
    write(tmp_path, {"makes.py": "from fastapi import FastAPI\nN = 3\ndef create(): return FastAPI()\n"})
    with pytest.raises(TargetError, match=r"name one of its objects, as in makes:create; it has create$"):
        load(resolve("makes.py", folder=tmp_path))


@pytest.mark.parametrize(
    ("source", "attribute"),
    [
        ("server = FastAPI()\n@server.get('/api')\nasync def api(): ...", "server"),
        ("server = FastAPI()\n@server.get('/api')\ndef api(): ...", "server"),
        ("server = FastAPI()\n@server.get('/api/{n}')\ndef api(n: int): ...", "server"),
        ("def app(): ...\napi = FastAPI()", "api"),
        ("def app(): ...\napi = Starlette()", "api"),
        ("class Commands:\n    def __call__(self, *args, **kwargs): ...\napp = Commands()\napi = FastAPI()", "api"),
        ("app = partial(print, end='')\nserver = FastAPI()", "server"),
        ("def answer(limit, request): ...\napp = partial(answer, 3)\nserver = FastAPI()", "server"),
    ],
)
def test_discovery_prefers_an_app_to_functions_and_other_callables(tmp_path: Path, source: str, attribute: str) -> None:
    imports = "from functools import partial\nfrom fastapi import FastAPI\nfrom starlette.applications import Starlette"
    write(tmp_path, {"mixed.py": f"{imports}\n{source}\n"})
    assert load(resolve("mixed.py", folder=tmp_path))[1] == f"mixed:{attribute}"


def test_discovery_names_the_candidates_of_a_module_with_a_partial(tmp_path: Path) -> None:
    source = (
        "from functools import partial\ndef answer(limit, request): ...\ndef create(): ...\napp = partial(answer, 3)\n"
    )
    write(tmp_path, {"partly.py": source})
    with pytest.raises(TargetError, match=r"name one of its objects, as in partly:create; it has create$"):
        load(resolve("partly.py", folder=tmp_path))
