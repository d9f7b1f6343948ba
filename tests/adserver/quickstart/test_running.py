"""Servers that outlive their command are found again, and never another process in their place."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from adserver.quickstart import running as module
from adserver.quickstart.project import Project, new_project
from adserver.quickstart.running import RunningFleet, command
from maskedlark.errors import InvalidTask
from tests.adserver.quickstart.test_project import SETTINGS

SERVER = """
import sys, time
option = "--port-file" if "--port-file" in sys.argv else "--addresses-file"
file = sys.argv[sys.argv.index(option) + 1]
open(file, "w").close()
time.sleep(600)
"""
BROKEN = "import sys; sys.exit('no room')"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return new_project(tmp_path / "a project", SETTINGS)


def programs(folder: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> None:
    """Stand-ins for our programs that run some code when they are told to serve."""
    script = folder / "program.py"
    script.write_text(f"import sys\nif 'serve' in sys.argv:\n    exec({code!r})\n")
    script.chmod(0o755)
    wrapper = folder / "program"
    wrapper.write_text(f'#!/bin/sh\nexec {sys.executable} "{script}" "$@"\n')
    wrapper.chmod(0o755)
    monkeypatch.setattr(module, "command", lambda _: str(wrapper))


def is_up(fleet: RunningFleet) -> bool:
    return None not in [one.process for one in fleet.states()]


def test_servers_are_started_once_found_again_and_ended(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs(tmp_path, monkeypatch, SERVER)
    told: list[str] = []
    first, second = RunningFleet(project, told.append), RunningFleet(project, told.append)
    assert not is_up(first)
    try:
        first.up()
        assert "two helpers and an ad server are run" in told[-1]
        pids = {path.read_text() for path in project.parties.glob("*.pid")}
        assert is_up(second)
        of_the_start = list(told)
        second.up()
        assert told == of_the_start
        assert {path.read_text() for path in project.parties.glob("*.pid")} == pids
    finally:
        stopped, files = second.down(), list(project.parties.glob("*.pid"))
        arguments = {module._arguments(int(pid)) for pid in pids}  # none once a process has let go its memory
        first.down()  # they are its children: only it can wait until the last trace of them is gone
    assert sorted(stopped) == ["adserver", "helper-0", "helper-1"]
    assert arguments == {""}
    assert not files
    assert not is_up(first)
    assert first.down() == []


def test_the_file_for_shells_has_the_addresses_of_the_servers_that_were_started(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs(tmp_path, monkeypatch, SERVER)
    others = replace(SETTINGS.servers, helper_0="127.0.0.1:7")
    fleet = RunningFleet(replace(project, settings=replace(SETTINGS, servers=others)), lambda _: None)
    assert "127.0.0.1:7" not in project.environment_file.read_text()
    try:
        fleet.up()
        assert "export ADSERVER_HELPER_0=127.0.0.1:7\n" in project.environment_file.read_text()
    finally:
        fleet.down()


def test_commands_that_start_servers_at_once_start_each_once_and_return_when_all_answer(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts = tmp_path / "starts"
    programs(
        tmp_path,
        monkeypatch,
        f"open({str(starts)!r}, 'a').write('one ')\nimport time; time.sleep(0.3)\n{SERVER}",
    )
    fleets = [RunningFleet(project, lambda _: None) for _ in range(3)]
    try:
        with ThreadPoolExecutor() as pool:
            began = [pool.submit(fleet.up, is_held=fleet is fleets[1]) for fleet in fleets]
            for one in began:
                one.result()
        assert starts.read_text().split() == ["one"] * 3
        assert fleets[0].is_held
    finally:
        for fleet in fleets:
            fleet.down()


@pytest.mark.parametrize("was_asked", [True, False])
def test_a_run_leaves_servers_that_were_asked_for_though_one_of_them_has_ended(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, was_asked: bool
) -> None:
    programs(tmp_path, monkeypatch, SERVER)
    first, of_run = RunningFleet(project, lambda _: None), RunningFleet(project, lambda _: None)
    # Not asked for: of a run that was killed
    first.up(is_held=was_asked)
    try:
        one = first.states()[1].process
        assert one is not None
        os.kill(one, signal.SIGKILL)
        while is_up(first):
            time.sleep(0.01)
        of_run.up()
        of_run.down_unless_held()
        assert is_up(first) is was_asked
    finally:
        first.down()
        of_run.down()
    assert not first.is_held


def test_status_says_what_runs_and_logs_show_the_end_of_each_log(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs(tmp_path, monkeypatch, SERVER)
    fleet = RunningFleet(project, lambda _: None)
    assert [one.process for one in fleet.states()] == [None] * 3
    assert fleet.log_ends(3) == {"helper-0": [], "helper-1": [], "adserver": []}
    try:
        fleet.up()
        assert None not in [one.process for one in fleet.states()]
    finally:
        fleet.down()
    log = project.parties / "helper-1.log"
    log.write_text("".join(f"line {line}\n" for line in range(10_000)))
    assert fleet.log_ends(3)["helper-1"] == ["line 9997", "line 9998", "line 9999"]
    assert [one.log for one in fleet.states()][1] == log


def test_without_a_dashboard_the_remedy_is_said(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidTask, match=r"dashboard is .*: set it to a free address"):
        RunningFleet(project, lambda _: None).login_link()
    servers = replace(project.settings.servers, dashboard="127.0.0.1:5")
    shown = RunningFleet(
        replace(project, settings=replace(project.settings, servers=servers)), lambda _: None
    )
    with pytest.raises(InvalidTask, match="runs without its dashboard"):
        shown.login_link()
    monkeypatch.setattr(module, "find_spec", lambda _: None)
    with pytest.raises(InvalidTask, match=r"pip install 'masked-lark\[dashboard\]'"):
        shown.login_link()


def test_a_wait_is_for_compiling_only_while_a_helper_says_that_it_compiles(tmp_path: Path) -> None:
    log = tmp_path / "helper-0.log"
    assert module._describe_wait("helper-0", log) == "waiting for helper-0"
    log.write_text("INFO compiling the exact path's loops\n")
    assert "compiles its loops" in module._describe_wait("helper-0", log)
    log.write_text("INFO compiling the exact path's loops\nINFO serving\n")
    assert module._describe_wait("helper-0", log) == "waiting for helper-0"


def test_a_server_that_ends_before_it_answers_is_told_with_its_log(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs(tmp_path, monkeypatch, BROKEN)
    running = RunningFleet(project, lambda _: None)
    monkeypatch.setattr(module, "_TELL_AFTER_S", 600.0)
    for _ in range(2):  # the log keeps both starts, and the second tells its own alone
        with pytest.raises(InvalidTask, match=r"helper-0 did not start: no room$"):
            running.up()


@pytest.mark.parametrize("is_the_same_command", [True, False])
def test_servers_that_ran_before_a_start_that_failed_go_on(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_the_same_command: bool
) -> None:
    programs(tmp_path, monkeypatch, SERVER)
    first = RunningFleet(project, lambda _: None)
    first.up()
    try:
        before = [one.process for one in first.states()]
        (adserver,) = [one for one in first.states() if one.name == "adserver"]
        assert adserver.process is not None
        os.kill(adserver.process, signal.SIGKILL)
        while is_up(first):
            time.sleep(0.01)
        programs(tmp_path, monkeypatch, BROKEN)
        second = first if is_the_same_command else RunningFleet(project, lambda _: None)
        with pytest.raises(InvalidTask, match="adserver did not start: no room"):
            second.up()
        assert [one.process for one in first.states()] == [*before[:2], None]
    finally:
        first.down()


def test_a_server_whose_keys_cannot_be_made_is_told_with_what_it_said(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\necho no disk >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr(module, "command", lambda _: str(program))
    with pytest.raises(InvalidTask, match=r"helper-0 did not start: no disk$"):
        RunningFleet(project, lambda _: None).up()


def test_servers_whose_arguments_cannot_be_read_while_they_start_or_end_are_awaited_and_ended(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs(tmp_path, monkeypatch, SERVER)
    running = RunningFleet(project, lambda _: None)
    with monkeypatch.context() as unread:
        unread.setattr(module, "_arguments", lambda _: "")
        try:
            running.up()
            assert is_up(running)
            pids = [int(path.read_text()) for path in project.parties.glob("*.pid")]
        finally:
            running.down()
    assert len(pids) == 3
    assert not is_up(running)
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_server_that_ends_by_itself_while_it_is_told_to_is_down(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs(tmp_path, monkeypatch, SERVER)
    first, second = RunningFleet(project, lambda _: None), RunningFleet(project, lambda _: None)
    first.up()
    try:
        monkeypatch.setattr(module.RunningFleet, "_pid", lambda *_: 1 << 22)  # above every process id
        monkeypatch.setattr(module.RunningFleet, "_has_ended", lambda *_: True)
        second.down()
    finally:
        monkeypatch.undo()
        first.down()
    assert not list(project.parties.glob("*.pid"))


def test_a_number_that_another_process_has_by_now_is_no_server(project: Project) -> None:
    project.parties.mkdir()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        for name in ("helper-0", "helper-1", "adserver"):
            (project.parties / f"{name}.pid").write_text(f"{other.pid}\n")
        running = RunningFleet(project, lambda _: None)
        assert not is_up(running)
        running.down()
        assert other.poll() is None
        other.communicate(b"\n")


def test_a_program_that_is_not_installed_says_how_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.defpath)
    with pytest.raises(InvalidTask, match="pip install"):
        command("no-such-program")
