"""An intake that keeps what it is sent, and what the two helpers find in it."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from maskedlark.canonical import encode
from maskedlark.encoding.encoder import Encoder
from maskedlark.numbers.field import reconstruct
from maskedlark.reports.upload import Report
from maskedlark.rpc.wire import decode_report
from tests.browser_sim.js.site import Answer, Seen
from tests.builders import World, check_report

CORS = {"access-control-allow-origin": "*", "access-control-expose-headers": "etag, retry-after"}


@dataclass(kw_only=True)
class SentReports:
    """Answers as the task host and the intake do.

    `encoder` is served beside the bundle. `disturb` may lose an answer, or replace it, after the report is
    kept.
    """

    of: World
    encoder: Encoder | None = None
    disturb: Callable[[Seen], Answer | str | None] = lambda _seen: "answer"
    bodies: list[bytes] = field(default_factory=list)
    reports: dict[bytes, Report] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def __call__(self, seen: Seen) -> Answer | None:
        if seen.path.endswith("/encoder"):
            if self.encoder is None:
                return Answer(status=404, headers=CORS)
            return Answer(body=encode(self.encoder), media_type="application/json", headers=CORS)
        if seen.method == "GET":
            return Answer(body=encode(self.of.bundle), media_type="application/json", headers=CORS)
        report = decode_report(seen.body)
        check_report(self.of.task, report)
        with self._lock:
            known = self.reports.setdefault(report.report_id, report)
            self.bodies.append(seen.body)
        assert known == report, "another report under the same id"
        answer = self.disturb(seen)
        if isinstance(answer, str):
            return Answer(status=201, body=b"{}", media_type="application/json", headers=CORS)
        return answer

    def found(self) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
        """Features u8 (n, d) of all reports, and their labels, -1 for a fake one."""
        shares = [opened.shares for opened in self.of.datasets(list(self.reports.values()))]
        assert len(shares[0]) == len(self.reports), "a helper drops a report"
        masks = reconstruct(shares[0].mask_shares, shares[1].mask_shares)
        assert (shares[0].features == shares[1].features).all()
        assert np.isin(masks, (0, 1)).all()
        real = masks.argmax(axis=1)
        labels = shares[0].labels[np.arange(len(masks)), real].astype(np.int64)
        return shares[0].features, np.where(masks.any(axis=1), labels, -1)

    def times(self) -> Counter[bytes]:
        """How often each row of features was reported."""
        features, _labels = self.found()
        return Counter(row.tobytes() for row in features)
