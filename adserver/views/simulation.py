"""A simulation's result as people and programs see it: a table, JSON, CSV, and a picture of the curve."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from adserver.simulating.simulator import SimulatedRound
from adserver.views.printing import as_csv, print_table, write_as
from maskedlark.frozen import frozen, pick_attributes
from maskedlark.terminal.pictures import as_png, new_figure

_COLUMNS: Final = ("round", "devices", "covers", "clip_norm", "accuracy", "loss", "seconds")


@frozen(eq=False)
class SimulationResult:
    """What a simulation gave.

    Attributes:
        strategy: Its kind.
        devices: How many there were.
        rounds: Each round, the start first.
        epsilon: Of the whole run against one curator who adds all the noise; None without noise.
        epsilon_2016: The same by the accountant of the papers; None where it does not apply.
        delta: Of both.
        unit: What the epsilon protects.
    """

    strategy: str
    devices: int
    rounds: Sequence[SimulatedRound]
    epsilon: float | None
    epsilon_2016: float | None
    delta: float
    unit: str

    @property
    def scored(self) -> list[SimulatedRound]:
        """The rounds after which the model was evaluated."""
        return [one for one in self.rounds if one.scores]

    def as_json(self) -> dict[str, Any]:
        """Return the run and its evaluated rounds."""
        return {
            **pick_attributes(self, ("strategy", "devices", "unit", "epsilon", "epsilon_2016", "delta")),
            "rounds": self.rounds[-1].round,
            **{name: round(score, 6) for name, score in self.scored[-1].scores.items()},
            "curve": [dict(zip(_COLUMNS, _row(one), strict=True)) for one in self.scored],
        }

    def print(self) -> None:
        """Print the evaluated rounds as a table."""
        print_table(_COLUMNS, [[_format(value) for value in _row(one)] for one in self.scored])

    def write(self, path: Path) -> None:
        """Write all rounds as CSV, or the curve as PNG, by the file's ending.

        Raises:
            InvalidTask: another ending.
        """
        write_as({".csv": _csv, ".png": _png}, self, path, "a simulation is")


def _row(one: SimulatedRound) -> list[float | int | None]:
    scores = [one.scores.get(name) for name in ("accuracy", "loss")]
    return [one.round, one.devices, one.covers, one.clip_norm, *scores, round(one.seconds, 2)]


def _format(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _csv(result: SimulationResult) -> bytes:
    return as_csv(_COLUMNS, (_row(one) for one in result.rounds))


def _png(result: SimulationResult) -> bytes:
    figure = new_figure(7, 3.6)
    axes = figure.subplots()
    rounds = [one.round for one in result.scored]
    axes.plot(rounds, [one.scores["accuracy"] for one in result.scored], marker=".")
    axes.set(xlabel="round", ylabel="accuracy", ylim=(0, 1))
    noise = "no noise" if result.epsilon is None else f"epsilon {result.epsilon:.3g} for one {result.unit}"
    axes.set_title(f"{result.strategy}, {result.devices} devices, {noise}", fontsize=10)
    axes.grid(visible=True, alpha=0.3)
    return as_png(figure)
