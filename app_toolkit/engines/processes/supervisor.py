"""The first process of an instance: starts all others, and ends all of them when it ends.

It has one thread, no event loop and no user code, so little can make it fail. It keeps the socket on which clients
connect and the one of the controller, so both wait in the backlog while a proxy or the controller is replaced. Every
process of the instance is its child, also a replica that a template has forked (`fork.py`).
"""

import gc
import os
import signal
import socket
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial

from fastapi import APIRouter

from app_toolkit.config import settings
from app_toolkit.config.models import ApplicationSpec
from app_toolkit.engines.processes import child, controller, template
from app_toolkit.engines.processes.capacity import NOTHING, Grant
from app_toolkit.engines.processes.fork import SIGNALS, fork
from app_toolkit.engines.processes.launcher import FORK_S
from app_toolkit.engines.processes.output import begin_output
from app_toolkit.engines.processes.services import (
    PLANNING,
    RELEASED,
    STARTED,
    SUPERVISOR,
    Child,
    ProcessServices,
)
from app_toolkit.engines.processes.wire import Request, Server, listen
from app_toolkit.errors import ControlError
from app_toolkit.host.services import CONTROLLER
from app_toolkit.operate.client import Plan
from app_toolkit.userapp.ending import adopt_orphans, descendants
from app_toolkit.wire.sockets import close_in_children

Role = Callable[[ProcessServices, str, socket.socket, Grant], None]

ROLES: dict[str, Role] = {
    "replica": child.run_replica,
    "proxy": child.run_proxy,
}
"""What the processes do that the controller starts, besides templates."""

RESTART_S = 1.0
"""Seconds between two starts of a controller that ends at once."""

KILLED_EARLY = "it was killed while it started"
"""Why a process has ended that was killed before it could register."""

ORPHAN_S = 1.0
"""Seconds after the end of a process until the processes are killed that it has left behind."""

KEPT = 1_000
"""The number of ended processes whose ends are known."""

ENDING_S = 10.0
"""Seconds that killed processes may take to end. The kernel may wait for a disk or a device."""

SAME_S = 0.1
"""Seconds within which two signals count as one: programs such as `timeout` signal a process and its group."""


def unplanned(app: str) -> ApplicationSpec:
    """Refuse to plan: this instance has not been started by a command that plans apps in it."""
    raise ControlError(f"this instance does not plan {app!r}")


def import_for_apps() -> None:
    """Import what FastAPI imports with the first route of an app, so that all processes share it."""

    def respond(number: int) -> int:
        return number

    APIRouter().add_api_route("/", respond)


