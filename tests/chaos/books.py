"""What the parties' databases say, read from outside.

What was lost, charged or used twice, and what does not end.
"""

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

from docs.tutorial.fleet import HELPERS, Fleet
from maskedlark.audit_log import verify_lines
from maskedlark.errors import InvalidTask

STOPPED: Final = frozenset({"done", "refused", "failed", "cancelled"})
KEY_REASONS: Final = ("unknown_key", "not_opened")
_OF_HELPER: Final = {
    "sign_task": "count(*) FROM tasks",
    "commit_dataset": "count(*) FROM datasets",
    "open_job": "count(*) FROM jobs",
    "close_job": "count(*) FROM jobs WHERE is_closed",
    "answer_round": "coalesce(sum(rounds_answered), 0) FROM jobs",
    "answer_query": "count(*) FROM queries",
}
_OF_AD_SERVER: Final = {
    "create_task": "count(*) FROM tasks",
    "seal_dataset": "count(*) FROM datasets WHERE state = 'committed'",
    "submit_job": "count(*) FROM jobs",
    "ask_query": "count(*) FROM queries",
}
_ACTS: Final = {"adserver": _OF_AD_SERVER} | dict.fromkeys(HELPERS, _OF_HELPER)
"""By party and act: what of its tables there are as many of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Charges:
    """How many rounds of one job each party says there were.

    Attributes:
        is_done: Whether the job came to its end; otherwise it was stopped, or goes on.
        recorded: Rounds whose answers the ad server used.
        told: Rounds charged, as the helpers told the ad server when it closed the job; None before.
        answered: Rounds that each helper charged, by role.
    """

    is_done: bool
    recorded: int
    told: int | None
    answered: tuple[int, int]

    @property
    def wrong(self) -> int:
        """Rounds charged too often or not often enough.

        Of a job that was stopped, the round under way may be charged and not used.
        """
        unused = 0 if self.is_done else 1
        at_helpers = sum(
            max(0, self.recorded - one) + max(0, one - self.recorded - unused) for one in self.answered
        )
        return at_helpers + (0 if self.told is None else abs(self.told - max(self.answered)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
    """The databases of a fleet's three parties."""

    fleet: Fleet

    def rows(self, party: str, query: str, *values: Any) -> list[Any]:
        """The answer of one party's database."""
        path = self.fleet.data(party) / ("ledger.sqlite3" if party in HELPERS else "adserver.sqlite3")
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=30)) as connection:
            return connection.execute(query, values).fetchall()

    def state_of(self, job: str) -> str:
        """A job's state at the ad server."""
        return str(self.rows("adserver", "SELECT state FROM jobs WHERE job_id = ?", bytes.fromhex(job))[0][0])

    def rounds_done(self, jobs: Sequence[str]) -> int:
        """Of all these jobs."""
        return sum(
            done
            for job in jobs
            for (done,) in self.rows(
                "adserver", "SELECT rounds_done FROM jobs WHERE job_id = ?", bytes.fromhex(job)
            )
        )

    def have_stopped(self, jobs: Sequence[str]) -> bool:
        """Whether no job goes on by itself."""
        return all(self.state_of(job) in STOPPED for job in jobs)

    def rounds_per_s(self, job: str) -> float:
        """How fast a job ran, once it did."""
        found = self.rows(
            "adserver",
            "SELECT finished_at_s FROM job_rounds WHERE job_id = ? AND rounds_done > 0",
            bytes.fromhex(job),
        )
        moments = [moment for (moment,) in found]
        return (len(moments) - 1) / float(max(moments) - min(moments))

    def ended_once(self, job: str, rounds: int) -> bool:
        """Whether a job is done, with each round in its history once."""
        query = "SELECT rounds_done FROM job_rounds WHERE job_id = ? AND rounds_done > 0"
        taken = sorted(done for (done,) in self.rows("adserver", query, bytes.fromhex(job)))
        return self.state_of(job) == "done" and taken == list(range(1, rounds + 1))

    def charges_of(self, job: str) -> Charges:
        """What all three parties wrote of a job's rounds."""
        name = bytes.fromhex(job)
        [(state, told)] = self.rows(
            "adserver", "SELECT state, rounds_charged FROM jobs WHERE job_id = ?", name
        )
        [(recorded,)] = self.rows(
            "adserver", "SELECT count(*) FROM job_rounds WHERE job_id = ? AND rounds_done > 0", name
        )
        found = [
            self.rows(helper, "SELECT rounds_answered FROM jobs WHERE job_id = ?", name) for helper in HELPERS
        ]
        first, second = (one[0][0] if one else 0 for one in found)
        return Charges(is_done=state == "done", recorded=recorded, told=told, answered=(first, second))

    def wrong_charges(self, jobs: Sequence[str]) -> int:
        """Rounds of all these jobs that a helper charged and should not have, or the other way about."""
        return sum(self.charges_of(job).wrong for job in jobs)

    def are_closed(self, jobs: Sequence[str]) -> bool:
        """Whether both helpers know of each of these jobs that no more rounds come, and the ad server what
        was charged.
        """
        return all(self.charges_of(job).told is not None for job in jobs)

    def used_reports(self, helper: str) -> set[bytes]:
        """Reports in a helper's datasets.

        No report is in two of them if the datasets are as large together.
        """
        return {bytes(report_id) for (report_id,) in self.rows(helper, "SELECT report_id FROM used_reports")}

    def used_twice(self) -> int:
        """Reports in more than one dataset, in a dataset of one helper only, or in another than the ad server
        put them in.
        """
        chosen = self.rows(
            "adserver",
            "SELECT report_id FROM reports JOIN report_states USING (task_id, sequence)"
            " WHERE state = 'sealed'",
        )
        ours = {bytes(report_id) for (report_id,) in chosen}
        wrong = 0
        for helper in HELPERS:
            used, size = (
                self.used_reports(helper),
                self.rows(helper, "SELECT coalesce(sum(size), 0) FROM datasets")[0][0],
            )
            wrong += abs(len(used) - size) + len(used ^ ours)
        return int(wrong)

    def unlogged_acts(self) -> int:
        """Acts without an entry in an audit log, entries without an act, and chains that do not hold."""
        wrong = 0
        for party, acts in _ACTS.items():
            logged = dict(self.rows(party, "SELECT act, count(*) FROM audit_log WHERE is_done GROUP BY act"))
            for act, counted in acts.items():
                wrong += abs(logged.get(act, 0) - self.rows(party, f"SELECT {counted}")[0][0])
            entries = self.rows(party, "SELECT entry FROM audit_log ORDER BY sequence")
            try:
                verify_lines(bytes(entry) for (entry,) in entries)
            except InvalidTask:
                wrong += 1
        return wrong

    def half_sealed(self) -> int:
        """Datasets that are not committed, or not at the ad server and both helpers alike."""
        datasets = [
            (state, bytes(name or b""))
            for state, name in self.rows("adserver", "SELECT state, dataset_id FROM datasets")
        ]
        ours = {name for _, name in datasets}
        unequal = sum(
            len(ours ^ {bytes(name) for (name,) in self.rows(one, "SELECT dataset_id FROM datasets")})
            for one in HELPERS
        )
        return unequal + len([state for state, _ in datasets if state != "committed"])

    def count(self, rows: str) -> int:
        """How many rows of a table the ad server has, of some kind."""
        return int(self.rows("adserver", f"SELECT count(*) FROM {rows}")[0][0])  # noqa: S608  no word of it is anybody else's

    def num_reports(self) -> int:
        """That the ad server holds."""
        return self.count("reports")

    def is_all_sealed(self) -> bool:
        """Whether no report waits, and no dataset is left to be finished."""
        waiting = self.count("report_states WHERE length(handle) = 0")
        return not waiting and not self.count("datasets WHERE state != 'committed'")

    def unfinished_datasets(self) -> int:
        """That the ad server is preparing or committing still."""
        return self.count("datasets WHERE state IN ('preparing', 'committing')")

    def num_datasets(self) -> int:
        """That the ad server made."""
        return self.count("datasets")

    def failed_opens(self) -> int:
        """Shares that a helper had no key for, or could not open."""
        dropped = self.rows("adserver", "SELECT reason, reports FROM dropped_reports")
        return sum(count for reason, count in dropped if reason in KEY_REASONS)
