"""Draw the diagrams of the documentation, which are written in Mermaid, and put the drawings into the site.

npm install mermaid
python -m benchmarks.diagrams node_modules/mermaid/dist/mermaid.min.js

It needs Chromium and `pip install playwright`. The drawings are part of the repository, so that neither a build of the
site nor its readers need Mermaid or a network. MkDocs calls `on_page_markdown` (`hooks` in `mkdocs.yml`).
"""

import posixpath
import re
import shutil
import sys
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"
FOLDER = "images/diagrams"
"""The folder of the drawings below `DOCS`."""

FENCE = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)

OPTIONS = {
    "startOnLoad": False,
    "theme": "neutral",
    "fontFamily": "Arial, Helvetica, sans-serif",
    "deterministicIds": True,
    "htmlLabels": False,  # HTML in an image is not shown everywhere
    "flowchart": {"useMaxWidth": False, "nodeSpacing": 30, "rankSpacing": 40},
    "sequence": {"useMaxWidth": False, "wrap": True, "width": 120, "actorMargin": 60},
}
DRAW = """async ([id, source, options]) => {
  mermaid.initialize(options);
  return (await mermaid.render(id, source)).svg;
}"""


def diagrams(page: str, markdown: str) -> Iterator[tuple[str, str]]:
    """Yield the path of the drawing below `DOCS`, and the source, of each diagram of a page such as `tutorial/x.md`."""
    for number, match in enumerate(FENCE.finditer(markdown), 1):
        name = page.removesuffix(".md").replace("/", "-")
        yield f"{FOLDER}/{name}-{number}.svg", match[1]


def is_drawn(path: str, source: str) -> bool:
    """Return whether the drawing at this path below `DOCS` is that of the source."""
    file = DOCS / path
    return file.is_file() and file.read_text("utf-8").startswith(_mark(source))


def _mark(source: str) -> str:
    return f"<!-- {sha256(source.encode()).hexdigest()} -->"


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Replace the diagrams of a page by their drawings. Raises `PluginError` for a diagram that has changed."""
    from mkdocs.exceptions import PluginError

    drawings = iter([*diagrams(page.file.src_uri, markdown)])

    def image(match: re.Match[str]) -> str:
        path, source = next(drawings)
        if not is_drawn(path, source):
            raise PluginError(f"docs/{path} does not show its diagram: run `python -m benchmarks.diagrams`")
        link = posixpath.relpath(path, posixpath.dirname(page.file.src_uri))
        return f"![A diagram: {page.title}]({link}){{ .diagram }}"

    return FENCE.sub(image, markdown)


def main(mermaid: Path) -> None:
    from playwright.sync_api import sync_playwright

    shutil.rmtree(DOCS / FOLDER, ignore_errors=True)
    (DOCS / FOLDER).mkdir()
    with sync_playwright() as started:
        chromium = shutil.which("chromium") or shutil.which("google-chrome")
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        tab = browser.new_page()
        tab.add_script_tag(path=mermaid)
        for file in sorted(DOCS.rglob("*.md")):
            page = file.relative_to(DOCS).as_posix()
            for path, source in diagrams(page, file.read_text("utf-8")):
                drawing = tab.evaluate(DRAW, [Path(path).stem, source, OPTIONS])
                (DOCS / path).write_text(f"{_mark(source)}\n{drawing}\n", "utf-8")
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
