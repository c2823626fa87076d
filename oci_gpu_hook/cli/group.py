# SPDX-License-Identifier: Apache-2.0
"""A group of commands: its help does not cut their summaries, and it says which command a mistyped one is like."""

from __future__ import annotations

import difflib
import inspect
from typing import Any

import click


class CommandGroup(click.Group):
    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """One line for each command, and more if the terminal is narrow: click would cut it at the margin."""
        shown = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, summary(found)) for name, found in shown if found and not found.hidden]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        word = args[0]
        if self.get_command(ctx, word) is None and not word.startswith("-"):
            near = difflib.get_close_matches(word.lower(), self.list_commands(ctx), 1)
            hint = f"did you mean {near[0]!r}?" if near else f"'{ctx.command_path} --help' lists them"
            ctx.fail(f"no such command {word!r}, {hint}")
        return super().resolve_command(ctx, args)


def summary(command: click.Command) -> str:
    first = inspect.cleandoc(command.help or "").partition("\n\n")[0]
    return " ".join(first.split()).partition(". ")[0].rstrip(".")
