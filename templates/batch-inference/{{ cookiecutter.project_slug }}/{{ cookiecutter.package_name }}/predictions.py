"""The endpoints. They compute nothing themselves, and call the deployment of the model."""

import asyncio
from typing import Annotated

from fastapi import APIRouter, Depends
from pydantic import BaseModel, Field

from {{ cookiecutter.package_name }}.classifier import Classifier, Prediction, classifier

router = APIRouter(tags=["predictions"])

Text = Annotated[str, Field(min_length=1, max_length=10_000)]
Model = Annotated[Classifier, Depends(classifier)]


class Document(BaseModel):
    text: Text


class Documents(BaseModel):
    texts: Annotated[list[Text], Field(min_length=1, max_length=256)]


@router.post("/predict")
async def predict(document: Document, model: Model) -> Prediction:
    """Predict one text. It shares a batch with other requests."""
    return await model.predict(document.text)


@router.post("/predict/many")
async def predict_many(documents: Documents, model: Model) -> list[Prediction]:
    """Predict several texts. Each is a call of its own, so they share batches, too."""
    return await asyncio.gather(*[model.predict(text) for text in documents.texts])
