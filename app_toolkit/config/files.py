"""Configuration from files: the applications, and options that override those in their code.

A file is read (`document.py`) and validated with the models, and all its mistakes are reported at once. References to
environment variables stay as written until `applied` replaces them with the values.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, Field, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from app_toolkit.config import references
from app_toolkit.config.document import Document, Mistake, Place, from_yaml
from app_toolkit.config.fields import MODULE, OBJECT, parts, sentence
from app_toolkit.config.models import (
    STREAM_LOG,
    UNINTERPRETED,
    ApplicationConfig,
    ApplicationSpec,
    ClassConfig,
    DeploymentConfig,
    DeploymentSpec,
    Model,
    Name,
    StreamLogChoice,
)
from app_toolkit.config.options import InstanceOptions, TrafficOptions
from app_toolkit.config.secrets import MASK, masked, secrets_in
from app_toolkit.errors import ConfigError, FileError, OverrideError

_TARGET = re.compile(f"{MODULE}:{OBJECT}")
_NAMES = TypeAdapter(Name)

M = TypeVar("M", bound=Model)
C = TypeVar("C", bound=DeploymentConfig)

SUFFIXES = frozenset({".yaml", ".yml"})
"""The suffixes of files with applications."""


def _validate_target(target: str) -> str:
    if not _TARGET.fullmatch(target):
        raise ValueError("it should be 'module:attribute', as in shop.web:app")
    return target


class CodeOptions(Model):
    """Where the code of one application in a file is, and the path below which it is served."""

    target: Annotated[
        str, AfterValidator(_validate_target), Field(description="`module:attribute`: where its FastAPI app is")
    ]
    route_prefix: Annotated[
        str,
        ApplicationSpec.model_fields["route_prefix"],
        Field(description="the path below which it is served; no other application has the same"),
    ] = "/"
    app_dir: Annotated[str, Field(description="the folder that is put first on the import path")] = "."
    working_dir: Annotated[str, Field(description="the folder that the app's relative paths begin at")] = "."
    include: Annotated[
        list[str],
        Field(description="files that deploy packs although it leaves out files of their name, such as .env"),
    ] = Field(default_factory=list)


class ApplicationOptions(ApplicationConfig, CodeOptions):
    """The options of one application in a file, as written, without those of its deployments."""

    stream_log: Annotated[StreamLogChoice | None, Field(description=STREAM_LOG)] = None  # type: ignore[assignment]
    splits: Annotated[
        Mapping[str, Mapping[str, float]],
        Field(description="the weights of the members of splits, by the name of the split and of the member"),
    ] = Field(default_factory=dict)
    traffic: Annotated[
        TrafficOptions | None,
        Field(description="deploy starts the new revision beside the running one; null: it replaces that one"),
    ] = None


@dataclass(frozen=True, slots=True)
class FileApplication:
    """One application of a file."""

    name: str
    options: ApplicationOptions
    folder: Path
    """The folder of the file, to which relative folders refer."""
    deployments: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The options of each deployment that the file sets, as written."""

    @property
    def app_dir(self) -> str:
        return str((self.folder / self.options.app_dir).resolve())

    @property
    def config(self) -> ApplicationConfig:
        """The options that the file sets, with `${` where the file has `$${`."""
        return ApplicationConfig(**references.each_text(self.options.chosen, references.unescape))

    @property
    def working_dir(self) -> str:
        return str((self.folder / self.options.working_dir).resolve())


