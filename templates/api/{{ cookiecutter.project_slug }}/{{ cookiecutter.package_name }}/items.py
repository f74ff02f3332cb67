"""JSON endpoints."""

from typing import Annotated

from fastapi import APIRouter
from pydantic import BaseModel, Field

router = APIRouter(prefix="/items", tags=["items"])

TAX = 0.2


class Item(BaseModel):
    name: Annotated[str, Field(min_length=1, max_length=100)]
    price: Annotated[float, Field(gt=0)]


class PricedItem(Item):
    with_tax: float


@router.get("/{name}")
async def read_item(name: str) -> Item:
    return Item(name=name, price=1.0)


@router.post("")
async def price_item(item: Item) -> PricedItem:
    """Add the price with tax."""
    return PricedItem(name=item.name, price=item.price, with_tax=round(item.price * (1 + TAX), 2))
