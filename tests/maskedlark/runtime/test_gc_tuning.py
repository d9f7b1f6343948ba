"""When garbage in cycles is looked for: of each process, so every case runs in one of its own."""

import subprocess
import sys

WEAK = """
import gc, weakref
from maskedlark.runtime import gc_tuning

class Ring:
    pass

def ring():
    one = Ring()
    one.self = one
    return weakref.ref(one)
"""


def told(code: str) -> str:
    """What a process prints."""
    ran = subprocess.run([sys.executable, "-c", WEAK + code], capture_output=True, text=True, check=True)
    return ran.stdout.strip()


def test_a_command_looks_for_garbage_seldom() -> None:
    code = """
with gc_tuning.command():
    print(gc.get_threshold()[0] >= 10_000)
"""
    assert told(code) == "True"


def test_what_a_command_leaves_is_not_gone_through_at_its_end() -> None:
    code = """
try:
    with gc_tuning.command():
        left = ring()
        raise SystemExit
except SystemExit:
    gc.collect()
    print(left() is None)
"""
    assert told(code) == "False"


def test_what_a_process_that_works_for_a_command_leaves_is_not_gone_through_either() -> None:
    code = """
class Told(Ring):
    def __del__(self):
        print("found")

left = Told()
left.self = left
del left
"""
    assert told(code) == "found"
    assert told(code + "gc_tuning.seldom()") == ""


def test_a_server_looks_for_garbage_as_often_as_python_does() -> None:
    code = "usual = gc.get_threshold(); gc_tuning.seldom(); gc_tuning.serving()"
    assert told(f"{code}; print(gc.get_threshold() == usual)") == "True"


def test_a_server_never_looks_again_at_what_it_had_when_it_started() -> None:
    assert told("before = ring(); gc_tuning.serving(); gc.collect(); print(before() is None)") == "False"


def test_a_server_still_frees_the_cycles_that_come_later() -> None:
    assert told("gc_tuning.serving(); later = ring(); gc.collect(); print(later() is None)") == "True"


def test_every_command_line_looks_for_garbage_seldom() -> None:
    code = """
import sys
from importlib import import_module
for main in ("adserver.cli.main", "helper.cli.main", "browser_sim.cli"):
    gc.set_threshold(1, 1, 1)
    sys.argv = ["command", "--help"]
    try:
        import_module(main).main()
    except SystemExit:
        pass
    assert gc.get_threshold()[0] >= 10_000, main
    assert gc.get_freeze_count() > 10_000, main
    gc.unfreeze()
print("all")
"""
    assert told(code).endswith("all")
