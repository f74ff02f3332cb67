"""What a caller says first on a connection to a replica: what it is to carry, and the secret.

Over TCP anybody may connect. Who has not said this is a stranger there, of whom nothing else is read.
"""

from typing import Literal

Carries = Literal["trunk", "http"]


def beginning(carries: Carries) -> bytes:
    """The secret and an end of line follow."""
    return b"app-toolkit %b 1 " % carries.encode()


def preface(carries: Carries, secret: bytes) -> bytes:
    return b"%b%b\n" % (beginning(carries), secret)
