"""What an app has stored, while its code is replaced: the SQL tutorial of FastAPI, with SQLAlchemy alone."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import app_toolkit
from tests.cluster import Served
from tests.docs.pages import page
from tests.e2e.test_deploy import here
from tests.patience import PATIENCE_S

ENGINE = page("docs/stateful.md").part("Files and databases").code
APP = f"""{ENGINE}
from contextlib import asynccontextmanager

from fastapi import FastAPI
from sqlalchemy import select
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

VERSION = 1


class Base(DeclarativeBase):
    pass


class Item(Base):
    __tablename__ = "items"
    id: Mapped[int] = mapped_column(primary_key=True)


@asynccontextmanager
async def lifespan(app):
    Base.metadata.create_all(engine)
    yield


app = FastAPI(lifespan=lifespan)


@app.get("/items")
def items() -> tuple[int, list[int]]:
    with Session(engine) as session:
        return VERSION, list(session.scalars(select(Item.id)))


@app.post("/items")
def add() -> int:
    with Session(engine) as session:
        item = Item()
        session.add(item)
        session.commit()
        return item.id
"""


class Shop:
    """An application with a database, deployed on the session's cluster."""

    def __init__(self, folder: Path, proxy: str) -> None:
        self.folder = folder
        self._url = f"{proxy}/data/items"

    def deploy(self, code: str) -> int:
        (self.folder / "shop.py").write_text(code)
        target = str(self.folder / "shop.py")
        return here("deploy", target, "--name", "data", "--route-prefix", "/data", "--wait")

    def items(self) -> list[object]:
        """The version of the code that answers, and the items that it finds."""
        found: list[object] = httpx.get(self._url, trust_env=False, timeout=PATIENCE_S).raise_for_status().json()
        return found

    def add(self) -> None:
        httpx.post(self._url, trust_env=False, timeout=PATIENCE_S).raise_for_status()


@pytest.fixture
def shop(victim: Served, tmp_path: Path) -> Iterator[Shop]:
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(tmp_path)
        yield Shop(tmp_path, victim.cluster.proxy_url())
    assert here("delete", "data") == 0


def test_items_stay_over_an_update_and_a_rollback_and_a_database_beside_the_code_is_refused(
    shop: Shop, capfd: pytest.CaptureFixture[str]
) -> None:
    (shop.folder / "app.db").touch()
    (shop.folder / "uploads").mkdir()
    (shop.folder / "uploads" / "a.png").touch()
    assert shop.deploy(APP) == 0
    said = capfd.readouterr().out
    assert "Not packed by deploy: app.db." in said
    assert "read-only for the app: uploads/." in said
    shop.add()
    shop.add()
    assert shop.deploy(APP.replace("VERSION = 1", "VERSION = 2")) == 0
    assert "application data at /data: files changed: shop.py\n" in capfd.readouterr().out
    assert shop.items() == [2, [1, 2]]
    shop.add()
    assert here("rollback", "data", "--wait") == 0
    assert shop.items() == [1, [1, 2, 3]]

    assert shop.deploy(APP.replace("{os.environ.get('APP_TOOLKIT_DATA', '.')}", ".")) == 2
    assert "PermissionError: [Errno 13] shop.db cannot be written, because each revision" in capfd.readouterr().err
    (status,) = [each for each in app_toolkit.status().applications if each.name == "data"]
    assert status.status == "rolled_back"
    assert shop.items() == [1, [1, 2, 3]]
