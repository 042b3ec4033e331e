"""Pages of the registered names: a page for each algorithm, add-on, augmenter and so on."""

from __future__ import annotations

import functools
import inspect
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from site_pages import measured
from site_pages.docstrings import markdown
from site_pages.sources import ROOT, with_site_links
from site_pages.tables import cell, code, prose, table, toctree
from ssl_toolkit import registry
from ssl_toolkit.commands.list import algorithm_facts
from ssl_toolkit.commands.show import _details
from ssl_toolkit.recipes import Recipe, load_recipes

TITLES = {
    "algorithms": "Algorithms",
    "addons": "Add-ons",
    "augmenters": "Augmenters",
    "backbones": "Backbones",
    "datasets": "Data sets",
    "loggers": "Loggers",
    "launchers": "Launchers",
}
NOTES = {
    "algorithms": "[Choosing a method](../../start/choosing.md) has recommendations, "
    "[Formulas and their sources](../../explanation/formulas.md) says what is followed where paper "
    "and code differ, and [Step parity](../../explanation/parity.md) compares each with the "
    "formulas of its paper.",
    "addons": "`--algo fixmatch+logit_adjustment` adds one to an algorithm: "
    "[Uneven classes](../../how-to/uneven-classes.md).",
    "augmenters": "`augment.weak` and `augment.strong` select one for each kind of view: "
    "[Settings](../../reference/settings.md#augment).",
    "backbones": "Every model of timm is also a backbone, by its name: "
    "[Pre-trained backbones](../../how-to/pretrained.md).",
    "datasets": "`--dataset NAME` reads one; `--data` reads images of your own: "
    "[Your own images](../../how-to/own-images.md).",
    "loggers": "`metrics.jsonl` and `metrics.csv` are always written: "
    "[Loggers](../../how-to/loggers.md).",
    "launchers": "`compare --launcher NAME` selects one: [Launchers](../../how-to/launchers.md).",
}


def pages() -> Iterator[tuple[str, str]]:
    """Yield an index for each kind of plugin, and a page for each name of ssl-toolkit."""
    for group, title in TITLES.items():
        plugins = {
            entry.name: registry.load(group, entry.name)
            for entry in registry.entries(group)
            if entry.built_in
        }
        rows = [[f"[`{name}`]({name}.md)", cell(_summary(one))] for name, one in plugins.items()]
        head = f"# {title}\n\n{NOTES[group]} Each name has a page; `ssl-toolkit show NAME` prints "
        head += "its options.\n\n"
        yield f"{group}/index", head + table(["name", "summary"], rows) + toctree(plugins)
        for name, plugin in plugins.items():
            yield f"{group}/{name}", page(group, name, plugin)


def page(group: str, name: str, plugin: type) -> str:
    """Return the page of a plugin."""
    docname = f"generated/{group}/{name}"
    parts = [f"# {name}\n", f"{markdown(plugin.__doc__ or '')}\n"]
    readme = readme_of(plugin)
    if readme is not None:
        parts += _from_readme(readme, name, plugin, docname)
    details = _details(plugin)
    if group == "algorithms":
        parts += _facts(plugin)
    parts += _defaults(details)
    parts += _options(details)
    parts += _profiles(name, details)
    if group == "algorithms":
        parts += _recipes(name)
    if group in ("algorithms", "addons"):
        parts += measured.sections_of(name, docname)
    return "\n".join(filter(None, parts))


def readme_of(plugin: type) -> Path | None:
    """Return the README of the folder in `plugins/` that has a class."""
    path = Path(inspect.getfile(plugin)).resolve()
    folder = ROOT / "plugins"
    if not path.is_relative_to(folder):
        return None
    return folder / path.relative_to(folder).parts[0] / "README.md"


def _summary(plugin: type) -> str:
    return (inspect.getdoc(plugin) or "").split("\n")[0]


def _from_readme(readme: Path, name: str, plugin: type, docname: str) -> Iterator[str]:
    """Yield what the README of a package says about one of its names."""
    text = with_site_links(readme.read_text(encoding="utf-8"), readme, docname)
    introduction, *rest = re.split(r"^## ", text, flags=re.MULTILINE)
    names = [
        entry.name
        for group in registry.GROUPS
        for entry in registry.entries(group)
        if entry.built_in and readme_of(registry.load(group, entry.name)) == readme
    ]
    package = readme.parent.name
    others = f"[{package}](../packages/{package}.md)"
    yield from _row_of(introduction, name)
    own = [
        part
        for part in rest
        if measured.normal(part.partition("\n")[0])
        in {measured.normal(name), measured.normal(plugin.__name__)}
    ]
    if own:
        yield f"## Method\n\n{own[0].partition(chr(10))[2].strip()}\n"
    elif len(set(names)) == 1 or name == package:
        body = re.sub(r"\A# .*\n", "", introduction).strip()
        yield f"## Method\n\n{_without_files(body)}\n"
        for part in rest:
            if measured.normal(part.partition("\n")[0]) not in map(measured.normal, names):
                yield f"## {part.strip()}\n"
    if step := vars(plugin).get("step"):
        line = inspect.getdoc(step).split("\n")[0].removeprefix("Return ")
        yield f"The loss of a step: {prose(line)}\n"
    yield f"Package: {others}, with the files and the paper.\n"


