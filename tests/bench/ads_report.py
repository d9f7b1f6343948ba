"""What `make bench-ads` found, as tables, as a picture, and in docs/explanation/ads.md."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from matplotlib.figure import Figure

_DOCS: Final = Path(__file__).parents[2] / "docs"
PAGE: Final = _DOCS / "explanation" / "ads.md"
STORED: Final = _DOCS / "explanation" / "ads.json"
PICTURE: Final = _DOCS / "img" / "ads.png"
_BY_EPSILON: Final = {
    "ours": "tab:blue",
    "ours, colluding": "tab:cyan",
    "Opacus": "tab:orange",
    "label DP": "tab:red",
    "one shot": "tab:green",
}
_ACROSS: Final = {"plain": "-", "clip alone": "--", "panel alone": ":"}
_HEAD: Final = "| data | epsilon | method | AUC | log loss | mean over rate | charged |"
_PARTS: Final = {
    "sealing_by_browsers": "a browser seals (people's own processors)",
    "storing_at_the_ad_server": "the ad server checks and stores",
    "opening_at_both_helpers": "both helpers open",
    **{
        f"epoch_{kind}_{where}": f"an epoch, {shown}: {what}"
        for kind, shown in (("logistic", "logistic"), ("tables", "tables"), ("mlp", "MLP"))
        for where, what in (
            ("at_both_helpers", "both helpers, with noise"),
            ("at_the_ad_server", "the ad server"),
            ("plain", "plain torch"),
        )
    },
}


def write(found: Mapping[str, Any]) -> None:
    """Store the figures, draw the picture, and fill in the page."""
    STORED.write_text(json.dumps(found, indent=1) + "\n")
    draw(found["cells"], PICTURE)
    PAGE.write_text(fill_in(found, PAGE.read_text(encoding="utf-8")), encoding="utf-8")


def fill_in(found: Mapping[str, Any], page: str) -> str:
    """Return the page with tables between its markers.

    Raises:
        ValueError: the page has no place for one.
    """
    parts = {
        "accuracy": accuracy_table(found["cells"]),
        "bars": bars_table(found),
        "cost": cost_table(found),
        "run": _run(found),
    }
    for name, text in parts.items():
        pattern = rf"(?<=<!-- {name} -->\n).*?(?=<!-- end {name} -->)"
        page, count = re.subn(pattern, f"\n{text}\n\n", page, flags=re.DOTALL)
        if count != 1:
            raise ValueError(f"the page has no place for {name}")
    return page


def tables(found: Mapping[str, Any]) -> str:
    """All tables, for people."""
    return "\n\n".join((accuracy_table(found["cells"]), bars_table(found), cost_table(found), _run(found)))


def accuracy_table(cells: Sequence[Mapping[str, Any]]) -> str:
    """A row for each cell, by data set and epsilon."""
    order = [*_ACROSS, *_BY_EPSILON]
    rows = [_HEAD, "|---|---|---|---|---|---|---|"]
    for cell in sorted(
        cells, key=lambda one: (one["data"], one["epsilon"] or float("inf"), order.index(one["method"]))
    ):
        spread = "" if cell["auc_spread"] is None else f" ± {cell['auc_spread']:.4f}"
        charged = (
            ""
            if cell["charged"] is None
            else f"{_number(cell['charged'][0])} ({_number(cell['charged'][1])})"
        )
        epsilon = "" if cell["epsilon"] is None else f"{cell['epsilon']:g}"
        rows.append(
            f"| {cell['data']} | {epsilon} | {cell['method']} | {cell['auc']:.4f}{spread} | "
            f"{cell['log_loss']:.3f} | {cell['mean_over_rate']:.3f} | {charged} |"
        )
    return "\n".join(rows)


def bars_table(found: Mapping[str, Any]) -> str:
    """What is aimed for, and what was measured; a run that was cut short lacks some."""
    over = found["training_over_plain"]
    behind = None if (ahead := found.get("ours_minus_opacus_auc")) is None else -ahead
    rows = (
        ("Opacus's AUC less ours, the worst cell", 0.005, behind, ".4f"),
        ("a rehearsal's AUC less the job's, the worst", 0.005, found.get("rehearse_error_auc"), ".4f"),
        ("the best of six rates less the rule's, AUC", 0.005, found.get("rate_rule_loss_auc"), ".4f"),
        ("both helpers over plain torch: logistic", 4.5, over["logistic"], ".2f"),
        ("both helpers over plain torch: tables", 6.0, over["tables"], ".2f"),
        ("both helpers over plain torch: MLP", 6.0, over["mlp"], ".2f"),
    )
    lines = [
        f"| {what} | {most:g} | not measured | |"
        if now is None
        else f"| {what} | {most:g} | {now:{form}} | {'met' if now <= most else 'missed'} |"
        for what, most, now, form in rows
    ]
    return "\n".join(["| | at most | measured | the aim is |", "|---|---|---|---|", *lines])


def cost_table(found: Mapping[str, Any]) -> str:
    """Microseconds an event and dollars a million, by part."""
    spent, dollars = found["processor_us_per_event"], found["dollars_per_million"]
    rows = [f"| {shown} | {spent[name]:.3g} us | ${dollars[name]:.2g} |" for name, shown in _PARTS.items()]
    return "\n".join(["| part | processor time an event | a million events |", "|---|---|---|", *rows])


def draw(cells: Sequence[Mapping[str, Any]], path: Path) -> None:
    """A panel for each data set: AUC against epsilon; what has no epsilon is a line across."""
    names = sorted({cell["data"] for cell in cells})
    picture = Figure(figsize=(6 * len(names), 4), layout="constrained")
    for axes, data in zip(picture.subplots(1, len(names), squeeze=False)[0], names, strict=True):
        own = [cell for cell in cells if cell["data"] == data]
        for method, colour in _BY_EPSILON.items():
            line = sorted(
                (cell["epsilon"], cell["auc"], cell["auc_spread"] or 0.0)
                for cell in own
                if cell["method"] == method
            )
            if line:
                epsilons, aucs, spreads = zip(*line, strict=True)
                axes.errorbar(epsilons, aucs, spreads, marker="o", capsize=3, color=colour, label=method)
        for method, style in _ACROSS.items():
            for cell in own:
                if cell["method"] == method:
                    axes.axhline(cell["auc"], color="black", linestyle=style, linewidth=1, label=method)
        ticks = sorted({cell["epsilon"] for cell in own if cell["epsilon"]})
        axes.set_xscale("log")
        axes.set_xticks(ticks)
        axes.set_xticklabels([f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
        axes.set(title=data, xlabel="epsilon (delta 1e-5)", ylabel="AUC")
        axes.grid(visible=True, alpha=0.3)
        axes.legend(fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    picture.savefig(path, dpi=110)


def _run(found: Mapping[str, Any]) -> str:
    machine, price = found["processor"].partition(" with ")[0], found["dollars_per_vcpu_hour"]
    minutes, load = found["seconds"] / 60, found["load"]
    note: str = found.get("note", "")
    return note + (
        f"{found['seeds']} seeds, {minutes:.0f} minutes at a load of {load:.0f}, {machine}; "
        f"${price:g} a vCPU-hour is assumed."
    )


def _number(value: float) -> str:
    return f"{value:.2f}" if value < 1e3 else "∞"
