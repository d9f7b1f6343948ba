"""Refreshes the HPKE key lists in the bundles that browsers fetch.

A task never changes, but its bundle also holds both helpers' current, signed key lists. Every minute each
helper is asked for its list.
"""

import logging
from dataclasses import replace
from typing import Final

from sqlalchemy.exc import SQLAlchemyError

from adserver.peers.client import HelperClient
from adserver.store.tasks import TaskStore
from maskedlark.errors import HelperUnavailable, MaskedLarkError
from maskedlark.reports.sealing import SignedKeyList
from maskedlark.reports.task import TaskBundle
from maskedlark.runtime.periodic import Periodic

_LOG: Final = logging.getLogger(__name__)


def refresh_keys(store: TaskStore, helpers: tuple[HelperClient, HelperClient]) -> int:
    """Put the helpers' key lists into the bundles of their tasks; how many bundles changed.

    A helper that is down keeps its old list.
    """
    newest = {}
    for helper in helpers:
        try:
            status = helper.status()
        # The bundle's old list is good until it ends: browsers go on with it.
        except HelperUnavailable as error:
            _LOG.warning("cannot refresh the helpers' key lists: %s", error)
        else:
            # By key and not by role: a task keeps the helpers that it names, whoever is configured now.
            newest[status.identity.verify_key] = status.keys
    changed = [bundle for stored in store.all() if (bundle := _renew(stored.bundle, newest)) != stored.bundle]
    for bundle in changed:
        store.replace_keys(bundle)
    return len(changed)


def key_refresher(store: TaskStore, helpers: tuple[HelperClient, HelperClient], every_s: float) -> Periodic:
    """Create a thread that refreshes the key lists every so many seconds."""
    return Periodic(
        lambda _: refresh_keys(store, helpers),
        name="key-refresh",
        every_s=every_s,
        survives=(MaskedLarkError, SQLAlchemyError),
    )


def _renew(bundle: TaskBundle, newest: dict[bytes, SignedKeyList]) -> TaskBundle:
    """Return the bundle with the newest key lists of its helpers."""
    first, second = (
        newest.get(helper.verify_key, old)
        for helper, old in zip(bundle.task.helpers, bundle.key_lists, strict=True)
    )
    # Equal keys under another signature are no news to a browser.
    if (first.key_list, second.key_list) == (bundle.key_lists[0].key_list, bundle.key_lists[1].key_list):
        return bundle
    return replace(bundle, key_lists=(first, second))
