"""The proxy alone in a process, so that its memory can be measured; prints its port."""

import sys

from tests.beside.app import build
from tests.beside.listing import ours

if __name__ == "__main__":
    with ours(build()) as port:
        print(port, flush=True)
        sys.stdin.read()  # until the test closes it
