"""A server that is asked to end hears it, whichever of its threads the kernel tells."""

import subprocess
import sys
from textwrap import dedent

import pytest

from tests.patience import HANGS_S


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_that_another_thread_gets_ends_the_wait_of_the_main_one(name: str) -> None:
    script = dedent(f"""
        import signal, threading, time
        from maskedlark.runtime.signals import stop_on_signals, wait_for

        def told():
            time.sleep(0.3)  # until the main thread waits
            signal.pthread_kill(threading.get_ident(), signal.{name})
            time.sleep(30)

        with stop_on_signals() as stop:
            threading.Thread(target=told, daemon=True).start()
            wait_for(stop)
        print("ended")
    """)
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=HANGS_S, check=True
    )
    assert ended.stdout == "ended\n"