def _without_files(text: str) -> str:
    """Return the text without the table of the files of a package."""
    return re.sub(r"^\| file \| content \|\n(\|.*\n)+\n?", "", text, flags=re.MULTILINE)


def _row_of(introduction: str, name: str) -> Iterator[str]:
    """Yield the row of a name in the table of a README, as a list."""
    header: list[str] = []
    for line in introduction.splitlines():
        cells = [one.strip() for one in re.split(r"(?<!\\)\|", line)[1:-1]]
        if not cells:
            header = []
        elif not header:
            header = cells
        elif f"`{name}`" in cells[0]:
            pairs = zip(header[1:], cells[1:], strict=False)
            yield "\n".join(f"- {key}: {value}" for key, value in pairs if value) + "\n"
            return


def _facts(plugin: type) -> Iterator[str]:
    """Yield what an algorithm needs and computes with its defaults."""
    facts = algorithm_facts(plugin)
    lines = {
        "Family": facts["family"],
        "Needs": facts["needs"],
        "Views per labeled image": facts["views_per_labeled_image"],
        "Bytes per unlabeled image": facts["bytes_per_unlabeled_image"],
        "Tasks": ", ".join(sorted(plugin.tasks)),  # type: ignore[attr-defined]
        "Add-ons can": _hooks(plugin),
    }
    yield "\n".join(f"- {key}: {value}" for key, value in lines.items() if value) + "\n"


def _defaults(details: Mapping[str, Any]) -> Iterator[str]:
    """Yield the defaults of the runs on a data set, or with an algorithm."""
    rows = [
        [code(key), code(_plain(value))]
        for part in ("defaults", "run_defaults")
        for key, value in details.get(part, {}).items()
    ]
    if rows:
        yield "## Defaults of runs\n"
        yield table(["setting", "value"], rows)


def _hooks(plugin: type) -> str:
    texts = {
        "refine": "refine the pseudo labels",
        "weigh": "weigh the pseudo labels",
        "weigh_labels": "weigh the labels",
    }
    hooks = plugin.addon_hooks  # type: ignore[attr-defined]
    return ", ".join(text for hook, text in texts.items() if hook in hooks)


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "null" if value is None else str(value)


def _options(details: Mapping[str, Any]) -> Iterator[str]:
    options = details.get("options", [])
    if not options:
        return
    pretrained = any("for_pretrained" in option for option in options)
    head = ["option", "default", "type", "meaning", "source"]
    rows = []
    for option in options:
        kind = ", ".join(filter(None, [option["type"], option["range"]]))
        row = [code(option["name"]), code(_plain(option["default"])), cell(kind)]
        row += [cell(option["meaning"]), cell(option["source"])]
        if pretrained:
            own = option.get("for_pretrained")
            row.insert(2, code(_plain(own)) if "for_pretrained" in option else "")
        rows.append(row)
    if pretrained:
        head.insert(2, "default, pre-trained")
    yield "## Options\n"
    yield table(head, rows)


def _profiles(plugin: str, details: Mapping[str, Any]) -> Iterator[str]:
    profiles = details.get("profiles", {})
    if not profiles:
        return
    yield "## Profiles\n"
    yield (
        "`--profile NAME` changes these settings, as the authors or a well-known implementation "
        "have them ([profiles](../../explanation/design.md#profiles)).\n"
    )
    rows = [
        [code(name), code(re.sub(r"^options\.", f"{plugin}.", key)), code(_plain(value))]
        for name, values in profiles.items()
        for key, value in values.items()
    ]
    yield table(["profile", "setting", "value"], rows)


@functools.cache
def _all_recipes() -> Mapping[str, list[Recipe]]:
    found: dict[str, list[Recipe]] = defaultdict(list)
    for recipe in load_recipes().values():
        found[str(recipe.settings.get("algo", "")).partition("+")[0]].append(recipe)
    return found


def _recipes(name: str) -> Iterator[str]:
    recipes = _all_recipes().get(name, [])
    if not recipes:
        return
    yield "## Published settings\n"
    yield (
        "Recipes with this algorithm; `ssl-toolkit run --recipe NAME` trains with the settings of "
        "a row ([recipes](../../how-to/recipes.md)). The numbers are the published ones, in "
        "percent.\n"
    )
    rows = [
        [
            code(recipe.id),
            cell(recipe.paper),
            cell(f"{recipe.published.top1:g}" if recipe.published else ""),
            cell(recipe.published.by if recipe.published else ""),
        ]
        for recipe in recipes
    ]
    yield table(["recipe", "paper or benchmark", "top-1", "measured by"], rows)
