"""Secrets that stay in the memory of their process.

>>> class Key(NeverPickled):
...     __slots__ = ()
>>> import pickle
>>> pickle.dumps(Key())
Traceback (most recent call last):
    ...
TypeError: a Key holds a secret and is not pickled
"""

from typing import NoReturn, SupportsIndex


class NeverPickled:
    """A class whose objects refuse to be pickled or copied: no library sends or stores them unnoticed.

    A pool of this machine's own processes names the classes that it may send: see
    `helper.executors.processes`.
    """

    __slots__ = ()

    def __reduce_ex__(self, protocol: SupportsIndex, /) -> NoReturn:
        """Refuse."""
        raise TypeError(f"a {type(self).__name__} holds a secret and is not pickled")
