"""A first model is drawn before the transaction that stores it, and is bounded."""

from typing import Any

import pytest
from sqlalchemy import Engine, event

from adserver.records.local_plan import LocalPlan
from adserver.records.submissions import FederatedSubmission
from adserver.training.local_jobs import plan_local
from maskedlark.errors import InvalidTask
from maskedlark.federated.draw_and_discard import DrawAndDiscard
from tests.local_jobs import LocalJobs
from tests.maskedlark.federated.local_world import DRAWS_ID, draws_job


def test_no_transaction_is_open_while_instances_are_drawn(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On SQLite reports would wait for it."""
    began: list[str] = []
    event.listen(engine, "begin", lambda _: began.append("begun"))
    draw = DrawAndDiscard.initial

    def initial(*arguments: Any) -> Any:
        assert not began
        return draw(*arguments)

    monkeypatch.setattr(DrawAndDiscard, "initial", initial)
    jobs = LocalJobs(engine)
    jobs.submit(draws_job())
    assert began
    assert jobs.instances.instances(DRAWS_ID).shape == (4, 10)


@pytest.mark.parametrize(("instances", "is_fine"), [(64, True), (65, False)])
def test_all_instances_together_are_bounded(instances: int, is_fine: bool) -> None:
    submission = FederatedSubmission(
        kind="draw-and-discard",
        settings={"instances": instances, "learning_rate": 0.01, "epsilon": 0.5},
        widths=((1 << 15) - 1, 2),
        is_without_helpers=True,
    )
    if is_fine:
        assert isinstance(plan_local(submission, DRAWS_ID), LocalPlan)
    else:
        with pytest.raises(InvalidTask, match="fewer instances"):
            plan_local(submission, DRAWS_ID)