@dataclass(frozen=True, slots=True)
class ConfigFile:
    """A parsed application file; as `FileError.rest`, only its readable part."""

    document: Document
    folder: Path
    """The folder of the file, to which relative paths refer."""
    instance: InstanceOptions
    applications: Mapping[str, FileApplication]

    @property
    def given(self) -> dict[str, Any]:
        """The options of the instance that the file sets, with absolute paths."""
        values = {name: getattr(self.instance, name) for name in self.instance.model_fields_set}
        for name in ("ssl_certfile", "ssl_keyfile"):
            if name in values:
                values[name] = str((self.folder / values[name]).absolute()) if values[name] else None
        return values

    def application(self, name: str) -> FileApplication:
        """Return the application with this name. Raises `ConfigError` if the file has none."""
        if name not in self.applications:
            raise ConfigError(
                f"{self.document.source} has no application {name!r}, only {', '.join(self.applications)}"
            )
        return self.applications[name]

    @property
    def variables(self) -> frozenset[str]:
        """The environment variables that the file refers to."""
        return frozenset(name for _, _, name in self._references())

    def check(self, variables: Mapping[str, str]) -> None:
        """Raise `ConfigError` with each reference to a variable that is not in `variables`, and each masked secret."""
        mistakes = [
            f"{self.document.at(place)}: {self.document.display_name(place)} = {text!r}: "
            f"the environment variable {name} is not set"
            for place, text, name in self._references()
            if name not in variables
        ]
        mistakes += [
            f"{self.document.at(place)}: {self.document.display_name(place)}: {MASK} is shown instead of a secret: "
            "write the secret or a reference ${NAME}"
            for place, text in references.texts(self.document.data)
            if (option := _option(place)) and MASK in secrets_in(text, option)
        ]
        if mistakes:
            raise ConfigError("\n".join(mistakes))

    def _references(self) -> Iterator[tuple[Place, str, str]]:
        for place, text in references.texts(self.document.data):
            with suppress(ValueError):  # a mistake, which `parse` reports
                for name in references.names(text):
                    yield place, text, name

    def locate(self, application: str, error: OverrideError) -> ConfigError:
        """Return an error that names, for each mistake in the options, the line of the file that sets the option."""
        around: Place = ("applications", application, "deployments")
        return ConfigError(
            "\n".join(
                f"{self.document.at((*around, *where))}: {self.document.display_name((*around, where[0]))}: {why}"
                for where, why in error.mistakes
            )
        )


def read_file(path: Path) -> ConfigFile:
    """Read a YAML file with applications.

    Raises `ConfigError` with the line of each mistake. The error is a `FileError` if a part of the file can be read.
    """
    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    document, folder = from_yaml(text, str(path)), path.resolve().parent
    try:
        instance, applications = parse(document, folder, InstanceOptions)
    except FileError as error:
        error.rest = ConfigFile(document, folder, InstanceOptions(), error.rest)
        raise
    if not applications:
        raise ConfigError(f"{path} has no applications")
    return ConfigFile(document, folder, instance, applications)


def parse(document: Document, folder: Path, model: type[M]) -> tuple[M, Mapping[str, FileApplication]]:
    """Return the options of `model` that a document sets, and its applications.

    Relative folders of the applications refer to `folder`. Raises `FileError` with all mistakes, a line for each. Its
    `rest` has the applications that can be read.
    """
    reader = _FileReader(document)
    table = reader.table(document.data, ())
    options = reader.options(model, {name: value for name, value in table.items() if name != "applications"}, ())
    applications = reader.applications(table.get("applications"), folder)
    reader.references()
    if options is None or reader.mistakes:
        raise FileError("\n".join(mistake.message for mistake in sorted(reader.mistakes)), applications)
    return options, applications


def as_written(config: C) -> C:
    """Return the options of a deployment in code as a file has them: texts that look like references are escaped."""
    return _with_texts(config, references.escape)


def applied(spec: ApplicationSpec, variables: Mapping[str, str]) -> ApplicationSpec:
    """Return the spec with each reference replaced by the value of its variable.

    The values may be secrets: do not show the result to users.
    """
    return _with_deployments(
        spec, lambda deployment: _resolved(deployment, lambda text: references.resolve(text, variables))
    )


def written(spec: ApplicationSpec) -> ApplicationSpec:
    """Return an applied spec as written: with the references instead of the values of the variables.

    `MASK` stands for each secret that is plain text.
    """

    def shown(deployment: DeploymentSpec) -> DeploymentSpec:
        config = _with_values(
            deployment.config, {option: masked(value) for option, value in _written(deployment).items()}
        )
        return deployment.model_copy(update={"config": config, "written": {}})

    return _with_deployments(spec, shown)


