"""A job of a dense network over a source of reports, in the words of the command lines."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSetup:
    """One job.

    Attributes:
        name: For people, and for --only.
        source: browser-sim's source and its options.
        layers: Of the dense ReLU network; one output is trained for two classes.
        rounds: Optimizer steps.
        batch_size: Expected records a round, or None for all.
    """

    name: str
    source: str
    layers: tuple[int, ...]
    rounds: int
    batch_size: int | None

    @property
    def loss(self) -> str:
        """By the number of outputs."""
        return "binary_cross_entropy_with_logits" if self.layers[-1] == 1 else "cross_entropy"

    @property
    def labels(self) -> str:
        """The options of a task for what its records are."""
        is_binary = self.layers[-1] == 1
        labels = "--classes 2 --default-label 0" if is_binary else f"--classes {self.layers[-1]}"
        return f"{labels} --num-features {self.layers[0]}"

    @property
    def training(self) -> str:
        """The options of a job for how it trains."""
        batch = f" --batch-size {self.batch_size}" if self.batch_size else ""
        return f"--loss {self.loss} --rounds {self.rounds}{batch}"
