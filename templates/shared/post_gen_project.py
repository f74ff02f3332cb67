"""Removes the files that were not asked for. Needs neither a network nor a program other than Python."""

import shutil
from pathlib import Path

if "{{ cookiecutter.license }}" == "none":
    Path("LICENSE").unlink()
{%- if cookiecutter.get("frontend") == "built-in" %}

shutil.rmtree("frontend")
shutil.copytree({{ page()|tojson }}, "{{ cookiecutter.package_name }}/static", copy_function=shutil.copyfile)
{%- endif %}

for cache in list(Path().rglob("__pycache__")):  # pip compiles the modules of an installed template
    shutil.rmtree(cache)