def check_unmasked(spec: ApplicationSpec) -> None:
    """Raise `ConfigError` if an applied spec has `MASK` instead of a secret."""
    for deployment in spec.deployments:
        for option, value in _written(deployment).items():
            for place, text in references.texts(value, (option,)):
                if MASK in secrets_in(text, place):
                    raise ConfigError(
                        f"{spec.name}/{deployment.config.name}: {'.'.join(place)}: {MASK} is shown instead of a "
                        "secret: write the secret or a reference ${NAME}"
                    )


def _with_deployments(spec: ApplicationSpec, change: Callable[[DeploymentSpec], DeploymentSpec]) -> ApplicationSpec:
    return spec.model_copy(update={"deployments": tuple(map(change, spec.deployments))})


def _resolved(deployment: DeploymentSpec, value_of: Callable[[str], str]) -> DeploymentSpec:
    """Return a deployment, which is as written, with `value_of` applied to its texts."""
    having = {option: value for option, value in deployment.config.uninterpreted.items() if _has_references(value)}
    config = _with_texts(deployment.config, value_of)
    return deployment.model_copy(update={"config": config, "written": having})


def _has_references(value: Any) -> bool:
    return any(True for _, text in references.texts(value) for _ in references.names(text))


def _with_texts(config: C, change: Callable[[str], str]) -> C:
    """Return the options with `change` applied to each text in the options `UNINTERPRETED`."""
    values = config.uninterpreted.items()
    return _with_values(config, {option: references.each_text(value, change) for option, value in values})


def _written(deployment: DeploymentSpec) -> dict[str, Any]:
    """Return the options `UNINTERPRETED` of an applied deployment as written, with their secrets."""
    return {**as_written(deployment.config).uninterpreted, **deployment.written}


def _with_values(config: M, values: Mapping[str, Any]) -> M:
    """Return the options with other values of those with these dotted names."""
    changed: dict[str, Any] = {}
    for option, value in values.items():
        name, _, part = option.partition(".")
        changed[name] = _with_values(getattr(config, name), {part: value}) if part else value
    return config.model_copy(update=changed)


def _option(place: Place) -> Place:
    """Return the path of a value in the options of its deployment; empty: it is not in those of a deployment."""
    return place[4:] if place[:1] == ("applications",) and place[2:3] == ("deployments",) else ()


def _importable_options(table: Mapping[str, Any]) -> ApplicationOptions | None:
    """Return the options that importing an application needs; None: these have mistakes.

    They are enough to import an application whose other options have mistakes, and to report the mistakes in its code.
    """
    values = {name: table[name] for name in ("target", "app_dir", "working_dir") if name in table}
    try:
        return ApplicationOptions(**values)
    except ConfigError:
        return None


