"""Options that are the fields of a plain value, and commands that take what a maker makes of them."""

from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from maskedlark.frozen import frozen
from maskedlark.terminal.options import making, option, takes


@frozen
class Limits:
    rounds: int = 3
    seconds: float = 1.5


def app() -> typer.Typer:
    made = typer.Typer()

    @takes(
        limits=making(Limits, rounds=option("Most.", min=1), seconds=option("Time.", "--time", envvar="T"))
    )
    def show(*, limits: Limits, loud: bool = False) -> None:
        typer.echo(f"{limits}{'!' if loud else ''}")

    made.command()(show)
    return made


def test_a_value_is_made_of_options_with_its_own_types_and_defaults() -> None:
    assert CliRunner().invoke(app(), []).output == "Limits(rounds=3, seconds=1.5)\n"
    given = CliRunner().invoke(app(), ["--rounds", "7", "--loud"], env={"T": "0.25"})
    assert given.output == "Limits(rounds=7, seconds=0.25)!\n"


def test_an_argument_with_the_name_of_an_option_of_a_maker_is_refused() -> None:
    # What is typed for the argument would be taken for the option as well, such as an id for a token
    with pytest.raises(TypeError, match=r"'rounds' of .*revoke is an argument, .* rename"):

        @takes(limits=making(Limits, rounds=option("Most.")))
        def revoke(rounds: Annotated[int, typer.Argument(help="Which.")], *, limits: Limits) -> None:
            raise AssertionError((rounds, limits))


def test_what_stands_in_brackets_in_a_help_text_is_shown() -> None:
    made = typer.Typer()

    @made.command()
    def show(*, of: Annotated[str, option('A file with {"KEY": [values]}.')] = "") -> None:
        typer.echo(of)

    assert "[values]" in CliRunner().invoke(made, ["--help"], env={"COLUMNS": "200"}).output


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("127.0.0.1:0", ""),
        ("[::1]:65535", ""),
        ("helper.example:8443", ""),
        ("28443", "HOST: is missing"),
        (":28443", "HOST: is missing"),
        ("helper.example", "expected a port"),
        ("helper.example:65536", "expected a port"),
        ("helper.example:http", "expected a port"),
    ],
)
def test_an_address_without_its_host_or_port_is_refused(given: str, told: str) -> None:
    made = typer.Typer()

    @made.command()
    def show(*, listen: Annotated[str | None, option("Where.", metavar="HOST:PORT")] = None) -> None:
        typer.echo(listen)

    shown = CliRunner().invoke(made, ["--listen", given], env={"COLUMNS": "200"})
    assert shown.exit_code == (2 if told else 0)
    assert (told or given) in shown.output
    assert CliRunner().invoke(made, []).output == "\n"


def test_an_option_that_is_out_of_range_makes_no_value() -> None:
    assert CliRunner().invoke(app(), ["--rounds", "0"]).exit_code == 2
