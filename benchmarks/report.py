"""Tables and a chart of what `run.py` and `convert.py` measured.

    python benchmarks/report.py benchmarks/results.json             # the table as text
    python benchmarks/report.py --readme                            # the README's tables anew, from the files beside it

The README's tables stand between markers, `<!-- NAME -->` and `<!-- /NAME -->`; nothing there is typed by hand.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

from cases import AIMS, HIGHER_IS_BETTER, Aim
from systems import TITLES

HERE = Path(__file__).parent
OURS = "hf_mds"
COLORS = {
    "hf_mds": "#d1495b", "mosaicml": "#30638e", "litdata": "#edae49", "webdataset": "#66a182",
    "datasets_parquet": "#8d6a9f", "datasets_arrow": "#b8a9c9", "imagefolder": "#8c8c8c",
}  # fmt: skip

Figures = dict[str, dict[str, dict[str, Any]]]
"""case -> system -> figure"""


def by_case(results: dict[str, Any]) -> Figures:
    """Return the figures of each case and system."""
    cases: Figures = {}
    for figure in results["figures"]:
        cases.setdefault(figure["case"], {})[figure["system"]] = figure
    return cases


def times_better(ours: dict[str, Any], peer: dict[str, Any]) -> float:
    """Return how many times better the first is."""
    ratio = float(ours["median"] / peer["median"])
    return ratio if ours["measurement"] in HIGHER_IS_BETTER else 1 / ratio


def number(value: float) -> str:
    """Return three digits of a number."""
    if value >= 100:
        return f"{float(f'{value:.3g}'):,.0f}"
    return f"{value:.3g}"


def spread(figures: dict[str, dict[str, Any]]) -> float:
    """Return the widest distance of two runs of one system, as a part of their median."""
    return max((figure["max"] - figure["min"]) / figure["median"] for figure in figures.values())


def cell(figures: dict[str, dict[str, Any]], system: str) -> str:
    """Return a system's figure, and how many times better we are."""
    if system not in figures:
        return ""
    text = number(figures[system]["median"])
    if system != OURS and OURS in figures:
        text += f" ({number(times_better(figures[OURS], figures[system]))}x)"
    return text


def bandwidth(results: dict[str, Any], figures: dict[str, dict[str, Any]]) -> str:
    """Return our gigabytes a second, and what part of a plain copy's that is."""
    ours = figures.get(OURS)
    if ours is None or ours["measurement"] != "epoch":
        return ""
    copies = results["copies"][ours["workload"]]
    rate = ours["median"] * copies["sample_bytes"] / 1e9
    return f"{number(rate)} ({rate / copies['copy']:.0%})"


def main_table(results: dict[str, Any]) -> list[list[str]]:
    """Return the rows of the table of everything that was measured on data; the first are the heads."""
    systems = [name for name in TITLES if name in results["systems"]]
    rows = [["", "", *(TITLES[name] for name in systems), "GB/s (of a copy)", "spread"]]
    for case, figures in by_case(results).items():
        unit = next(iter(figures.values()))["unit"]
        if next(iter(figures.values()))["measurement"] != "order":
            cells = [cell(figures, name) for name in systems]
            rows.append([case, unit, *cells, bandwidth(results, figures), f"{spread(figures):.0%}"])
    return rows


def resume_table(results: dict[str, Any]) -> list[list[str]]:
    """Return what each system loses and reads twice when it resumes, and what it cannot do."""
    rows = [["resuming half-way", "first batch, s", "samples lost", "read twice"]]
    for figure in results["figures"]:
        if figure["measurement"] == "resume":
            cells = [number(figure["median"]), f"{figure['lost']:,}", f"{figure['twice']:,}"]
            rows.append([TITLES[figure["system"]], *cells])
    return rows


def memory_table(results: dict[str, Any]) -> list[list[str]]:
    """Return the memory of each system."""
    rows = [["peak memory, MB", "", "held", "held once imported", "with pages of files"]]
    for figure in results["figures"]:
        if figure["measurement"] == "memory":
            values = [figure["median"], figure["imported"], figure["with_files"]]
            rows.append([figure["case"], TITLES[figure["system"]], *map(number, values)])
    return rows


