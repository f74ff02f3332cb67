"""The edge, or plain uvicorn, alone in a process, so that its memory can be weighed; prints its port."""

import sys

from .app import build
from .listing import ours, plain

if __name__ == "__main__":
    with {"ours": ours, "plain": plain}[sys.argv[1]](build()) as port:
        print(port, flush=True)
        sys.stdin.read()  # until whoever started us closes it
