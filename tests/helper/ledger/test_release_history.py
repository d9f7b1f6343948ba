"""What a ledger says that was charged, in the order in which it was."""

from hashlib import sha256
from pathlib import Path

from helper.ledger.release_history import ChargedRelease, ReleaseHistory
from maskedlark import canonical
from tests.helper.releases.test_queries import Shop


def test_jobs_and_queries_of_a_task_are_told_by_their_answers(tmp_path: Path) -> None:
    shop = Shop(tmp_path)
    history = ReleaseHistory(shop.cores[0]._ledger.engine)
    assert history.of_task(shop.task_id) == []
    assert len(history.answers(shop.dataset).entries) == 0
    long, short = shop.job(shop.dataset), shop.job(shop.dataset, job_id=b"s" * 16, rounds=1)
    unanswered = shop.job(shop.dataset, job_id=b"u" * 16)
    query = shop.query()
    for spec in (long, short, unanswered):
        shop.start(spec)
    answers = [shop.answer(0, long, 0), shop.ask(0, query).answer]
    answers += [shop.answer(0, long, 1), shop.answer(0, short, 0)]
    found = history.answers(shop.dataset)
    entries = found.entries.tolist()
    assert entries == sorted(entries)
    assert [found.specs[place] for place in found.releases] == [long, query, long, short]
    wanted = [
        ChargedRelease(spec=query, answers=1, is_final=True, first=entries[1], last=entries[1]),
        ChargedRelease(spec=long, answers=2, is_final=False, first=entries[0], last=entries[2]),
        ChargedRelease(spec=short, answers=1, is_final=True, first=entries[3], last=entries[3]),
    ]
    assert history.of_task(shop.task_id) == wanted
    digests = [sha256(answer).digest() for answer in answers]
    looks: list[int] = []
    for release, places in zip(wanted, ([1], [0, 2], [3]), strict=True):
        told = history.answers_digest(release, lambda: looks.append(1))
        assert told == sha256(b"".join(digests[place] for place in places)).digest()
    assert len(looks) == 3
    shop.cores[0].jobs.close(canonical.encode(long), None)
    assert [one.is_final for one in history.of_task(shop.task_id)] == [True, True, True]
    assert history.of_task(bytes(32)) == []
    assert history.answers(bytes(32)).specs == ()
