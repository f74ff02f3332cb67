"""The operations that change which applications and replicas an instance should have. One class is one operation.

It has the arguments, the type of the result, the contract as its docstring, and `apply`, which computes the change from
the present state. `Controller.change` performs it, and `command.py` has the base classes. The operations of
another subject are in its file, such as `weights.py`. `docs/architecture.md` says how to add one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Self

from pydantic import Base64Bytes, PlainSerializer

from app_toolkit.config.files import check_unmasked
from app_toolkit.config.models import ApplicationSpec, HTTPOptions
from app_toolkit.config.options import TrafficOptions
from app_toolkit.control import application_specs, promotion, restart, traffic
from app_toolkit.control.application import Application, LiveRevision, active_specs, applied, updated
from app_toolkit.control.application_specs import Revision
from app_toolkit.control.change import Change, ChangeEvent, State
from app_toolkit.control.command import (
    Argument,
    DriverCommand,
    Numbers,
    Operation,
    OtherRevision,
    Removal,
    application_or_deployment,
    deployment_of,
)
from app_toolkit.control.diff import difference
from app_toolkit.errors import ConfigError, RevisionConflict

ExplicitOptions = Annotated[
    HTTPOptions, PlainSerializer(lambda options: options.model_dump(mode="json", exclude_unset=True))
]
"""Options of which JSON has those that are set explicitly."""


@dataclass(frozen=True, slots=True)
class Deploy(Operation[int]):
    """Serve an application. The result is its revision number, as soon as that is stored.

    The number counts the revisions of this name. An unchanged application gets a new number, too, and none of its
    replicas restarts.

    Raises `ConfigError` if the application conflicts with another one, or lacks a deployment that another one calls,
    and `RevisionConflict` if its revision number is not the expected one.
    """

    spec: ApplicationSpec = field(repr=False)  # may contain secrets
    http: ExplicitOptions = field(default_factory=HTTPOptions)
    """The options of the proxies that change: those that are set explicitly. The others stay."""
    code: Mapping[str, Base64Bytes] = field(default_factory=dict, repr=False)
    """The code and files that the replicas unpack, by hash."""
    owner: str | None = None
    """The lease that holds the application; None: the application stays until it is deleted."""
    expected: int | None = None
    """The revision number that the application must have before the command; 0: it must not exist; None: any."""
    initial: HTTPOptions | None = None
    """The options of the proxies if the instance has none yet; None: the default ones. `http` overrides them."""

    def apply(self, state: State) -> Change[int]:
        spec, expected, name = self.spec, self.expected, self.spec.name
        check_unmasked(spec)
        before = state.applications.get(name)
        spec = restart.kept(spec, before)
        if before is not None and before.candidates:
            spec = application_specs.beside(spec, before.main.spec)
        revision = 0 if before is None else before.revision
        if expected not in (None, revision):
            # The client repeats a request that was applied before: the controller died before it could answer.
            if before is not None and expected == before.number_before and before.main.desired.spec == spec:
                return Change(revision, lifted=tuple(before.main.replica_set_keys()))
            raise RevisionConflict(
                f"application {name!r} has revision {revision}, and revision {expected} was expected"
            )
        if before is not None and before.candidates and spec.route_prefix != before.main.spec.route_prefix:
            raise ConfigError(
                f"the live revisions of application {name!r} have the route prefix {before.main.spec.route_prefix!r}; "
                "promote or abort them before you change it"
            )
        state.check_calls(spec)
        listening = state.http or self.initial or HTTPOptions()
        http = application_specs.proxy_options(listening, self.http)
        running_specs = [running for _, running in active_specs(state.applications.values())]
        application_specs.check(spec, http, self.owner, running_specs, listening, state.holders.get(name))
        after = applied(before, spec)
        changes = difference(None if before is None else before.main.desired.spec, spec)
        return Change(
            after.revision,
            put=(after.without_ended_release(),),
            events=(ChangeEvent(name, "Applied", f"revision {after.revision}: {changes}"),),
            code=self.code,
            owner=self.owner,
            http=http,
            lifted=tuple(after.main.replica_set_keys()),
        )

    def started(self, result: int) -> Mapping[str, int]:
        return {self.spec.name: result}


def spec_changed(
    state: State, application: Application, live: LiveRevision, spec: ApplicationSpec, expected: int | None = None
) -> Change[int]:
    """Return the change to another spec of a live revision, under the lease that holds the application."""
    if live is application.main:
        return Deploy(spec, owner=state.holders.get(application.name), expected=expected).apply(state)
    after = updated(live, Revision(live.number, spec))
    changes = difference(live.desired.spec, spec)
    return Change(
        live.number,
        put=(application.replaced(after),),
        events=(ChangeEvent(application.name, "Applied", f"revision {live.number}: {changes}"),),
        lifted=tuple(after.replica_set_keys()),
    )


@dataclass(frozen=True, slots=True)
class AddCandidate(Operation[int]):
    """Start a live revision of an application beside its main revision. The result is its number.

    It gets requests once it is available. With a share of 1, it is promoted then, unless another application calls a
    deployment that it lacks. If an equal one is live, that one gets the share, the tag and the mirror instead. If the
    main revision is equal, and the share is 1, that one gets all requests.

    Raises `ConfigError` if it cannot be added, or an equal one cannot be promoted, and `RevisionConflict` if it would
    not get the expected number.
    """

    spec: ApplicationSpec = field(repr=False)  # may contain secrets
    code: Mapping[str, Base64Bytes] = field(default_factory=dict, repr=False)
    """The code and files that the replicas unpack, by hash."""
    share: float = 0.0
    """The share of the requests that it gets once it is available, between 0 and 1."""
    tag: str | None = None
    """Selects the revision, whatever its share. None: it has no tag."""
    owner: str | None = None
    """The lease of the client. An application that another lease holds is refused."""
    expected: int | None = None
    """The number that the revision must get. Without this check, a command that is sent twice would start two."""
    mirror: float = 0.0
    """The share of the requests of the other live revisions that it gets copies of, between 0 and 1."""

    @classmethod
    def instead_of(cls, command: Deploy, traffic: TrafficOptions, owner: str | None) -> Self:
        """Return the command that starts this revision beside the main revision, and does not replace that."""
        share, mirror = traffic.percent / 100, traffic.mirror / 100
        return cls(command.spec, command.code, share, traffic.tag, owner, mirror=mirror)

    def expecting(self, numbers: Numbers) -> Self:
        return replace(self, expected=numbers.next_revision_of(self.spec.name)) if self.expected is None else self

    def apply(self, state: State) -> Change[int]:
        name = self.spec.name
        check_unmasked(self.spec)
        before = state.applications.get(name)
        if before is None:
            raise ConfigError(f"there is no application {name!r} beside which a revision could run; deploy it first")
        if state.holders.get(name) not in (None, self.owner):
            raise ConfigError(f"the application {name!r} is held by another run of this instance")
        prefix = before.main.spec.route_prefix
        if self.spec.route_prefix is None:
            raise ConfigError(f"application {name!r} serves no HTTP, so it cannot have several live revisions")
        if self.spec.route_prefix != prefix:
            raise ConfigError(
                f"a live revision of application {name!r} must have its route prefix {prefix!r}, "
                f"not {self.spec.route_prefix!r}"
            )
        spec = restart.kept(application_specs.beside(self.spec, before.main.spec), before)
        main, equal = before.main, traffic.equal_candidate(before, spec)
        if equal is None and self.share == 1 and main.failure is None and main.desired.spec == spec:
            # It may have been promoted since the client deployed it.
            return promotion.traffic_changed(state, main.number, traffic.with_weights(before, {main.number: 1}))
        if equal is None and self.expected not in (None, before.next_number):
            raise RevisionConflict(
                f"the next revision of application {name!r} is {before.next_number}, and {self.expected} was expected"
            )
        after = traffic.with_candidate(before, spec, self.share, self.tag, self.mirror, equal)
        if equal is not None:
            return promotion.traffic_changed(state, equal, after)
        event = ChangeEvent(name, "CandidateAdded", f"revision {after.last_number}")
        return Change(after.last_number, put=(after,), events=(event,), code=self.code)

    def started(self, result: int) -> Mapping[str, int]:
        return {self.spec.name: result}


@dataclass(frozen=True, slots=True)
class Scale(Operation[int]):
    """Set the number of replicas of a deployment, until it is deployed again. No replica restarts.

    The result is the revision number. Raises `ConfigError` if there is no such deployment, or if it cannot have this
    number of replicas.
    """

    while_frozen = True
    deployment: Annotated[
        str, Argument("The names of the application and the deployment, as `status` shows them.", "APP/DEPLOYMENT")
    ]
    """`APPLICATION/DEPLOYMENT`."""
    num_replicas: Annotated[int, Argument("The number of replicas.", "N")]
    revision: OtherRevision = field(default=None, kw_only=True)
    """Another live revision than the main one; None: the main one."""

    def __post_init__(self) -> None:
        deployment_of(self.deployment)

    def apply(self, state: State) -> Change[int]:
        name, deployment = deployment_of(self.deployment)
        application, live = state.live(name, self.revision)
        return spec_changed(
            state, application, live, application_specs.scaled(live.spec, deployment, self.num_replicas)
        )

    def started(self, result: int) -> Mapping[str, int]:
        return {deployment_of(self.deployment)[0]: result}


@dataclass(frozen=True, slots=True)
class Delete(Operation[None]):
    """Drain and delete an application, a live revision, or one deployment. Other applications are not affected.

    Raises `ConfigError` if it does not exist, if another application or deployment calls it, or if `revision` is the
    number of the main revision.
    """

    name: str
    """`APPLICATION` or `APPLICATION/DEPLOYMENT`."""
    revision: int | None = None
    """Another live revision than the main one, or the one with the deployment. It cannot be the main revision: a canary
    release may have promoted it meanwhile. None: the whole application, or the deployment of its main revision."""
    missing_ok: bool = False
    """Whether it is no error that it does not exist."""

    def __post_init__(self) -> None:
        self.parts  # noqa: B018 - raises its error

    @property
    def parts(self) -> tuple[str, str | None]:
        """The application, and the deployment; None: the whole application. Raises `ConfigError` for another form."""
        return application_or_deployment(self.name)

    @property
    def removes(self) -> Removal:
        return Removal(*self.parts, self.revision)

    def apply(self, state: State) -> Change[None]:
        name, deployment = self.parts
        if self.missing_ok and not state.has(name, deployment, self.revision):
            return Change(None)
        application, live = state.live(name, self.revision)
        if self.revision is not None and live is application.main:
            raise ConfigError(
                f"revision {self.revision} is the main revision of application {name!r}: delete {self.name!r} without "
                "a revision, or roll it back"
            )
        if deployment is not None:
            change = spec_changed(state, application, live, application_specs.without(live.spec, deployment))
            return change.with_result(None)
        if live is not application.main:
            after, events = promotion.completed(state, traffic.removed_one(application, live.number))
            event = ChangeEvent(name, "TrafficChanged", traffic.summary(after))
            return Change(None, put=(after,), events=(event, *events))
        state.check_not_called(application.name)
        return Change(None, deleted=(application.name,))

    def repeated(self) -> Self:
        return replace(self, missing_ok=True)


@dataclass(frozen=True, slots=True)
class Listen(Operation[None], DriverCommand[None]):
    """Start the proxies of an instance that has no application yet."""

    http: HTTPOptions
    """The options of the proxies."""

    def apply(self, state: State) -> Change[None]:
        return Change(None, http=self.http)
