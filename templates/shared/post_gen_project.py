"""Makes the files fit the answers. Needs neither a network nor a program other than Python."""

import shutil
from pathlib import Path

if "{{ cookiecutter.license }}" == "none":
    Path("LICENSE").unlink()
{%- if cookiecutter.get("frontend") == "built-in" %}

shutil.rmtree("frontend")
static = Path("{{ cookiecutter.package_name }}", "static")
shutil.copytree({{ page()|tojson }}, static, copy_function=shutil.copyfile)
index = static / "index.html"
page = index.read_text("utf-8").replace("Docs assistant", {{ cookiecutter.project_name|e|string|tojson }})
index.write_text(page, "utf-8")
texts = (
    "// What the page says about this assistant.\n",
    'export const HEADING = "What would you like to know?";',
    'export const ABOUT = "Answers survive a reload and a lost connection.";',
    "export const SUGGESTIONS = []; // each is a title and a prompt",
)
(static / "texts.js").write_text("\n".join(texts) + "\n", "utf-8")
{%- elif cookiecutter.get("frontend") == "react" %}

built_in = Path({{ page()|tojson }})  # both pages have the same design
Path("frontend", "public").mkdir()
for name, copy in (("style.css", "src/page.css"), ("icon.svg", "src/icon.svg"), ("theme.js", "public/theme.js")):
    shutil.copyfile(built_in / name, Path("frontend", copy))
{%- endif %}

for cache in list(Path().rglob("__pycache__")):  # pip compiles the modules of an installed template
    shutil.rmtree(cache)
