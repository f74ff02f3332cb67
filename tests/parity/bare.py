"""The reference: plain FastAPI."""

from fastapi import FastAPI

from .app import build

bare = build(FastAPI)
