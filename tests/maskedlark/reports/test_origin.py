"""An origin has one spelling: what browsers make of it is compared with Node's URL, which is theirs."""

import json
import subprocess
from collections.abc import Callable, Iterator
from itertools import product
from subprocess import PIPE

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maskedlark import canonical
from maskedlark.errors import InvalidTask
from maskedlark.reports.origin import split_origin
from maskedlark.reports.task import Task
from maskedlark.rpc.trust import host_of
from tests.builders import settings, world
from tests.programs import NODE_REQUIRED, find_program

GOOD = {
    "https://ads.example": "ads.example",
    "http://localhost": "localhost",
    "http://127.0.0.1:8080": "127.0.0.1",
    "https://ads.example:1": "ads.example",
    "https://ads.example:65535": "ads.example",
    "https://xn--bcher-kva.example": "xn--bcher-kva.example",
    "https://[2001:db8::1]:8443": "2001:db8::1",
    "https://[::1]": "::1",
    "https://a-b.c--d.e1": "a-b.c--d.e1",
    "http://ads.example:443": "ads.example",
    "https://ads.example:80": "ads.example",
}
BAD = [
    "https://victim.example\\@rival.example", "https://victim.example@rival.example",
    "https://:@rival.example", "https://rival.example/", "https://rival.example/path", "https://rival.example?",
    "https://rival.example#", "https://Rival.example", "HTTPS://rival.example", "https://rival.example:443",
    "http://rival.example:80", "https://rival.example:", "https://rival.example:0", "https://rival.example:080",
    "https://rival.example:65536", "https://rival.example:+1", "https://rival.example:1e1", "https://rival.example.",
    "https://.rival.example", "https://rival..example", "https://", "https:///rival.example",
    "//rival.example",
    "https:rival.example", "https:/rival.example", "rival.example", "https://-rival.example", "https://rival-.example",
    "https://ri val.example", " https://rival.example", "https://rival.example ", "https://rival.example\n",
    "https://rival\t.example", "https://rival.example\0", "https://r\u00edval.example", "https://rival\u3002example",
    "https://\uff52ival.example", "https://ri%76al.example", "https://127.1", "https://0x7f.0.0.1",
    "https://2130706433", "https://127.0.0.01", "https://1.2.3.256", "https://a.1", "https://a.0x1", "https://a.0x",
    "https://[::01]", "https://[0:0:0:0:0:0:0:1]", "https://[2001:DB8::1]", "https://[::1%25eth0]", "https://[::1",
    "https://[1:2:3]", "https://[::1::]", "https://[12345::]",
    "https://::1", "https://[::ffff:1.2.3.4]", "https://[::ffff:102:304]", "https://[1::0:0:2]", "ftp://rival.example",
    "wss://rival.example", "null", "", "data:text/html,x", "https://" + "a" * 64 + ".example",
    "https://" + ".".join(["abcdefg"] * 25) + ".example",
]  # fmt: skip


@pytest.mark.parametrize("origin", GOOD)
def test_an_origin_as_browsers_spell_it_is_a_tasks(origin: str) -> None:
    assert canonical.build(Task, settings(helpers=world().task.helpers, origin=origin)).origin == origin
    assert split_origin(origin) == host_of(origin) == GOOD[origin]


@pytest.mark.parametrize("origin", BAD)
def test_any_other_spelling_is_refused_wherever_a_task_is_read(origin: str) -> None:
    assert split_origin(origin) is None
    good = canonical.encode(world().task)
    encoded = good.replace(json.dumps(world().task.origin).encode(), json.dumps(origin).encode())
    assert encoded != good
    with pytest.raises(InvalidTask, match="origin"):
        canonical.decode(Task, encoded)


# fmt: off
PIECES = [
    "a", "victim", "example", "rival", ".", ".", "-", "1", "127", "0", "0x7f", "256", "[", "]", "::", "db8",
    "ffff", "@", "\\", "/", "?", "#", "%2e", "%41", "A", "\u00df", "\u3002", "\uff0e", "_", "~", " ",
    "\t", "\n",
    "xn--bcher-kva", "\u0130", "\u2460", "\0",
]
PARTS = (
    st.sampled_from(["https", "http", "https", "http", "ftp", "HTTPS", "ws", "file", "javascript", ""]),
    st.sampled_from(["://", "://", "://", ":", ":/", ":///", ":\\\\", "//"]),
    st.lists(st.sampled_from(PIECES), max_size=7).map("".join),
    st.sampled_from(["", "", ":", ":1", ":80", ":443", ":0443", ":8443", ":65536", ":\uff11", ":0"]),
    st.sampled_from(["", "", "", "/", "?", "#", ".", "/..", "\\", "@b", " "]),
)
# fmt: on


@pytest.fixture(scope="module")
def browsers_origins() -> Iterator[Callable[[list[str]], list[str | None]]]:
    """Ask Node for each text's origin as browsers serialise it, None where it has none."""
    script = (
        "const origin = (text) => { try { return new URL(text).origin } catch { return null } };"
        "require('readline').createInterface({ input: process.stdin })"
        ".on('line', (texts) => console.log(JSON.stringify(JSON.parse(texts).map(origin))))"
    )
    node = find_program("node", variable="NODE", required=NODE_REQUIRED, package="Node.js 20")
    with subprocess.Popen([node, "-e", script], stdin=PIPE, stdout=PIPE) as asked:
        assert asked.stdin is not None
        assert asked.stdout is not None
        into, out = asked.stdin, asked.stdout

        def origins(texts: list[str]) -> list[str | None]:
            into.write(json.dumps(texts).encode() + b"\n")
            into.flush()
            found: list[str | None] = json.loads(out.readline())
            return found

        yield origins
        into.close()  # at the end of its input Node ends


@given(texts=st.lists(st.tuples(*PARTS).map("".join), min_size=300, max_size=300))
def test_what_is_accepted_is_what_a_browser_makes_of_it(
    browsers_origins: Callable[[list[str]], list[str | None]], texts: list[str]
) -> None:
    for text, origin in zip(texts, browsers_origins(texts), strict=True):
        if split_origin(text) is not None:
            assert origin == text


def test_what_browsers_make_of_simple_urls_is_accepted(
    browsers_origins: Callable[[list[str]], list[str | None]],
) -> None:
    hosts = [
        "ads.example",
        "a.b.c",
        "localhost",
        "10.0.0.1",
        "0x7f.1",
        "[::1]",
        "[2001:DB8:0:0:1::]",
        "B\u00fccher.example",
    ]
    texts = [
        f"{scheme}://user:secret@{host}{port}/path?query#part"
        for scheme, host, port in product(("http", "HTTPS"), hosts, ("", ":80", ":443", ":8443"))
    ]
    for origin in browsers_origins([*texts, *GOOD]):
        assert origin is not None
        assert split_origin(origin) is not None


def test_an_origin_has_at_most_two_hundred_characters() -> None:
    label = "a" * 60
    longest = f"https://{label}.{label}.{label}.example"
    longest = longest.replace("example", "e" * (200 - len(longest) + len("example")))
    assert len(longest) == 200
    assert split_origin(longest) is not None
    assert split_origin(f"{longest}e") is None
