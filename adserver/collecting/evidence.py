"""Both helpers' statements about the releases of a task, next to the task that they signed."""

from collections.abc import Sequence

from adserver.peers.client import HelperClient
from adserver.peers.replies import bad_answer
from maskedlark.errors import InvalidTask
from maskedlark.releases.statement import Evidence, SignedStatement
from maskedlark.reports.task import TaskBundle


def collect_evidence(helpers: tuple[HelperClient, HelperClient], bundle: TaskBundle) -> tuple[Evidence, ...]:
    """Return the evidence of each job and query of a task, by the last answer of each.

    A release that only one helper charged, as while a round is under way, has that helper's statement alone.

    Raises:
        JobRefused(BAD_ANSWER): a helper's statement is not signed by it, or not of this task.
        JobRefused: a helper refuses.
        HelperUnavailable: a helper does not answer.
    """
    task_id = bundle.task.task_id
    of_releases: dict[tuple[str, bytes], list[SignedStatement]] = {}
    for role, helper in enumerate(helpers):
        for one in helper.statements(task_id):
            # One for the other role would count as the other helper's.
            if one.statement.role != role:
                raise bad_answer(helper.address, f"a statement of role {one.statement.role}, not {role}")
            name = (one.statement.kind, one.statement.release_id)
            of_releases.setdefault(name, []).append(one)
    addresses = " and ".join(one.address for one in helpers)
    return tuple(_evidence(bundle, found, addresses) for found in of_releases.values())


def _evidence(bundle: TaskBundle, statements: Sequence[SignedStatement], addresses: str) -> Evidence:
    made = Evidence(task=bundle.task, task_signatures=bundle.signatures, statements=tuple(statements))
    try:
        made.verify()
    except InvalidTask as error:
        raise bad_answer(addresses, str(error)) from None
    return made
