"""A job without helpers as the ad server holds it: what devices download, and what only it knows."""

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from maskedlark.canonical import canonical
from maskedlark.federated.local_description import LocalJob

if TYPE_CHECKING:
    from maskedlark.federated.local_job import LocalRead


@canonical
class LocalPlan:
    """A job whose devices noise their own updates.

    Attributes:
        version: Of this record's layout.
        local: What devices download.
        seed: Of LINE's first weights; draw and discard begins at zero, spread by its law.
        is_tested: Whether draw and discard rejects models that are too far from its instances.
    """

    version: Literal[1] = 1
    local: LocalJob
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] = 0
    is_tested: bool = False

    @property
    def job(self) -> LocalJob:
        """The job, under the name that it has in every plan."""
        return self.local

    @property
    def task(self) -> None:
        """No task: helpers have nothing to sign."""

    @property
    def rounds(self) -> int | None:
        """The number of LINE's rounds; None of draw and discard, which ends when it is closed."""
        return getattr(self.read_instructions().settings, "rounds", None)

    def read_instructions(self) -> "LocalRead":
        """Read the strategy and the model of the job, loading their modules only where such a job exists.

        Raises:
            InvalidTask, InvalidModel: as `maskedlark.federated.local_job.read_local_job`.
        """
        from maskedlark.federated.local_job import read_local_job

        return read_local_job(self.local)
