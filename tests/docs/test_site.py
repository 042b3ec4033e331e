"""The site has a page for every name of the code, and its links are those of the repository."""

from __future__ import annotations

from pathlib import Path

import click
import pytest
from site_pages import api, check, commands, docstrings, measured, metrics, plugins, sources

from ssl_toolkit import registry
from ssl_toolkit.commands.show import _details

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def plugin_pages() -> dict[str, str]:
    return dict(plugins.pages())


@pytest.mark.parametrize("group", registry.GROUPS)
def test_every_name_has_a_page_with_its_options(group: str, plugin_pages: dict[str, str]) -> None:
    for entry in registry.entries(group):
        if entry.built_in:
            page = plugin_pages[f"{group}/{entry.name}"]
            plugin = registry.load(group, entry.name)
            for option in _details(plugin).get("options", []):
                assert f"\n| `{option['name']}` | `" in page
            assert f"({entry.name}.md)" in plugin_pages[f"{group}/index"]


def test_a_page_has_paper_loss_profiles_recipes_and_measured_rows(
    plugin_pages: dict[str, str],
) -> None:
    page = plugin_pages["algorithms/flexmatch"]
    for text in (
        "https://arxiv.org/abs/2110.08263",
        "β(c) = σ(c) / max(max σ, N − Σσ)",
        "The loss of a step: L_s + lambda · L_u.",
        "| `reference` | `schedule.cycles` | `0.4375` |",
        "| `usb_cifar100/labels200-flexmatch` |",
        "(../../results/random-weights.md#mnist-5k-every-algorithm-40-and-20-labels)",
        "| FlexMatch | 96.5 ± 0.4 |",
    ):
        assert text in page
    assert (
        "| `reference` | `fixmatch.interleaved` | `true` |" in plugin_pages["algorithms/fixmatch"]
    )


def test_every_command_has_its_options() -> None:
    pages = dict(commands.pages())
    for words, command in commands.commands():
        page = pages[f"commands/{words.partition(' ')[0]}"]
        assert f"# ssl-toolkit {words}\n" in page
        for one in command.params:
            if isinstance(one, click.Option):
                assert one.opts[-1] in page


def test_every_public_name_is_described() -> None:
    text = "\n".join(text for _, text in api.pages())
    surface = (ROOT / "tests/project/public_api.txt").read_text("utf-8").splitlines()
    names = {line.split()[1].split("(")[0] for line in surface if line.startswith("class ")}
    assert len(names) > 80
    for name in names:
        assert f":::::{{py:class}} {name.rpartition('.')[2]}" in text
    assert "::::{py:method} step(batch: Batch, ctx: Context) -> StepOutput" in text
    assert "::::{py:attribute} labeled_weak" in text


def test_metrics_of_the_engine_of_plugins_and_of_the_summary_are_listed() -> None:
    ((_, page),) = metrics.pages()
    for name in ("validation.accuracy", "train.coverage", "train.loss.balanced", "macro_f1"):
        assert f"`{name}`" in page


def test_links_lead_to_copies_or_to_the_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "repository", lambda: "https://example.org/x")
    text = (
        "[a](../../SECURITY.md#b) [c](design.md) [d](../../configs/) [e](https://f.org)\n"
        "![g](../../plugins/simple/ssl_toolkit_simple/algorithm.py) [h](#i)\n"
        "```\n[j](../../SECURITY.md)\n```\n"
    )
    assert sources.site_text("explanation/page", text) == (
        "[a](../generated/security.md#b) [c](design.md) [d](https://example.org/x/tree/main/configs)"
        " [e](https://f.org)\n"
        "![g](https://example.org/x/blob/main/plugins/simple/ssl_toolkit_simple/algorithm.py)"
        " [h](#i)\n```\n[j](../../SECURITY.md)\n```\n"
    )


def test_the_index_is_the_navigation() -> None:
    text = sources.site_text("index", (ROOT / "docs/index.md").read_text("utf-8"))
    listed = {link for _, pages in sources.sections(text) for _, _, link in pages}
    committed = {
        path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").glob("[!_g]*/*.md")
    }
    assert committed <= listed
    assert {"generated/algorithms/index.md", "generated/api/index.md"} <= listed
    assert "\n:caption: Reference\n" in text


def test_rows_below_supervised_training_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        "# One\n\nTen labels:\n\n| algorithm | test accuracy, mean ± sd (%) |\n|---|---|\n"
        "| supervised | 50.0 ± 1.0 |\n| Mean Teacher | 49.9 ± 2.0 |\n| **VAT** | 51.0 |\n"
    )
    found = tuple(measured._tables_of("results/a.md", text))
    monkeypatch.setattr(measured, "tables", lambda: found)
    below = "\n".join(measured.sections_of("mean_teacher", "generated/algorithms/mean_teacher"))
    assert "Means below supervised training, 1 of 1:" in below
    assert "- 49.9 % against 50.0 %: [One](../../results/a.md#one), Mean Teacher, test" in below
    above = "\n".join(measured.sections_of("vat", "generated/algorithms/vat"))
    assert "None of 1 means is below supervised training" in above
    assert "| supervised | 50.0 ± 1.0 |\n| **VAT** | 51.0 |" in above
    text = text.replace("Mean Teacher", "`vat+abc`").replace("51.0", "49.8")
    found = tuple(measured._tables_of("results/a.md", text))
    addon = "\n".join(measured.sections_of("abc", "generated/addons/abc"))
    assert "None of 1 means is below the same algorithm without it" in addon
    assert "No table" in "\n".join(measured.sections_of("uda", "generated/algorithms/uda"))


def test_the_sentence_before_a_table_introduces_it() -> None:
    text = (
        "# One\n\nOther lines. Test accuracy\nof 2 seeds, torch 2.1:\n\n| row | mean |\n|---|---|\n"
    )
    (table,) = measured._tables_of("results/a.md", text)
    assert table.label == "Test accuracy of 2 seeds, torch 2.1:"


def test_docstrings_become_markdown() -> None:
    text = docstrings.markdown(
        """Return a * b, see `f` (https://a.org/b_c), arXiv:1905.02249.

        Args:
            size: of `x`,
                in pixels.
            _other: None.

        Returns:
            (B, C) <= 1.
        """
    )
    assert text == (
        "Return a \\* b, see `f` (<https://a.org/b_c>), "
        "[arXiv:1905.02249](https://arxiv.org/abs/1905.02249).\n\n**Arguments:**\n\n"
        "- `size`: of `x`, in pixels.\n"
        "- `_other`: None.\n\n**Returns:**\n\n(B, C) \\<= 1."
    )


def test_a_broken_link_of_the_site_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text('<p id="x"><a href="b.html#y"></a><a href="#x"></a>')
    (tmp_path / "b.html").write_text('<img src="c.png"><a href="https://d.org"></a>')
    assert list(check.broken_links(tmp_path)) == [
        "a.html: b.html#y: no such anchor",
        "b.html: c.png: no such file",
    ]
    (tmp_path / "a.md").write_text(
        "[b](b.html) [c](../c.md)\n```\n[d](d.md)\n```\n[e](https://f.g)"
    )
    assert list(check.broken_links_of_markdown(tmp_path)) == ["a.md: ../c.md: no such file"]
    assert check.main(tmp_path) == 1
