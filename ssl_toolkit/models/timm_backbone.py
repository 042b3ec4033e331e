"""Any timm model as a backbone."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from ssl_toolkit import registry
from ssl_toolkit.errors import ModelError, PluginError, UserError
from ssl_toolkit.interfaces import Backbone


class TimmBackbone(Backbone):
    """A timm model without its head; its features are the input of timm's head.

    The head that `Classifier` adds is one linear layer with torch's default initialization,
    regardless of timm's own head.

    Args:
        name: Name in timm, with or without a tag (``resnet50``, ``resnet50.a1_in1k``).
        image_size: Side of the square images in pixels, None for the model's own. A model with a
            fixed size (a position table) is built for this size; published position tables are
            resized.
        pretrained: True to load the published weights (see `published_weights`).

    Raises:
        PluginError: timm has no such model; the message has near names.
        ModelError: The model doesn't support the size, or its weights are not available.
    """

    def __init__(
        self, name: str, *, image_size: int | None = None, pretrained: bool = False
    ) -> None:
        super().__init__()
        import timm.data

        configuration = _configuration(name)
        own_size = int(configuration.input_size[-1]) if configuration else 224
        size = own_size if image_size is None else image_size
        if size < 1:
            raise _size_error(name, size, own_size, "it must be at least 1")
        published = None
        if pretrained:  # first: a large model takes a minute to build
            from ssl_toolkit.models.published import published_weights

            published = published_weights(name, configuration)
        has_fixed_size = configuration and configuration.fixed_input_size
        try:
            self.model, self.build_arguments = _create(name, size if has_fixed_size else None)
        except Exception as error:
            raise _size_error(name, size, own_size, _allowed(name, error)) from error
        self.feature_dim = self._own_dim = self._probe(name, size, own_size)
        self._size = size
        self._seen: list[Tensor] = []
        self._hooks: list[Any] = []
        untyped: Any = timm.data
        data = untyped.resolve_model_data_config(self.model)
        self.mean = tuple(data["mean"])
        self.std = tuple(data["std"])
        self.default_image_size = own_size
        self.timm_name = name
        self.weights_source: str | None = None
        if published is not None:
            self._load_published(*published)
            self.weights_source = str(published[0])

    @classmethod
    def build(cls, name: str, *, image_size: int | None = None, pretrained: bool = False) -> Self:
        """Build the backbone; arguments and errors are those of the class."""
        return cls(name, image_size=image_size, pretrained=pretrained)

    @classmethod
    def own_image_size(cls, name: str) -> int | None:
        """Return the image size in pixels of timm's configuration of the model.

        Raises:
            PluginError: timm has no such model.
        """
        configuration = _configuration(name)
        return int(configuration.input_size[-1]) if configuration else None

    @classmethod
    def takes_other_sizes(cls, name: str) -> bool:
        """Return True if the model has no position table or the like (``fixed_input_size``)."""
        configuration = _configuration(name)
        return bool(configuration) and not configuration.fixed_input_size

    def forward(self, images: Tensor) -> Tensor:
        """(N, 3, H, W) normalized images to (N, feature_dim) features."""
        parts = self._parts(images)
        return torch.cat(parts, dim=1) if self.used_stages else parts[0]

    def use_stages(self, count: int) -> tuple[int, ...]:
        """See `Backbone.use_stages`; stages are the last parts of the model's trunk in timm."""
        self._watch(_trunk(self.model)[-count:] if count else [])
        self.model.eval()
        try:
            with torch.no_grad():
                found = self._parts(torch.zeros(1, 3, self._size, self._size))
            sizes = tuple(part.shape[1] for part in found)
        except Exception:  # maps of another kind: the features alone
            self._watch([])
            sizes = (self._own_dim,)
        finally:
            self.model.train()
        self.used_stages, self.feature_dim = len(self._hooks), sum(sizes)
        return sizes

    def _watch(self, parts: list[nn.Module]) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = [part.register_forward_hook(self._see) for part in parts]

    def _parts(self, images: Tensor) -> list[Tensor]:
        """Return the features, then the outputs that the hooks of `use_stages` recorded."""
        self._seen = []  # a forward that failed may have left some
        features: Tensor = self.model(images)
        seen, self._seen = self._seen, []
        return [features, *seen]

    def _see(self, _module: nn.Module, _inputs: Any, output: Tensor) -> None:
        """Record the output of a stage, averaged over positions: NCHW maps, or tokens (N, L, D)."""
        self._seen.append(output.mean(dim=(2, 3) if output.ndim == 4 else 1))

    def adapt(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """Convert weights as timm does: old names, position tables of another size.

        Args:
            state: State dict, keys without prefixes of wrappers.
        """
        convert = getattr(sys.modules[type(self.model).__module__], "checkpoint_filter_fn", None)
        if convert is None:
            return state
        try:
            return dict(convert(dict(state), self.model))
        except Exception:  # weights of another family: the caller reports what does not fit
            return state

    def _load_published(self, path: Path, tensors: dict[str, Tensor] | None) -> None:
        """Load published weights; all tensors must be there."""
        try:
            if tensors is None:
                untyped: Any = self.model
                untyped.load_pretrained(str(path))
                return
            missing = self.model.load_state_dict(self.adapt(tensors), strict=False).missing_keys
            missing = [key for key in missing if not key.endswith("num_batches_tracked")]
            reason = f"{len(missing)} tensors are missing, such as {missing[0]}" if missing else ""
        except Exception as error:
            reason = " ".join(str(error).split())[:200]
        if reason:
            raise ModelError(
                f"the published weights of backbone {self.timm_name!r} in {path} don't fit it "
                f"({reason}); remove that file, or give one with --weights FILE"
            )

    def _probe(self, name: str, size: int, own_size: int) -> int:
        """Return the length of the features, from one zero image in eval mode."""
        self.model.eval()
        try:
            with torch.no_grad():
                features = self.model(torch.zeros(1, 3, size, size))
        except Exception as error:
            raise _size_error(name, size, own_size, _allowed(name, error)) from error
        finally:
            self.model.train()
        if not isinstance(features, Tensor) or features.ndim != 2:
            raise PluginError(f"timm model {name!r} returns no feature vector; choose another one")
        return features.shape[1]


def _create(name: str, size: int | None) -> tuple[nn.Module, dict[str, Any]]:
    """Return a timm model with random weights, and its arguments except ``num_classes``."""
    import timm

    arguments: dict[str, Any] = {} if size is None else {"img_size": size}
    try:
        return timm.create_model(name, num_classes=0, **arguments), arguments
    except TypeError as error:
        if size is None or "img_size" not in str(error):
            raise
        # Some models have a size of their own but no argument for it.
        return timm.create_model(name, num_classes=0), {}


def _trunk(model: nn.Module) -> list[nn.Module]:
    """Return the consecutive parts of a timm model, which timm calls blocks, stages or layers.

    The list is empty for models of another structure.
    """
    names = [f"layer{number}" for number in range(1, 5)]
    if all(hasattr(model, name) for name in names):
        return [getattr(model, name) for name in names]
    for name in ("blocks", "stages"):
        trunk = getattr(model, name, None)
        if isinstance(trunk, nn.Sequential | nn.ModuleList):
            return list(trunk)
    return []


def _configuration(name: str) -> Any:
    """Return timm's ``PretrainedCfg`` of a model, None if it has none.

    Raises:
        PluginError: timm has no such model; the message has near names.
    """
    import timm

    if "." in name:
        known = timm.list_pretrained()
        found = name in known
    else:
        known = timm.list_models()
        found = timm.is_model(name)
    if not found:
        registered = [entry.name for entry in registry.entries("backbones")]
        raise PluginError(
            f"unknown backbone {name!r}{registry.did_you_mean(name, [*known, *registered])}; "
            f"known: {', '.join(sorted(set(registered)))}, and the models of timm"
        )
    return timm.get_pretrained_cfg(name)


def _allowed(name: str, error: Exception) -> str:
    """Describe the required image size, or return what timm says if the model does not."""
    import timm

    try:
        with torch.device("meta"):
            patches = getattr(timm.create_model(name, num_classes=0), "patch_embed", None)
        patch = max(patches.patch_size) if patches is not None else 0
    except Exception:  # not every model can be built without its weights
        patch = 0
    if patch:
        return f"it must be a multiple of {patch}"
    return f"timm says {' '.join(str(error).split())[:120] or type(error).__name__}"


def _size_error(name: str, size: int, own_size: int, reason: str) -> UserError:
    return ModelError(
        f"backbone {name!r} can't take image size {size}: {reason}; its own is {own_size} "
        f"(--image-size {own_size})"
    )