def order_table(results: dict[str, Any]) -> list[list[str]]:
    """Return the time and memory of the order alone."""
    rows = [["", "s", "peak MB"]]
    for figure in results["figures"]:
        if figure["measurement"] == "order":
            name = TITLES.get(figure["system"], figure["system"])
            rows.append([f"{figure['case']}: {name}", number(figure["median"]), number(figure["peak"])])
    return rows


def scale_table(results: dict[str, Any]) -> list[list[str]]:
    """Return the time and memory to the first batch of every shuffle, by the number of samples."""
    found = {tuple(name.split(" ")): figure for name, figure in results["scale"].items()}
    powers = sorted({power for _, power in found}, key=lambda power: int(power[3:]))
    rows = [["shuffle", *powers]]
    for algo in dict.fromkeys(algo for algo, _ in found):
        figures = [found.get((algo, power)) for power in powers]
        cells = [f"{number(each['seconds'])} s, {each['peak_bytes'] / 1e6:.0f} MB" if each else "" for each in figures]
        rows.append([algo, *cells])
    return rows


def aims_table(results: dict[str, Any]) -> list[list[str]]:
    """Return each aim that was measured, with its figure."""
    rows = [["aim", "beside", "wanted", "measured", ""]]
    for aim in AIMS:
        found = measured(aim, by_case(results))
        if found is not None:
            ratio, peer = found
            met = "met" if ratio >= aim.times else "**not met**"
            name = aim.case if aim.system == OURS else f"{aim.case}: {aim.system.split(', ')[1]}"
            rows.append([name, TITLES[peer], f"{aim.times:g}x", f"{number(ratio)}x", met])
    return rows


def measured(aim: Aim, cases: Figures) -> tuple[float, str] | None:
    """Return how many times better than the best of an aim's peers we are, and which that is."""
    figures = cases.get(aim.case, {})
    peers = [name for name in aim.than if name in figures]
    if aim.system not in figures or not peers:
        return None
    return min((times_better(figures[aim.system], figures[name]), name) for name in peers)


def settings_table(results: dict[str, Any]) -> list[list[str]]:
    """Return how each system was used."""
    rows = [["system", "version", "torch", "how it is used"]]
    for name, about in results["systems"].items():
        cannot = "; ".join(f"no {what}: {why}" for what, why in about["cannot"].items())
        rows.append(
            [TITLES[name], about["version"], about["torch"], about["settings"] + (f". {cannot}" if cannot else "")]
        )
    return rows


def describe(results: dict[str, Any]) -> str:
    """Return the machine, the command and the day in a line or two."""
    about = results["machine"]
    lines = [
        f"`{results['command']}`, {results['date']}, commit {results['commit'] or 'unknown'}, "
        f"{results['seconds'] / 60:.0f} minutes. {about['processor']}, {about['processors']} processors, "
        f"{about['memory_bytes'] / 1e9:.0f} GB of memory, {about['system']}, Python {about['python']}; "
        f"load before the run {about['load_before']:.1f}."
    ]
    lines.append(f"Medians of {results['repeats']} runs in turns." if results["repeats"] > 1 else "One run of each.")
    if results.get("failures"):
        lines.append("Failed: " + "; ".join(results["failures"]) + ".")
    return " ".join(lines)


def as_markdown(rows: list[list[str]]) -> str:
    """Return a table in Markdown; columns of numbers to the right."""
    head, *body = rows
    right = [any(row[at][:1].isdigit() for row in body) for at in range(len(head))]
    lines = ["| " + " | ".join(head) + " |", "|" + "".join("---:|" if each else "---|" for each in right)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in body])