class _FileReader:
    """Validates a document with the models, and collects all mistakes."""

    def __init__(self, document: Document) -> None:
        self.mistakes = list(document.mistakes)
        self._document = document

    def table(self, value: Any, place: Place) -> Mapping[str, Any]:
        """Return a table; an empty one if the value is None, or is no table, which is a mistake."""
        if value is None or isinstance(value, Mapping):
            return value or {}
        self._report_option(place, f" = {value!r}: it should be a table")
        return {}

    def applications(self, value: Any, folder: Path) -> Mapping[str, FileApplication]:
        applications: dict[str, FileApplication] = {}
        prefixes: dict[str, str] = {}
        for name, whole in self.table(value, ("applications",)).items():
            place: Place = ("applications", name)
            self._name(name, place)
            table = self.table(whole, place)
            if whole is not None and not isinstance(whole, Mapping):
                continue
            deployments = {
                deployment: self._deployment(deployment, options, (*place, "deployments", deployment))
                for deployment, options in self.table(table.get("deployments"), (*place, "deployments")).items()
            }
            own_options = self.options(
                ApplicationOptions, {k: v for k, v in table.items() if k != "deployments"}, place
            )
            if own_options is None:
                if (rest := _importable_options(table)) is not None:
                    applications[name] = FileApplication(name, rest, folder, deployments)
                continue
            applications[name] = FileApplication(name, own_options, folder, deployments)
            first = prefixes.setdefault(own_options.route_prefix, name)
            if first != name:
                prefix_place = (*place, "route_prefix")
                self._report_option(
                    prefix_place, f" = {own_options.route_prefix!r}: application {first!r} already has this prefix"
                )
        return applications

    def _deployment(self, name: str, whole: Any, place: Place) -> Mapping[str, Any]:
        self._name(name, place)
        table = dict(self.table(whole, place))
        if table.pop("name", None) is not None:
            self._report_option((*place, "name"), f": remove it: the key {name!r} is the name")
        # Only the app says whether the deployment is an ingress. A class accepts every option of an ingress.
        config = self.options(ClassConfig, {**table, "name": "any"}, place)
        return {} if config is None else config.model_dump(exclude={"name"}, exclude_unset=True)

    def options(self, model: type[M], values: Mapping[str, Any], place: Place) -> M | None:
        """Validate options. Return None if they have mistakes."""
        before = len(self.mistakes)
        kept = dict(values)
        for name in model.model_fields.keys() & values.keys():
            # Nested models are validated first: the error that a `Model` raises would hide other mistakes.
            inner = parts(model.model_fields[name])
            if inner is not None and issubclass(inner, Model) and isinstance(values[name], Mapping):
                made = self.options(inner, values[name], (*place, name))
                if made is None:
                    del kept[name]
                else:
                    kept[name] = made
        options = model.__new__(model)
        try:
            BaseModel.__init__(options, **kept)
        except ValidationError as error:
            wrong = error.errors(include_url=False)
            for mistake in wrong:
                self._record((*place, *map(str, mistake["loc"])), self._sentence(mistake, model, place))
            # Validate the correct options again: validators of the whole model run only if no option is wrong.
            right = {name: kept[name] for name in kept if not any(error["loc"][:1] == (name,) for error in wrong)}
            needed = {name for name, field in model.model_fields.items() if field.is_required()}
            if len(right) < len(kept) and needed <= right.keys():
                self.options(model, right, place)
        else:
            for name in options.model_fields_set:
                self._types(kept[name], getattr(options, name), (*place, name))
        return options if len(self.mistakes) == before else None

    def _sentence(self, mistake: ErrorDetails, model: type[Model], place: Place) -> str:
        beside = ("applications",) if model is InstanceOptions else ()
        return sentence(
            mistake, lambda option: self._document.display_name((*place, option) if option else place), model, beside
        )

    def _types(self, written: Any, read: Any, place: Place) -> None:
        """Report a boolean or a number that is written as a value of another type, which pydantic would convert."""
        if isinstance(written, Mapping):
            for name in written:
                inner = getattr(read, name) if isinstance(read, BaseModel) else read[name]
                self._types(written[name], inner, (*place, name))
        elif isinstance(read, bool) and not isinstance(written, bool):
            self._report_option(place, f" = {written!r}: it should be true or false")
        elif isinstance(read, int | float) and isinstance(written, str | bool) and not isinstance(read, bool):
            self._report_option(place, f" = {written!r}: it should be a number")

    def _name(self, name: str, place: Place) -> None:
        try:
            _NAMES.validate_python(name)
        except ValidationError:
            self._report_option(
                place,
                ": a name has at most 64 small letters, digits, - and _, and begins and ends with a letter or a digit",
            )

    def references(self) -> None:
        for place, text in references.texts(self._document.data):
            try:
                variables = list(references.names(text))
            except ValueError as error:
                is_secret = any(secrets_in(text, place))
                self._report_option(place, f": {error}" if is_secret else f" = {text!r}: {error}")
                continue
            option = _option(place)
            if variables and not any(f"{'.'.join(map(str, option))}.".startswith(f"{name}.") for name in UNINTERPRETED):
                names = " and ".join(UNINTERPRETED)
                why = f"only {names} may refer to environment variables, and a literal ${{ is written $${{"
                self._report_option(place, f" = {text!r}: {why}")

    def _report_option(self, place: Place, message: str) -> None:
        """Record a mistake in an option. The name of the option is put in front of `message`."""
        self._record(place, f"{self._document.display_name(place)}{message}")

    def _record(self, place: Place, message: str) -> None:
        self.mistakes.append(Mistake(self._document.line(place), f"{self._document.at(place)}: {message}"))