class Supervisor:
    """Starts and ends the processes of one instance."""

    def __init__(
        self,
        services: ProcessServices,
        run_controller: Callable[[ProcessServices, socket.socket, bool], None] = controller.run,
        notify: Callable[[str], None] = lambda state: None,
        plan: Plan = unplanned,
    ) -> None:
        """Prepare an instance.

        Parameters:
            services: Those of the instance.
            run_controller: What the process of the controller does.
            notify: Reports a state to systemd.
            plan: Plans an app in a template. It is called for the command only.
        """
        self._services = services
        self._run_controller = run_controller
        self._notify = notify
        self._roles: dict[str, Role] = {**ROLES, "template": partial(template.run, plan)}
        self._listener = self._new_listener(SUPERVISOR)
        self._children: dict[str, Child] = {}
        self._ends: OrderedDict[str, str] = OrderedDict()
        """Why processes have ended, by name: at most `KEPT`."""
        self._announced: dict[str, str] = {}
        """Why processes that still run will end."""
        self._waiting: dict[str, list[Request]] = {}
        """The callers that wait for the end of a process: at most one of each controller."""
        self._is_starting = False
        self._command: int | None = None
        self._former: int | None = None
        """The command that has handed over; None: none has, 0: it has ended."""
        self._controller = 0
        self._controller_started_at = 0.0
        self._controller_starts_at: float | None = None
        self._orphans_at: float | None = None
        self._asked = False
        self._signalled_at: float | None = None
        self._code: int | None = None
        """The exit code of the instance; None: it goes on."""

    def run(
        self, command: int | None = None, owner: socket.socket | None = None, *, until_released: bool = False
    ) -> int:
        """Run the instance until its end, and return the exit code.

        Parameters:
            command: A child, such as the command that deploys an app. The instance ends with it, and signals are
                passed on to it, until it hands over. None: signals shut the instance down.
            owner: The other end receives `STARTED`. The instance ends when that end is closed, unless it has sent
                `RELEASED` before. None: it has no owner.
            until_released: Whether the instance is starting until the owner releases it. With a command, it is starting
                until the command reports that its applications serve. Other clients can deploy nothing meanwhile.
        """
        self._command = command
        self._is_starting = command is not None or until_released
        settings.set_address(self._services.session)
        adopt_orphans()
        self._controller_listener = listen(self._services.path_of(CONTROLLER))
        server = Server(self._listener, self._receive)
        self._wake_up_by_signals(server)
        if owner is not None:
            close_in_children(owner)
            with suppress(OSError):  # it has ended meanwhile, as `_read_owner` sees
                owner.send(STARTED)
            server.watch(owner, partial(self._read_owner, server, owner))
        import_for_apps()
        gc.collect()
        gc.freeze()  # otherwise the garbage collection of a child copies the pages that it shares with this process
        self._start_controller()
        while self._code is None:
            server.run_once(self._act_on_time())
        self._kill_all()
        self._close_clients()  # who finds no folder can bind the port again
        self._services.folder.end()
        return self._code

    # Signals

    def _wake_up_by_signals(self, server: Server) -> None:
        woken, waking = socket.socketpair()
        for end in (woken, waking):
            end.setblocking(False)
            close_in_children(end)
        signal.set_wakeup_fd(waking.fileno(), warn_on_full_buffer=False)
        self._waking = waking  # otherwise it would be closed
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        for number in SIGNALS:
            # `nohup` ignores SIGHUP. A shell without job control ignores SIGINT for a command that it starts with `&`.
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._shut_down)

        def wake() -> None:
            woken.recv(4096)
            self._reap()

        server.watch(woken, wake)

    def _shut_down(self, number: int, frame: object) -> None:
        now = time.monotonic()
        if self._signalled_at is not None and now - self._signalled_at < SAME_S:
            return
        self._signalled_at = now
        self._notify("STOPPING=1")
        if self._command is not None:
            with suppress(ProcessLookupError):
                os.kill(self._command, number)
        elif self._asked:  # a second signal: do not wait for the drain
            self._say("Stopped waiting. The remaining requests are aborted.")
            self._end(128 + number)
        else:
            self._asked = True
            self._say("Draining. Press Ctrl-C again to stop at once.")
            if self._controller:
                os.kill(self._controller, signal.SIGTERM)

    def _read_owner(self, server: Server, owner: socket.socket) -> None:
        server.unwatch(owner)
        with suppress(OSError), owner:
            if owner.recv(len(RELEASED)) == RELEASED:
                self._is_starting = False
                return
        self._end(0)

    # Orders

    def _receive(self, request: Request) -> None:
        match request.method:
            case "start":
                request.perform(self._start)
            case "register":
                request.perform(partial(self._register, request.pid))
            case "running":
                request.answer(dict(self._children))
            case "note_end":
                request.perform(self._announce_end)
            case "ended":
                self._wait_for_end(request)
            case "kill":
                request.perform(self._kill)
            case "rename":
                request.perform(self._rename)
            case "hand_over":
                request.perform(self._hand_over)
            case "ready":
                request.perform(self._note_ready)
            case "is_starting":
                request.answer(self._is_starting)
            case _:
                request.fail(ControlError(f"the supervisor has no order {request.method!r}"))

    def _start(self, role: str, name: str, granted: Grant = NOTHING) -> bool:
        """Start a process, unless it runs already. Return whether it was started."""
        if name in self._children:
            return False
        listener = self._new_listener(name)
        try:
            run = partial(self._run_child, role, name, listener, granted)
            self._children[name] = Child(fork(run, f"at-{role}"), role, granted=granted)
        finally:
            listener.close()
        return True

    def _run_child(self, role: str, name: str, listener: socket.socket, granted: Grant) -> None:
        begin_output(role)
        self._roles[role](self._services, name, listener, granted)

    def _register(self, pid: int, name: str, template: str, granted: Grant, controller: int) -> None:
        """Take over a process that a template has forked.

        `controller`: the process ID of the one that has ordered it. Raises `ControlError` if nobody would watch the
        process: one of this name runs already, it was killed before it could register, the controller has ended, or
        the process itself has.
        """
        if name in self._children:
            raise ControlError(f"a process {name!r} runs already")
        if self._ends.get(name) == KILLED_EARLY:
            raise ControlError(f"the process {name!r} has ended already: {KILLED_EARLY}")
        try:
            os.kill(controller, 0)
        except ProcessLookupError:
            raise ControlError(f"the controller {controller} that has ordered {name!r} has ended") from None
        try:
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:  # `_reap` did not know it, so nobody would note its end
            raise ControlError(f"the process {pid} that registers as {name!r} has ended") from None
        self._children[name] = Child(pid, "replica", template, granted)

    def _rename(self, name: str, new: str) -> bool:
        """Give a process another name. Return False if a process has that name, or there is no process."""
        if new in self._children or name not in self._children:
            return False
        os.rename(self._services.path_of(name), self._services.path_of(new))
        self._children[new] = self._children.pop(name)
        return True

    def _announce_end(self, name: str, sentence: str) -> None:
        """Note why a process will end, as it says itself."""
        if name in self._children:
            self._announced[name] = sentence

    def _wait_for_end(self, request: Request) -> None:
        """Answer with a sentence that says why a process has ended, once it has."""
        (name,) = request.args
        if name in self._children:
            self._waiting.setdefault(name, []).append(request)
        else:
            request.answer(self._ends.get(name, "the process ended"))

    def _kill(self, name: str) -> None:
        running = self._children.get(name)
        if running is not None:
            os.kill(running.pid, signal.SIGKILL)
        elif name not in self._ends:
            self._keep_end(name, KILLED_EARLY)

    def _note_ready(self) -> None:
        """Note that the applications of the command serve. End the processes that have planned them and serve none."""
        self._is_starting = False
        for name in [name for name in self._children if name.startswith(PLANNING)]:
            self._kill(name)
        self._notify("READY=1")

    def _hand_over(self) -> bool:
        """Go on without the command. Return False if there is none, or if it has been asked to end."""
        if self._command is None or self._signalled_at is not None:
            return False
        self._former, self._command = self._command, None
        return True

    # Ends of processes

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            self._note_end(pid, os.waitstatus_to_exitcode(status))

    def _note_end(self, pid: int, code: int) -> None:
        if pid == self._command:
            self._end(code if code >= 0 else 128 - code)
        elif pid == self._former:
            self._former = 0
        elif pid == self._controller:
            self._controller = 0
            if code == 0:
                self._note_shutdown()
            else:
                self._write(f"{CONTROLLER}: {sentence(code)}; another one starts\n")
                soon = self._controller_started_at + RESTART_S
                self._controller_starts_at = max(time.monotonic(), soon)
        name = next((name for name, running in self._children.items() if running.pid == pid), None)
        if name is None:
            return
        del self._children[name]
        announced = self._announced.pop(name, None)
        why = announced if announced is not None and code >= 0 else sentence(code)
        self._keep_end(name, why)
        with suppress(FileNotFoundError):
            os.unlink(self._services.path_of(name))
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)  # what user code has started
        self._orphans_at = time.monotonic() + ORPHAN_S
        for request in self._waiting.pop(name, ()):
            request.answer(why)

    def _keep_end(self, name: str, why: str) -> None:
        self._ends[name] = why
        if len(self._ends) > KEPT:
            self._ends.popitem(last=False)

    def _note_shutdown(self) -> None:
        """End, because the instance was shut down. The command may still report why, and ends by itself."""
        if self._command is None:
            if not self._asked:
                self._say("The instance has ended: it was shut down.")
            self._end(0)
            return
        with suppress(FileNotFoundError):
            os.unlink(self._services.path_of(SUPERVISOR))  # to others, the instance has ended

    def _end(self, code: int) -> None:
        if self._code is None:
            self._code = code

    def _kill_all(self) -> None:
        """Kill every process that descends from this one, and wait for their ends."""
        deadline = time.monotonic() + ENDING_S
        while time.monotonic() < deadline:
            for process in descendants(os.getpid()):
                with suppress(ProcessLookupError):
                    os.kill(process.pid, signal.SIGKILL)
            try:
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            except ChildProcessError:
                return
            time.sleep(0.005)

    # Time

    def _act_on_time(self) -> float | None:
        """Do what is due. Return the seconds until something else is; None: nothing will be."""
        now = time.monotonic()
        if self._controller_starts_at is not None and self._controller_starts_at <= now:
            self._start_controller()
        if self._orphans_at is not None and self._orphans_at <= now:
            self._orphans_at = now + ORPHAN_S if self._kill_orphans() else None
        due = [at for at in (self._controller_starts_at, self._orphans_at) if at is not None]
        return max(min(due) - now, 0.0) if due else None

    def _start_controller(self) -> None:
        self._controller_starts_at = None
        self._controller_started_at = time.monotonic()

        def run() -> None:
            listener = self._controller_listener
            self._close_clients()  # only proxies and replicas accept clients
            begin_output("controller")
            self._run_controller(self._services, listener, self._asked)

        try:
            self._controller = fork(run, "at-controller")
        except OSError as error:  # there is no memory, or there are too many processes
            self._write(f"{CONTROLLER}: it cannot be started: {error}; another attempt follows\n")
            self._controller_starts_at = self._controller_started_at + RESTART_S

    def _close_clients(self) -> None:
        """Close the socket to which clients connect, in this process."""
        if self._services.clients is not None:
            self._services.clients.close()
            self._services.clients = None

    def _kill_orphans(self) -> bool:
        """Kill the children that a process of user code has left when it ended. Return whether there may be others."""
        expected = {
            self._command,
            self._former,
            self._controller,
            *(running.pid for running in self._children.values()),
        }
        ages: dict[int, float] = {}
        for process in descendants(os.getpid()):
            with suppress(Exception):
                if process.ppid() == os.getpid() and process.pid not in expected:
                    ages[process.pid] = time.time() - process.create_time()
        left = orphans(ages)
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return len(left) < len(ages)

    # Files

    def _new_listener(self, name: str) -> socket.socket:
        listener = listen(self._services.path_of(name))
        if name == SUPERVISOR:
            close_in_children(listener)
        return listener

    def _say(self, sentence: str) -> None:
        """Write to standard output what the command would have written, if it has handed over."""
        if self._former is not None:
            self._write(f"{sentence}\n", 1)

    def _write(self, text: str, output: int = 2) -> None:
        with suppress(OSError):  # the terminal was closed
            os.write(output, text.encode())


def orphans(ages: Mapping[int, float]) -> list[int]:
    """Return which unknown children are not replicas that a template has just forked, and that register soon.

    `ages`: the seconds since the start of each child that has not registered.
    """
    return [pid for pid, age in ages.items() if age >= FORK_S]


def sentence(code: int) -> str:
    """Return why a process ended, as a sentence. `code`: its exit code, or the negative number of a signal."""
    if code >= 0:
        return f"the process ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"the process ended: {name} ended it"
