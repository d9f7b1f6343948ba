"""How `job watch` waits."""

from pathlib import Path

from sqlalchemy import update

from adserver.records.job_state import JobState
from adserver.store.schema import jobs
from adserver.views.job import watch
from tests.adserver.job_world import Site, plan_for, sealed

OF = sealed()


def test_a_job_is_asked_about_less_often_the_longer_it_takes(tmp_path: Path) -> None:
    site, pauses = Site(tmp_path, OF), list[float]()
    job_id = site.submit(plan_for(OF))

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 20:
            with site.engine.begin() as connection:
                connection.execute(update(jobs).values(state=JobState.DONE))

    assert watch(site.store, job_id, is_shown=False, sleep=sleep).state is JobState.DONE
    assert pauses == sorted(pauses)
    assert len(pauses) == 20
    assert pauses[0] < 0.3
    assert pauses[-1] == pauses[-2] == 1.0
    site.engine.dispose()
