"""A new task, which names both helpers' identities, and which both sign."""

from typing import Any

from adserver.peers.client import HelperClient
from maskedlark import canonical
from maskedlark.errors import InvalidTask
from maskedlark.reports.task import Task, TaskBundle


def create_task(helpers: tuple[HelperClient, HelperClient], settings: dict[str, Any]) -> TaskBundle:
    """Ask both helpers for their identities, build a task with them, and have both sign it.

    Args:
        helpers: By role.
        settings: Every field of `Task` but `helpers`.

    Raises:
        InvalidTask: a setting is wrong, a helper refuses the task, or a signature does not verify.
        HelperUnavailable: a helper does not answer; nothing was stored.
    """
    # Both answer before either signs, because each signs a task that names both.
    statuses = [helper.status() for helper in helpers]
    first, second = (status.identity for status in statuses)
    if first.verify_key == second.verify_key:
        raise InvalidTask(
            f"{helpers[0].address} and {helpers[1].address} are one helper, {first.name!r} with fingerprint "
            f"{first.fingerprint}: name two helpers of two operators with --helper-0 and --helper-1"
        )
    task = canonical.build(Task, {**settings, "helpers": tuple(status.identity for status in statuses)})
    # Its second budget would end each job before the first is spent, and no message would say so.
    if task.collusion_epsilon < task.epsilon:
        raise InvalidTask(
            f"collusion_epsilon is {task.collusion_epsilon:g}, below epsilon, {task.epsilon:g}: a helper "
            "that joins the ad server never sees less than the ad server alone; raise the first or lower "
            "the second"
        )
    signatures = (helpers[0].register_task(task), helpers[1].register_task(task))
    bundle = TaskBundle(task=task, signatures=signatures, key_lists=(statuses[0].keys, statuses[1].keys))
    # Before it is stored: browsers verify it again, and would refuse it only once it is served.
    bundle.verify()
    return bundle
