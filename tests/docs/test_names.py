"""A name that a page for users mentions can be imported from `app_toolkit` or `app_toolkit.chat`."""

import re
from inspect import isclass
from types import ModuleType

import pytest

import app_toolkit
from app_toolkit import chat, errors
from app_toolkit.config import models
from app_toolkit.router import handle

from .pages import PAGES, Page

FOR_USERS = [each for each in PAGES if not re.match("docs/(architecture|glossary|decisions/)", each.name)]


def classes(module: ModuleType) -> set[str]:
    return {name for name, value in vars(module).items() if isclass(value) and value.__module__ == module.__name__}


@pytest.mark.parametrize("page", FOR_USERS, ids=lambda page: page.name)
def test_a_class_that_a_page_names_is_exported(page: Page) -> None:
    ours = classes(errors) | classes(models) | classes(handle)
    named = ours & set(re.findall(r"`([A-Z]\w+)`", page.text))
    assert named <= {*app_toolkit.__all__, *chat.__all__}


def test_the_names_of_the_configuration_the_errors_and_the_answers_are_exported() -> None:
    from app_toolkit import AutoscalingConfig, BatchError, CallFuture, DeadlineExceeded, QueueFull, QueueTimeout, Stream

    assert (AutoscalingConfig, CallFuture, Stream) == (models.AutoscalingConfig, handle.CallFuture, handle.Stream)
    found = BatchError, DeadlineExceeded, QueueFull, QueueTimeout
    assert found == (errors.BatchError, errors.DeadlineExceeded, errors.QueueFull, errors.QueueTimeout)


def test_page_imports_public_names_from_the_package() -> None:
    for page in FOR_USERS:
        imported = re.findall(r"^from app_toolkit\.\S+ import (.+)$", page.code, re.MULTILINE)
        names = {name.strip() for line in imported for name in line.split(",")}
        assert not names & set(app_toolkit.__all__), page.name
