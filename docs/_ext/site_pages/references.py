"""Links to the documentation of Python and torch, and from names in code to their pages."""

from __future__ import annotations

import re
import sys
from typing import Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.nodes import make_refnode

from ssl_toolkit import registry

PYTHON = "https://docs.python.org/3/library/"
TORCH = "https://docs.pytorch.org/docs/stable/"

EXTERNAL = {
    **dict.fromkeys(("Tensor", "torch.Tensor"), f"{TORCH}tensors.html"),
    "torch.Generator": f"{TORCH}generated/torch.Generator.html",
    "Generator": f"{TORCH}generated/torch.Generator.html",
    "torch.device": f"{TORCH}tensor_attributes.html#torch.device",
    "torch.dtype": f"{TORCH}tensor_attributes.html#torch.dtype",
    **dict.fromkeys(("nn.Module", "Module"), f"{TORCH}generated/torch.nn.Module.html"),
    **dict.fromkeys(
        ("Any", "ClassVar", "Literal", "Self", "NamedTuple", "Annotated"), f"{PYTHON}typing.html"
    ),
    **dict.fromkeys(
        ("Callable", "Collection", "Iterable", "Iterator", "Mapping", "Sequence", "Set"),
        f"{PYTHON}collections.abc.html",
    ),
    **dict.fromkeys(
        ("str", "bytes", "dict", "list", "tuple", "frozenset", "set"), f"{PYTHON}stdtypes.html"
    ),
    **dict.fromkeys(("int", "float", "bool"), f"{PYTHON}stdtypes.html"),
    **dict.fromkeys(("object", "type", "property"), f"{PYTHON}functions.html"),
    "None": f"{PYTHON}constants.html#None",
    "pytest.MarkDecorator": "https://docs.pytest.org/en/stable/reference/reference.html",
    "os.PathLike": f"{PYTHON}os.html#os.PathLike",
    **dict.fromkeys(("Path", "pathlib.Path"), f"{PYTHON}pathlib.html#pathlib.Path"),
}
"""Types in signatures of this project, by the names that the source has for them. The inventories
of intersphinx need a network, and have no short names."""

LINKED_GROUPS = ("algorithms", "addons")
"""Groups whose names are links wherever a page has them as code; others are also common words."""


def external(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, content: nodes.TextElement
) -> nodes.Element | None:
    """Return the link of a type of Python or torch, or the name of a type without a page.

    Signatures show the annotations of the source, which also name types that are not public.
    """
    name = node.get("reftarget", "")
    if node.get("refdomain") != "py" or node.get("reftype") not in ("class", "obj"):
        return None
    if name in EXTERNAL:
        return nodes.reference("", "", content, internal=False, refuri=EXTERNAL[name])
    modules = [one for path, one in sys.modules.items() if path.startswith("ssl_toolkit")]
    first = name.partition(".")[0]
    inner = node.get("reftype") == "class" and any(hasattr(one, first) for one in modules)
    return content if inner else None


MODULES = re.compile(r"^ssl_toolkit\.((ops|image_ops|testing)\.)?")
_NOT_IN = (nodes.title, nodes.reference, pending_xref)


class LinkNames(SphinxPostTransform):
    """Link code that is the name of an algorithm, an add-on or a public name to its page."""

    default_priority = 9

    def run(self, **kwargs: Any) -> None:
        """Replace the literals of a page that are such names.

        A word that is a function is left out, as it is often a command or an option (`compare`),
        and so is a name with two meanings (`pseudo_label`).
        """
        here = self.env.docname
        pages = {
            entry.name: (f"generated/{group}/{entry.name}", "")
            for group in LINKED_GROUPS
            for entry in registry.entries(group)
            if entry.built_in
        }
        objects = {
            MODULES.sub("", name): (item.docname, item.node_id)
            for name, item in self.env.domains["py"].objects.items()
            if re.search(r"[A-Z._]", MODULES.sub("", name))
        }
        places = {k: v for k, v in (objects | pages).items() if (k in objects) != (k in pages)}
        for literal in list(self.document.findall(nodes.literal)):
            if any(isinstance(one, _NOT_IN) for one in _parents(literal)):
                continue
            target, anchor = places.get(literal.astext(), (here, ""))
            if target == here and not anchor:
                continue
            link = make_refnode(self.app.builder, here, target, anchor, literal.deepcopy())
            literal.replace_self(link)


def _parents(node: nodes.Node) -> list[nodes.Node]:
    found = []
    while (parent := node.parent) is not None:
        found.append(parent)
        node = parent
    return found
