"""The public description of a job without helpers; `maskedlark.federated.local_job` reads it."""

from typing import Annotated, Literal

from pydantic import Field

from maskedlark.canonical import Bytes16, canonical


@canonical
class LocalJob:
    """The public description of a job, which devices download.

    Attributes:
        version: Of this layout.
        job_id: 16 random bytes.
        kind: The strategy.
        settings: The strategy's canonical bytes, as text.
        widths: Of the model: features, hidden widths, classes.
    """

    version: Literal[1] = 1
    job_id: Bytes16
    kind: Literal["line", "draw-and-discard"]
    settings: Annotated[str, Field(max_length=8_192)]
    widths: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=2, max_length=64)]
