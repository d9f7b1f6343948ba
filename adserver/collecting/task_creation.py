"""A new task, which names both helpers' identities, and which both sign."""

from typing import Any

from adserver.peers.client import HelperClient
from maskedlark import canonical
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
    task = canonical.build(Task, {**settings, "helpers": tuple(status.identity for status in statuses)})
    first, second = (helper.register_task(task) for helper in helpers)
    bundle = TaskBundle(task=task, signatures=(first, second), key_lists=(statuses[0].keys, statuses[1].keys))
    # Before it is stored: browsers verify it again, and would refuse it only once it is served.
    bundle.verify()
    return bundle
