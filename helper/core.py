"""One helper, without a network: its tasks, datasets and jobs over one data folder.

What the gRPC service calls, and tests too.
"""

from importlib.metadata import version
from pathlib import Path
from typing import Final

from helper.datasets.datasets import OPENED_BYTES, Datasets
from helper.datasets.fair_cache import FairCache
from helper.datasets.prefetch_quota import PrefetchQuota
from helper.datasets.preparation_cache import PreparationCache
from helper.datasets.storage_quota import StorageQuota
from helper.datasets.sweeping import EXPIRED_KEPT_S, Sweeper
from helper.datasets.vault import Vault
from helper.executors.executor import Executor
from helper.ledger.budget_left import BudgetsLeft
from helper.ledger.ledger import Ledger
from helper.ledger.records import LedgerCounts
from helper.ledger.witness import Witness
from helper.releases.jobs import EngineFor, RunningJobs
from helper.releases.numerics import software_digest
from helper.releases.queries import Queries
from helper.releases.statements import Statements
from helper.releases.work_quota import WorkQuota
from helper.trust.floors import MOST_HELD_BYTES, PREPARED_BYTES, Floors
from helper.trust.key_ring import Ring
from helper.trust.keys import HelperKeys
from helper.trust.tasks import Clock, Tasks
from maskedlark.frozen import frozen
from maskedlark.randomness import Randomness, system_randomness
from maskedlark.reports.sealing import SignedKeyList
from maskedlark.reports.task import HelperIdentity
from maskedlark.runtime.objects import ObjectStore
from maskedlark.runtime.refused_acts import RefusedActs

DATASETS_FOLDER: Final = "datasets"
VERSION: Final = version("masked-lark")


@frozen
class _Status:
    """A helper's identity and the counts of what it holds; all of it public."""

    version: str
    identity: HelperIdentity
    key_list: SignedKeyList
    numerics: bytes
    counts: LedgerCounts


class HelperCore:
    """A helper. Safe to call from many threads.

    A second core on the same folder continues where the first one stopped.
    """

    def __init__(
        self,
        *,
        data: Path,
        keys: HelperKeys,
        floors: Floors,
        ledger: Ledger,
        executor: Executor,
        clock: Clock,
        engine_for: EngineFor,
        randomness: Randomness = system_randomness,
        max_preparing_bytes: int = PREPARED_BYTES,
        max_held_bytes: int = MOST_HELD_BYTES,
        segments: ObjectStore | None = None,
        keep_expired_s: float = EXPIRED_KEPT_S,
    ) -> None:
        """Open what the data folder holds.

        Raises:
            InvalidTask: the witness is damaged, or datasets lie in object storage and no store is given.
        """
        self._keys = keys
        self._clock = clock
        self._ledger = ledger
        self.witness = Witness(ledger=ledger, folder=data, key=keys.witness_key())
        self.tasks = Tasks(keys=keys, floors=floors, ledger=ledger, clock=clock)
        prepared = PreparationCache(max_preparing_bytes, clock)

        # The quota asks the vault for room, and is made first: the name is looked up when it asks.
        def make_room(owner: str) -> bool:
            return vault.delete_dropped() > 0 or prepared.forget_overdue(owner)

        self.quota = StorageQuota(max_held_bytes, keys.vault_key, make_room)
        vault = Vault(data / DATASETS_FOLDER, ledger, keys.vault_key, bucket=segments, quota=self.quota)
        self.datasets = Datasets(
            tasks=self.tasks,
            # Asked anew each time: the operator rotates keys while the helper serves.
            opening_keys=lambda: keys.opening_keys(clock()),
            open_shares=executor.open,
            head_start=PrefetchQuota(executor.opens_at_once, room_bytes=max_preparing_bytes),
            ledger=ledger,
            vault=vault,
            prepared=prepared,
            kept=FairCache(min(OPENED_BYTES, floors.max_round_bytes // 2)),
        )
        work = WorkQuota(floors.max_round_bytes)
        self.jobs = RunningJobs(
            quota=work,
            tasks=self.tasks,
            datasets=self.datasets,
            executor=executor,
            ledger=ledger,
            engine_for=engine_for,
            randomness=randomness,
            noise_key=keys.noise_key,
            kept_bytes=floors.max_round_bytes // 2,
        )
        self.sweeper = Sweeper(
            ledger=ledger,
            vault=vault,
            prepared=prepared,
            clock=clock,
            keep_expired_s=keep_expired_s,
            check_ledger=lambda: self.witness.check(None),
        )
        self.queries = Queries(
            quota=work,
            tasks=self.tasks,
            datasets=self.datasets,
            executor=executor,
            ledger=ledger,
            randomness=randomness,
        )
        self.statements = Statements(
            tasks=self.tasks,
            ledger=ledger,
            sign=keys.sign_statement,
            verify_key=keys.identity.verify_key,
        )
        self.budgets_left = BudgetsLeft(ledger)
        self.refused = RefusedActs(ledger.log)

    def check_well(self, shown: bytes | None = None) -> None:
        """Return if calls can be answered.

        The ledger can be read, and knows every position that it was seen at; the disk has room.

        Args:
            shown: The receipt that a caller shows, if one asks.

        Raises:
            JobRefused(LEDGER_ROLLED_BACK)
            HelperUnavailable: the disk is full.
            SQLAlchemyError: the ledger cannot be read.
        """
        self.witness.check(shown)
        self.counts()
        self.datasets.check_room()

    @property
    def ledger(self) -> Ledger:
        """The ledger."""
        return self._ledger

    @property
    def ring(self) -> Ring:
        """The HPKE keys that the helper ever had, as they are now."""
        return self._keys.ring()

    def counts(self) -> LedgerCounts:
        """Count what this helper holds."""
        return self._ledger.counts()

    def status(self) -> _Status:
        """Return this helper's identity and what it holds. Anyone may ask."""
        return _Status(
            version=VERSION,
            identity=self._keys.identity,
            key_list=self._keys.key_list(self._clock()),
            numerics=software_digest(),
            counts=self.counts(),
        )
