"""Writes docs/reference.md from the docstrings of what is public: ``make reference``."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from pathlib import Path
from typing import Any

MODULES = (
    "penstock", "penstock.errors", "penstock.pack", "penstock.torch", "penstock.trace", "penstock.psi", "penstock.stores",
    "penstock.plan", "penstock.testing",
)  # fmt: skip
PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference.md"


def public(module: Any) -> list[str]:
    """The names that a module gives out; of one without ``__all__`` the classes that it defines."""
    if hasattr(module, "__all__"):
        return [name for name in module.__all__ if not name.startswith("_")]
    return [
        name
        for name, value in vars(module).items()
        if inspect.isclass(value) and value.__module__ == module.__name__
    ]


def text_of(value: Any) -> str:
    """A docstring as Markdown: code in single backquotes, examples as code."""
    text = inspect.cleandoc(value.__doc__ or "").replace("``", "`")
    text = re.sub(r":(?:class|func|meth):`([^`]*)`", r"`\1`", text)
    lines, example = [], False
    for line in text.split("\n"):
        if line.startswith((">>> ", "... ")) and not example:
            lines += ["", "```py"]
            example = True
        elif example and not line.strip():
            lines.append("```")
            example = False
        lines.append(line.replace("  # doctest: +SKIP", "").replace("  # doctest: +ELLIPSIS", ""))
    return "\n".join([*lines, "```"] if example else lines)


def signature(name: str, value: Any) -> str:
    """``name(arguments)``, an argument a line where it is long."""
    try:
        parameters = list(inspect.signature(value).parameters.values())
    except (TypeError, ValueError):
        return name
    shown = [
        re.sub(r"'([\w\[\], .|]+)'", r"\1", str(each)) if each.default is each.empty else str(each)
        for each in parameters
    ]
    shown = [
        re.sub(r"^(\**\w+): .*? = ", r"\1=", each) if " = " in each else re.sub(r": .*", "", each)
        for each in shown
    ]
    if any(each.kind is each.KEYWORD_ONLY for each in parameters) and not any(
        each.kind is each.VAR_POSITIONAL for each in parameters
    ):
        first = next(at for at, each in enumerate(parameters) if each.kind is each.KEYWORD_ONLY)
        shown.insert(first, "*")
    line = f"{name}({', '.join(shown)})"
    return line if len(line) <= 110 else f"{name}(\n    " + ", ".join(shown).replace(", ", ",\n    ") + ",\n)"


def methods(value: type) -> list[str]:
    """What a class of ours offers, a line each."""
    if issubclass(value, BaseException):
        return []
    lines = []
    for name, member in vars(value).items():
        if (
            name.startswith("_")
            or name == "describe"
            or not (inspect.isfunction(member) or isinstance(member, (property, classmethod)))
        ):
            continue
        words = (
            inspect.cleandoc(getattr(member, "__doc__", None) or "")
            .split("\n\n")[0]
            .replace("\n", " ")
            .replace("``", "`")
        )
        if words:
            called = "" if isinstance(member, property) else "()"
            lines.append(f"- `{name}{called}`: {words}")
    return lines


def page() -> str:
    """All of it."""
    parts = [
        "# Reference",
        "Made from the docstrings by `make reference`; `help(penstock.Loader)` says the same.",
    ]
    for module_name in MODULES:
        module = importlib.import_module(module_name)
        parts += [f"## {module_name}", text_of(module).split("\n\n")[0]]
        for name in public(module):
            value = getattr(module, name)
            full = f"{module_name}.{name}"
            if not callable(value) or not getattr(value, "__doc__", None):
                continue
            parts += [f"### {name}", f"```py\n{signature(full, value)}\n```", text_of(value)]
            if inspect.isclass(value) and (lines := methods(value)):
                parts.append("\n".join(lines))
    return "\n\n".join(part for part in parts if part) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"wrote {PAGE}\n")
