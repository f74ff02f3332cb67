"""Signals that ask a program in the foreground to stop."""

import os
import signal
from types import FrameType, TracebackType
from typing import Self


def discard_output(descriptor: int) -> None:
    """Replace a file descriptor by /dev/null: from now on writes to it succeed and have no effect."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


class Interrupts:
    """Handles Ctrl-C, SIGTERM and SIGHUP: the first one sets `asked`, the next one raises `KeyboardInterrupt`."""

    def __init__(self) -> None:
        self.asked = False
        #: The exit code of a program that the last signal has ended, as a shell shows it.
        self.exit_code = 0

    def __enter__(self) -> Self:
        self._before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
        if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # `nohup` ignores SIGHUP
            self._before[signal.SIGHUP] = signal.getsignal(signal.SIGHUP)
        self._terminals = [number for number in (1, 2) if os.isatty(number)]
        self.listen()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def listen(self) -> None:
        for number in self._before:
            signal.signal(number, self._ask)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            self._forget_terminals()
        self.exit_code = 128 + number
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True

    def _forget_terminals(self) -> None:
        """Replace a closed terminal by /dev/null: a failed write to it would end the drain."""
        while self._terminals:
            discard_output(self._terminals.pop())

    def not_interrupted(self) -> bool:
        return not self.asked