def as_columns(rows: list[list[str]]) -> str:
    """Return a table in columns of text."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines = []
    for row in rows:
        first, *rest = (text.ljust(width) if at == 0 else text.rjust(width)
                        for at, (text, width) in enumerate(zip(row, widths, strict=True)))  # fmt: skip
        lines.append("  ".join([first, *rest]).rstrip())
    return "\n".join(lines)


def tables(results: dict[str, Any]) -> dict[str, list[list[str]]]:
    """Return every table that has something in it; settings are for the README alone."""
    found = {
        "aims": aims_table(results), "figures": main_table(results), "resume": resume_table(results),
        "memory": memory_table(results), "order": order_table(results), "scale": scale_table(results),
        "settings": settings_table(results),
    }  # fmt: skip
    return {name: rows for name, rows in found.items() if len(rows) > 1}


def as_text(results: dict[str, Any]) -> str:
    """Return the tables as text."""
    parts = [as_columns(rows) for name, rows in tables(results).items() if name != "settings"]
    return "\n\n".join([*parts, describe(results)])


def as_svg(results: dict[str, Any]) -> str:
    """Return a chart: a group of bars for each case of reading, on a logarithmic scale."""
    wanted = dict.fromkeys(aim.case for aim in AIMS)
    groups = [
        (case, figures)
        for case, figures in by_case(results).items()
        if (case in wanted or case.startswith("mix")) and next(iter(figures.values()))["measurement"] == "epoch"
    ]
    left, width, bar, top = 160, 640, 14, 40
    values = [figure["median"] for _, figures in groups for figure in figures.values()] or [1, 10]
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))

    def across(value: float) -> float:
        return left + width * (math.log10(value) - low) / max(high - low, 1)

    height = top + sum(bar * (len(figures) + 1) + 12 for _, figures in groups) + 30
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 900 {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="900" height="{height}" fill="white"/>',
        '<text x="10" y="18" font-size="14">samples a second, logarithmic; medians of runs in turns</text>',
    ]
    for power in range(low, high + 1):
        x = across(10**power)
        lines.append(f'<line x1="{x:.0f}" x2="{x:.0f}" y1="{top - 8}" y2="{height - 28}" stroke="#ddd"/>')
        lines.append(f'<text x="{x:.0f}" y="{height - 12}" text-anchor="middle" fill="#555">{10**power:,}</text>')
    y = top
    for case, figures in groups:
        lines.append(f'<text x="10" y="{y + 11}" font-weight="bold">{escape(case)}</text>')
        y += bar
        for at, (system, figure) in enumerate(figures.items()):
            x, middle = across(figure["median"]), y + at * bar + 11
            name = f'<text x="{left - 6}" y="{middle}" text-anchor="end" fill="#333">{escape(TITLES[system])}</text>'
            lines.append(name)
            lines.append(f'<rect x="{left}" y="{middle - 10}" width="{x - left:.1f}" height="{bar - 2}" '
                         f'fill="{COLORS[system]}"/>')  # fmt: skip
            lines.append(f'<text x="{x + 5:.1f}" y="{middle}">{number(figure["median"])}</text>')
        y += bar * len(figures) + 12
    return "\n".join([*lines, "</svg>"]) + "\n"


def save(results: dict[str, Any], file: Path) -> None:
    """Write the figures."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(results, indent=1) + "\n")


def fill(text: str, blocks: dict[str, str]) -> str:
    """Return the text with these blocks between its markers."""
    for name, block in blocks.items():
        pattern = rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)"
        text = re.sub(pattern, lambda match, block=block: f"{match[1]}\n{block}\n\n{match[2]}", text, flags=re.DOTALL)
    return text


def update_readme(readme: Path, folder: Path) -> None:
    """Fill the README's markers from the figures of a folder, those that are there."""
    blocks: dict[str, str] = {}
    for name, make in (("results", tables), ("convert", convert_tables)):
        file = folder / f"{name}.json"
        if file.exists():
            results = json.loads(file.read_text())
            made: Callable[[Any], dict[str, list[list[str]]]] = make
            blocks |= {table: as_markdown(rows) for table, rows in made(results).items()}
            blocks[f"{name} machine"] = describe(results)
    readme.write_text(fill(readme.read_text(), blocks))


def convert_tables(results: dict[str, Any]) -> dict[str, list[list[str]]]:
    """Return the tables of what `convert.py` measured."""
    return {"convert aims": aims_table(results), "convert": convert_table(results)}


def convert_table(results: dict[str, Any]) -> list[list[str]]:
    """Return the MB/s of each writer."""
    systems = list(results["systems"])
    rows = [["MB/s written", *(TITLES[name] for name in systems), "spread"]]
    for case, figures in by_case(results).items():
        rows.append([case, *(cell(figures, name) for name in systems), f"{spread(figures):.0%}"])
    return rows


def main(arguments: list[str]) -> int:
    """Print tables, or fill the README's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", nargs="?", type=Path, default=HERE / "results.json")
    parser.add_argument("--readme", action="store_true", help="fill benchmarks/README.md from the files beside it")
    options = parser.parse_args(arguments)
    if options.readme:
        update_readme(HERE / "README.md", HERE)
    else:
        print(as_text(json.loads(options.results.read_text())))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
