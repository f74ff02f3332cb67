"""The media type and the name of a file."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app_toolkit.chat.file_types import MAX_NAME, SIGNED, detected_type, file_name, is_allowed, type_of_file

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize(
    ("head", "name", "declared", "expected"),
    [
        (PNG, "a.png", "image/png", ("image/png", True)),
        (PNG, "a.jpg", "image/jpeg", ("image/png", True)),
        (PNG, "a.html", "text/html", ("image/png", True)),
        (b"<script>", "a.png", "image/png", ("image/png", False)),
        (b"<script>", "a.png", "", ("image/png", False)),
        (b"<script>", "a.txt", "IMAGE/JPG; a=b", ("image/jpeg", False)),
        (b"\xff\xd8\xff\xe0", "a", "", ("image/jpeg", True)),
        (b"GIF89a", "a", "", ("image/gif", True)),
        (b"RIFF1234WEBP", "a", "", ("image/webp", True)),
        (b"RIFF1234WAVE", "a.wav", "audio/wav", ("audio/wav", True)),
        (b"\0\0\0\x20ftypavif", "a", "", ("image/avif", True)),
        (b"%PDF-1.7", "a", "application/octet-stream", ("application/pdf", True)),
        (b"hello", "notes", "", ("text/plain", True)),
        ("é".encode()[:1], "notes", "", ("text/plain", True)),
        (b"\xe9 is Latin-1", "notes", "", ("application/octet-stream", True)),
        (b"a\0b", "notes", "no type", ("application/octet-stream", True)),
        (b"{}", "a.json", "", ("application/json", True)),
        (b"a,b", "a.json", "text/csv; charset=utf-8", ("text/csv", True)),
    ],
)
def test_the_content_decides_about_the_type_if_it_shows_it(
    head: bytes, name: str, declared: str, expected: tuple[str, bool]
) -> None:
    assert type_of_file(head, name, declared) == expected


@given(st.binary(max_size=40), st.text(), st.text() | st.sampled_from(sorted(SIGNED)))
def test_no_other_content_passes_as_an_image(head: bytes, name: str, declared: str) -> None:
    media_type, is_consistent = type_of_file(head, name, declared)
    assert is_consistent == (media_type not in SIGNED or detected_type(head) == media_type)


def test_types_are_allowed_by_name_by_kind_or_all() -> None:
    assert is_allowed("image/png", ["image/png"])
    assert is_allowed("image/png", ["text/plain", "image/*"])
    assert is_allowed("image/png", ["*/*"])
    assert not is_allowed("image/svg+xml", ["image/png", "text/*"])


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        ("photo.png", "photo.png"),
        ("../../etc/passwd", "passwd"),
        ("C:\\Users\\ada\\CV.pdf", "CV.pdf"),
        ("..", "file"),
        (".env", "env"),
        ("", "file"),
        ("a\r\nSet-Cookie: b.txt", "aSet-Cookie: b.txt"),
        ("gpj.\u202eexe", "gpj.exe"),
        ("Übersicht 東京.txt", "Übersicht 東京.txt"),
        ("\ud800.txt", "?.txt"),
        (f"{'a' * 300}.txt", f"{'a' * 196}.txt"),
        (f"{'a' * 16_000_000}.txt", f"{'a' * 196}.txt"),
    ],
)
def test_a_name_has_no_folders_and_no_control_characters(sent: str, expected: str) -> None:
    assert file_name(sent) == expected


@given(st.text(alphabet=st.characters()))
def test_every_name_can_be_shown_and_sent(sent: str) -> None:
    name = file_name(sent)
    assert 0 < len(name.encode().decode()) <= MAX_NAME
    assert not {"/", "\\"} & set(name)
    assert not any(unicodedata.category(char) in ("Cc", "Cf") for char in name)
    assert file_name(name) == name
