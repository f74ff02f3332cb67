"""SQLAdmin: pages over a database, with a login whose session is in a signed cookie."""

import os
from typing import TypeVar

import httpx
from fastapi import FastAPI
from pins import ONE
from sqladmin import Admin, ModelView
from sqladmin.authentication import AuthenticationBackend
from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from starlette.requests import Request

from app_toolkit import Toolkit

A = TypeVar("A", bound=FastAPI)


class Base(DeclarativeBase):
    pass


class Item(Base):
    __tablename__ = "items"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]


class Items(ModelView, model=Item):
    column_list = ("id", "name")
    column_searchable_list = ("name",)


class Login(AuthenticationBackend):
    async def login(self, request: Request) -> bool:
        request.session["user"] = (await request.form())["username"]
        return True

    async def logout(self, request: Request) -> bool:
        request.session.clear()
        return True

    async def authenticate(self, request: Request) -> bool:
        return "user" in request.session


def with_admin(app: A) -> A:
    engine = create_engine("sqlite:///items.sqlite", connect_args={"timeout": 20})  # in the current folder
    with engine.begin() as connection:
        connection.exec_driver_sql("CREATE TABLE IF NOT EXISTS items (id INTEGER PRIMARY KEY, name VARCHAR NOT NULL)")
    Admin(app, engine, authentication_backend=Login(secret_key="a-secret-for-a-test-only")).add_view(Items)
    return app


app = with_admin(FastAPI())
pinned = with_admin(Toolkit(deployment=ONE))


async def admin(url: str, number: int) -> None:
    name = f"item-{number}-{os.urandom(4).hex()}"
    async with httpx.AsyncClient(base_url=f"{url}/admin", timeout=20, follow_redirects=True) as client:
        await client.post("/login", data={"username": "ann", "password": "any"})
        created = await client.post("/item/create", data={"name": name, "save": "Save"})
        assert created.status_code == 200, created.text
        listed = await client.get("/item/list", params={"search": name})
        assert listed.status_code == 200
        assert name in listed.text
