"""Prepares a process for one app, before it has threads, an event loop or sockets.

A process that starts by itself prepares, and then serves. A template process prepares once with the app imported, and
its forks only serve.
"""

import contextlib
import json
import os
from dataclasses import asdict, dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, Self

from app_toolkit.config import settings
from app_toolkit.config.fields import marked
from app_toolkit.config.models import ApplicationConfig
from app_toolkit.contract.identity import FIRST
from app_toolkit.contract.replica_spec import ReplicaSpec, unconfigured
from app_toolkit.host.data_folder import use_data_of_application, use_data_of_project
from app_toolkit.host.logs import begin_logs
from app_toolkit.host.services import Services
from app_toolkit.host.store import packed, packed_code
from app_toolkit.interfaces import ReloadableOptions
from app_toolkit.observability.context import ReplicaContext
from app_toolkit.observability.logs import propagate_uvicorn_loggers
from app_toolkit.observability.secrets import add_secrets
from app_toolkit.observability.tracebacks import shorten_paths
from app_toolkit.replica import breakpoints
from app_toolkit.types import ReplicaId
from app_toolkit.userapp import sources
from app_toolkit.userapp.artifact import Unpacked, is_installed
from app_toolkit.userapp.loading import configure_logging, load, unpack
from app_toolkit.userapp.read_only import protect


@dataclass(frozen=True, slots=True)
class Prepared:
    """What `prepare` leaves for the replicas that serve the app in this process or in a fork of it."""

    app_dir: str
    """The folder of the code on this node."""
    working_dir: str
    """The current folder of the process."""
    code: bytes | None
    """The packed target; None: there is none, and the app is imported."""
    files: Unpacked | None
    """The unpacked files; None: the app has none. They stay until the process ends."""
    app: Any = None
    """The target. None: it is imported on the event loop that serves it."""

    @property
    def descriptors(self) -> tuple[int, ...]:
        """The file descriptors that a fork must not close."""
        return () if self.files is None else (self.files.descriptor,)

    def spec(self, spec: ReplicaSpec) -> ReplicaSpec:
        """Return the spec of a replica with the folders of this node."""
        return replace(spec, app_dir=self.app_dir, working_dir=self.working_dir)


@dataclass(frozen=True, slots=True)
class Preparation:
    """What `prepare` may read of a spec. Replicas with the same preparation can be forks of one template."""

    spec: ReplicaSpec
    """The spec without what belongs to one replica, one deployment or the time after the fork."""

    @classmethod
    def of(cls, spec: ReplicaSpec) -> Self:
        # What is not named here counts. So a new field may start a template too many, and none is used wrongly.
        return cls(
            replace(
                spec,
                id=ReplicaId(""),
                config=unconfigured(),
                root_path="",
                reloadable=ReloadableOptions(0, secrets=spec.reloadable.secrets),
                revision=0,
                created=FIRST,
                callees=(),
                application_config=ApplicationConfig.model_construct(
                    **spec.application_config.model_dump(include=set(marked(ApplicationConfig, "restarts")))
                ),
                edge=None,
            )
        )

    @property
    def key(self) -> str:
        """A hash of the spec, because it contains secrets."""
        plain = json.dumps(asdict(self.spec), sort_keys=True, default=lambda model: model.model_dump(mode="json"))
        return sha256(plain.encode()).hexdigest()


def prepare(spec: ReplicaSpec, services: Services, *, imports: bool = False) -> Prepared:
    """Set up this process for an app: variables, folders, logs, files. Call this once in a process, before any fork.

    `imports`: also import the app. Otherwise it is imported on the event loop, because modules may ask for the running
    event loop, for handles and for signal handlers.

    Raises `TargetError` or `InsecurePath`.
    """
    settings.hide_admin_token()  # user code has no need of it
    settings.set_variables(spec.variables)
    if spec.artifact or is_installed(Path(spec.app_dir)):
        use_data_of_application(spec.application)
    else:
        use_data_of_project(Path(spec.app_dir))
    add_secrets(spec.reloadable.secrets)
    begin_logs(services.log_folder, context_of(spec), user_code=True)
    breakpoints.install()
    files = None if not spec.artifact else _unpacked(spec.artifact, services)
    app_dir, working_dir = _folders(spec, files)
    if spec.sources:
        sources.use(app_dir, sources.read(spec.sources, packed(services.store, spec.sources)))
    with contextlib.suppress(FileNotFoundError):  # a folder that only the deploying node has
        os.chdir(working_dir or os.curdir)
    logging_config = spec.application_config.logging_config
    if logging_config is not None:
        configure_logging(logging_config, app_dir)
        propagate_uvicorn_loggers(logging_config.get("loggers", {}))
    code = packed_code(services.store, spec.code)
    app = None
    if imports:
        app = unpack(spec.target, code, app_dir) if spec.code else load(spec.target, app_dir)
    return Prepared(app_dir, working_dir, code, files, app)


def context_of(spec: ReplicaSpec) -> ReplicaContext:
    return ReplicaContext(spec.application, spec.deployment, spec.id, spec.revision)


def _unpacked(artifact: str, services: Services) -> Unpacked:
    """Unpack the artifact on this node. This process cannot change the files."""
    files = Unpacked(artifact, partial(packed, services.store, artifact), services.folder.path / "artifacts")
    shorten_paths(files.folder)
    protect(files.folder, files.folder.parent)
    return files


def _folders(spec: ReplicaSpec, files: Unpacked | None) -> tuple[str, str]:
    """Return the folder of the code and the working folder on this node."""
    if files is None:
        return spec.app_dir, spec.working_dir
    working_dir = files.folder / spec.working_dir
    if not working_dir.is_dir():  # it has no packed files; relative paths must not begin at a folder of the engine
        working_dir = files.folder
    return str(files.folder / spec.app_dir), str(working_dir)
