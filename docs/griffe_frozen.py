"""What the site's API pages show of the code.

`@frozen` and `@canonical` declare dataclasses, so signatures are drawn. What a room may import is left out.
"""

import re
from typing import Any, Final

from griffe import Class, Decorator, Expr, ExprCall, ExprKeyword, ExprName, Extension, Module

_IMPORTS: Final = re.compile(r"^May import: .*?(?:\n\n|\Z)", re.M | re.S)
_DECLARE: Final = frozenset({"maskedlark.frozen.frozen", "maskedlark.canonical.canonical"})
_DATACLASS: Final = ExprCall(
    function=ExprName("dataclass", parent=ExprName("dataclasses")),
    arguments=[ExprKeyword(name="kw_only", value="True")],
)


class FrozenClasses(Extension):
    """To griffe each of the two decorators is `@dataclass(kw_only=True)`; texts are for callers."""

    def on_module_instance(self, *, mod: Module, **_: Any) -> None:
        """Called with each module that was read."""
        if mod.docstring:
            mod.docstring.value = _IMPORTS.sub("", mod.docstring.value).strip()

    def on_class_instance(self, *, cls: Class, **_: Any) -> None:
        """Called with each class that was read."""
        cls.decorators = [_as_dataclass(one) for one in cls.decorators]


def _as_dataclass(decorator: Decorator) -> Decorator:
    said = decorator.value
    if isinstance(said, Expr) and said.canonical_path in _DECLARE:
        return Decorator(_DATACLASS, lineno=decorator.lineno, endlineno=decorator.endlineno)
    return decorator
