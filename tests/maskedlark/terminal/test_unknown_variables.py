"""A misspelt variable is warned of; what Kubernetes sets for a service is not."""

import logging
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from maskedlark.terminal.exit_status import REFUSED
from maskedlark.terminal.unknown_variables import warn_of_unknown_variables


def warned(
    caplog: pytest.LogCaptureFixture, party: str, prefix: str, environment: dict[str, str]
) -> list[str]:
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        warn_of_unknown_variables(
            import_module(f"{party}.cli.main").app, prefix, {"HELPER_WORKER_TLS"}, environment
        )
    return [one.getMessage() for one in caplog.records]


def test_a_misspelt_variable_is_warned_of_with_the_one_that_is_near(caplog: pytest.LogCaptureFixture) -> None:
    environment = {"HELPER_MAX_EPSILN": "secret", "HELPER_COLOUR": "secret", "ADSERVER_DATA": "/elsewhere"}
    assert warned(caplog, "helper", "HELPER_", environment) == [
        "ignored the variable HELPER_COLOUR, which is of no option",
        "ignored the variable HELPER_MAX_EPSILN, which is of no option: did you mean HELPER_MAX_EPSILON?",
    ]
    assert warned(caplog, "adserver", "ADSERVER_", {"ADSERVER_HTTP_LISTN": ""}) == [
        "ignored the variable ADSERVER_HTTP_LISTN, which is of no option: did you mean ADSERVER_HTTP_LISTEN?"
    ]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("ADSERVER_HELPER_O", "ADSERVER_HELPER_0"), ("ADSERVER_HELPER_I", "ADSERVER_HELPER_1")],
)
def test_a_letter_that_looks_like_a_digit_is_taken_for_it(
    caplog: pytest.LogCaptureFixture, typed: str, meant: str
) -> None:
    (line,) = warned(caplog, "adserver", "ADSERVER_", {typed: ""})
    assert line.endswith(f"did you mean {meant}?")


def test_options_of_every_command_and_what_kubernetes_sets_are_known(
    caplog: pytest.LogCaptureFixture,
) -> None:
    of_options = dict.fromkeys(
        ("HELPER_MAX_EPSILON", "HELPER_NAME", "HELPER_PEERS", "HELPER_WORKER_TLS"), "1"
    )
    of_services = {
        "HELPER_PORT": "tcp://10.0.0.1:8443",
        "HELPER_SERVICE_HOST": "10.0.0.1",
        "HELPER_0_SERVICE_HOST": "10.0.0.1",
        "HELPER_0_SERVICE_PORT_GRPC": "8443",
        "HELPER_0_PORT": "tcp://10.0.0.1:8443",
        "HELPER_0_PORT_8443_TCP": "tcp://10.0.0.1:8443",
        "HELPER_0_PORT_8443_TCP_ADDR": "10.0.0.1",
    }
    assert warned(caplog, "helper", "HELPER_", of_options | of_services) == []
    of_others = dict.fromkeys(("ADSERVER_URL", "ADSERVER_HELPER_0", "ADSERVER_DASHBOARD_LISTEN"), "1")
    assert warned(caplog, "adserver", "ADSERVER_", of_others) == []


@pytest.mark.parametrize(
    ("party", "words"),
    [
        ("helper", "serve --data {0} --listen 127.0.0.1:0 --insecure"),  # ends without keys
        ("adserver", "intake --database sqlite:///{0}/none --insecure"),  # without tables
        ("adserver", "serve --data {0} --helper-0 a:1 --helper-1 b:1 --insecure"),  # away from loopback
    ],
)
def test_a_server_warns_as_it_starts(party: str, words: str, tmp_path: Path) -> None:
    name = f"{party.upper()}_LOG_FROMAT"
    ran = subprocess.run(
        [sys.executable, "-c", f"from {party}.cli.main import main; main()", *words.format(tmp_path).split()],
        env={**os.environ, name: "secret"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == REFUSED, ran.stderr
    assert f"ignored the variable {name}, which is of no option: did you mean" in ran.stderr
    assert "secret" not in ran.stderr
