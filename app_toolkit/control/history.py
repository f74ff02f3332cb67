"""The history of an application: its earlier main revisions, and since when each revision is there."""

from collections.abc import Iterable, Mapping

from app_toolkit.config.models import ApplicationSpec, DeploymentSpec
from app_toolkit.control.application_specs import Revision


def unscaled(spec: ApplicationSpec) -> ApplicationSpec:
    """Return a spec with one replica of each deployment that is not autoscaled.

    Two specs that are equal then differ only in the numbers of replicas, as after `scale`.
    """

    def single(deployment: DeploymentSpec) -> DeploymentSpec:
        if deployment.config.num_replicas == "auto":
            return deployment
        return deployment.model_copy(update={"config": deployment.config.model_copy(update={"num_replicas": 1})})

    return spec.model_copy(update={"deployments": tuple(map(single, spec.deployments))})


def earlier_after(earlier: tuple[Revision, ...], was: Revision | None, stable: Revision | None) -> tuple[Revision, ...]:
    """Return the earlier revisions after a change, the newest last.

    Of those that differ only in the numbers of replicas, the newest is kept. None of them has the code and the other
    options of the stable one, so that scaling an application removes no earlier code. The stable revision says by
    `keep_revisions` how many there are at most.

    Parameters:
        earlier: The earlier revisions before the change.
        was: The stable main revision before the change, if another one takes its place; None: none does.
        stable: The stable main revision after the change.
    """
    if stable is None or was == stable:
        return earlier
    specs, kept = [unscaled(stable.spec)], list[Revision]()
    for revision in reversed((*earlier, *(() if was is None else (was,)))):
        if (spec := unscaled(revision.spec)) not in specs:
            specs.append(spec)
            kept.append(revision)
    return tuple(reversed(kept[: stable.spec.keep_revisions]))


def since_after(
    since: Mapping[int, float], numbers: Iterable[int], promoted: int | None, now: float
) -> dict[int, float]:
    """Return since when each revision is there after a change, by number, in seconds of the Unix time.

    Parameters:
        since: The same before the change.
        numbers: The numbers of the earlier and the live revisions after the change.
        promoted: The number of the candidate that becomes the main revision; None: none does.
        now: The present Unix time in seconds.
    """
    return {number: now if number == promoted else since.get(number, now) for number in sorted(numbers)}
