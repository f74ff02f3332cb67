"""What an app has stored, while its code is replaced: the SQL tutorial of FastAPI, with SQLAlchemy alone."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.cluster import Cluster
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
    """An application with a database, deployed on the session's instance."""

    def __init__(self, folder: Path, processes: Cluster) -> None:
        self.folder = folder
        self._processes = processes

    @property
    def _url(self) -> str:
        return f"{self._processes.proxy_url()}/data/items"

    def deploy(self, code: str) -> int:
        (self.folder / "shop.py").write_text(code)
        target = str(self.folder / "shop.py")
        return here("deploy", target, "--name", "data", "--route-prefix", "/data", "--port", "0", "--wait")

    def items(self) -> list[object]:
        """The version of the code that answers, and the items that it finds."""
        found: list[object] = httpx.get(self._url, trust_env=False, timeout=PATIENCE_S).raise_for_status().json()
        return found

    def add(self) -> None:
        httpx.post(self._url, trust_env=False, timeout=PATIENCE_S).raise_for_status()


@pytest.fixture
def shop(processes_found: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    monkeypatch.chdir(tmp_path)
    yield Shop(tmp_path, processes_found)
    assert here("delete", "data") == 0


def test_items_stay_over_an_update_and_a_rollback(shop: Shop, capfd: pytest.CaptureFixture[str]) -> None:
    assert shop.deploy(APP) == 0
    capfd.readouterr()
    shop.add()
    shop.add()
    assert shop.deploy(APP.replace("VERSION = 1", "VERSION = 2")) == 0
    assert "application data at /data: files changed: shop.py\n" in capfd.readouterr().out
    assert shop.items() == [2, [1, 2]]
    shop.add()
    assert here("rollback", "data", "--wait") == 0
    assert shop.items() == [1, [1, 2, 3]]
