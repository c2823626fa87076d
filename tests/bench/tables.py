# SPDX-License-Identifier: Apache-2.0
"""What was measured as Markdown, for people.  Pure."""

from __future__ import annotations

from typing import Any

from tests.bench.variants import COMMAND_GOAL_MS

_VERDICT = {True: "met", False: "**not met**", None: ""}


def table(head: list[str], lines: list[list[str]]) -> str:
    """A Markdown table; the first column to the left, all others to the right."""
    rule = ["---"] + ["---:"] * (len(head) - 1)
    return "".join(f"| {' | '.join(cells)} |\n" for cells in (head, rule, *lines))


def document(bench: dict[str, Any], before: dict[str, Any] | None) -> str:
    """table.md, with a section for each thing that was measured."""
    machine = ", ".join(str(value) for value in bench["machine"].values())
    parts = [f"# A container start, measured {bench['date']}\n\n{machine}.\n"]
    if bench.get("variants"):
        parts += [_variants(bench["variants"]), _notes(bench["variants"])]
        if before:
            parts.append(_compared(bench["variants"], before))
    sections = {"load": _load, "growth": _growth, "commands": _commands, "runtime": _runtime}
    parts += [section(bench[key]) for key, section in sections.items() if bench.get(key)]
    return "\n".join([part for part in parts if part])


def _variants(rows: dict[str, Any]) -> str:
    head = ["", "hook ms", "p90", "in P", "p90", "goal", "", "CPU ms", "MiB", "x bare", "goal", ""]
    return table([*head, "runc run ms", "p90", "failed"], [_line(row) for row in rows.values()]) + (
        "\nMedians of whole processes, all variants in random order in each of "
        f"{max(row['starts'] for row in rows.values())} rounds; P is the bare interpreter of the same pass.\n"
    )


def _line(row: dict[str, Any]) -> list[str]:
    failed = f"{row['failed']} of {row['starts']}"
    hook, run = row["hook"], [f"{row['run']['median']:.1f}", f"{row['run']['p90']:.1f}"]
    if not hook["median"]:
        return [row["title"], *[""] * 11, *(run if row["failed"] < row["starts"] else ["", ""]), failed]
    return [
        row["title"],
        *(f"{it:.2f}" for it in (hook["median"], hook["p90"], row["median_in_p"], row["p90_in_p"])),
        *_judged(row["goal"], row["met"]),
        *(f"{it:.2f}" for it in (row["cpu"]["median"], row["memory"] / 1024, row["memory_ratio"])),
        *_judged(row["memory_goal"], row["memory_met"]),
        *run,
        failed,
    ]


def _judged(goal: float, met: bool | None) -> list[str]:
    return [f"{goal:.2f}" if goal else "", _VERDICT[met]]


def _notes(rows: dict[str, Any]) -> str:
    """What a reader must know before believing the table."""
    notes = [
        f"- {row['title']}: {row['failed']} of {row['starts']} starts failed, first with `{_short(row['said'])}`"
        for row in rows.values()
        if row["failed"]
    ]
    for key in ("cold", "stale"):
        row = rows.get(key)
        if row and row["saved"] < row["starts"] - row["failed"]:
            notes.append(f"- {row['title']}: something was saved by {row['saved']} of {row['starts']} starts only")
    warm = [row for key, row in rows.items() if key not in ("cold", "stale") and row["saved"]]
    notes += [f"- {row['title']}: something was saved by {row['saved']} starts, which were to find it" for row in warm]
    return "\n".join(notes) + "\n" if notes else ""


def _short(text: str) -> str:
    line = text.replace("`", "'").replace("\n", " ")
    return line if len(line) <= 160 else line[:160] + " ..."


def _compared(rows: dict[str, Any], before: dict[str, Any]) -> str:
    lines = []
    for key, row in rows.items():
        old = before.get("variants", {}).get(key)
        if old and old["median_in_p"] and row["median_in_p"]:
            change = row["median_in_p"] / old["median_in_p"] - 1
            lines.append([row["title"], f"{old['median_in_p']:.2f}", f"{row['median_in_p']:.2f}", f"{change:+.0%}"])
    return f"## Compared with {before['date']}, in P\n\n" + table(["", "then", "now", "change"], lines)


def _load(loads: dict[str, Any]) -> str:
    head = ["", "starts", "failed", "runc run p50 ms", "p99", "hook p50 ms", "p99"]
    lines = []
    for entry in loads["hooks"].values():
        times = [entry[what][share] for what in ("run", "hook") for share in ("median", "p99")]
        counts = [str(entry["starts"]), str(entry["failed"])]
        lines.append([entry["title"], *counts, *[f"{value:.1f}" for value in times]])
    text = f"## A load: {loads['at_once']} container starts at a time\n\n" + table(head, lines)
    for entry in loads["hooks"].values():
        if entry["failed"]:
            text += f"\n- {entry['title']}: the first failed with `{_short(entry['said'])}`\n"
    return text


def _commands(commands: dict[str, Any]) -> str:
    lines = []
    for name, entry in commands.items():
        if entry["failed"]:
            lines.append([f"`{name}`", "", "", "", "", _short(entry["said"])])
            continue
        met = _VERDICT[entry["run"]["median"] <= COMMAND_GOAL_MS]
        times = [f"{entry['run']['median']:.0f}", f"{entry['run']['p90']:.0f}"]
        lines.append([f"`{name}`", *times, f"{COMMAND_GOAL_MS}", met, ""])
    head = ["", "ms", "p90", "goal", "", "failed"]
    return "## Commands for people, warm\n\n" + table(head, lines)


def _runtime(calls: dict[str, Any]) -> str:
    lines = []
    for title, entry in calls.items():
        times = [f"{entry['run']['median']:.2f}", f"{entry['added_in_p']:.2f}"]
        lines.append([title, *times, _short(entry["said"])])
    head = ["", "ms", "added, in P", "failed"]
    return "## oci-gpu-runtime, and then /bin/true\n\n" + table(head, lines)


def _growth(growth: dict[str, Any]) -> str:
    lines = []
    for series in growth.values():
        points = ", ".join(f"{x}: {y:.2f}" for x, y in series["points"])
        met = "met" if series["marginal_us"] <= series["goal_us"] else "**not met**"
        marginal = [f"{series['marginal_us']:.1f}", f"{series['goal_us']:.0f}", met]
        lines.append([series["title"], *marginal, points])
    head = ["", "us for each", "goal", "", "hook ms"]
    return "## Growth\n\n" + table(head, lines)
