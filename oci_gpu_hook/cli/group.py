# SPDX-License-Identifier: Apache-2.0
"""A group of commands, which says which command a mistyped one is like."""

from __future__ import annotations

import difflib
from typing import Any

import click


class CommandGroup(click.Group):
    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        word = args[0]
        if self.get_command(ctx, word) is None and not word.startswith("-"):
            near = difflib.get_close_matches(word.lower(), self.list_commands(ctx), 1)
            hint = f"did you mean {near[0]!r}?" if near else f"'{ctx.command_path} --help' lists them"
            ctx.fail(f"no such command {word!r}, {hint}")
        return super().resolve_command(ctx, args)
