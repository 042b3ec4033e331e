"""Any timm model as a backbone."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor, nn

from ssl_toolkit.config.arguments import check_arguments
from ssl_toolkit.config.images import Size, sides, size_text
from ssl_toolkit.errors import ConfigError, ModelError, PluginError, UserError, one_line
from ssl_toolkit.interfaces import Backbone, ChannelStatistics
from ssl_toolkit.models.classifier import in_eval_mode
from ssl_toolkit.models.timm_sources import TimmSource, find_model, has_source

_RESERVED = (
    *("num_classes", "in_chans", "features_only", "pretrained", "pretrained_cfg", "device"),
    *("pretrained_cfg_overlay", "checkpoint_path", "cache_dir", "dtype"),
)
"""Arguments of timm.create_model that `model.args` can't contain."""


class TimmBackbone(Backbone):
    """A timm model without its head; its features are the input of timm's head.

    The head that `Classifier` adds is one linear layer with torch's default initialization,
    regardless of timm's own head.

    Args:
        name: Name for `find_model`: ``resnet50``, ``resnet50.a1_in1k``, ``hf-hub:…``.
        image_size: Side of square images in pixels, or (height, width); None for the model's own.
            A model with a fixed size (a position table) is built for this size; published position
            tables are resized.
        pretrained: True to load the published weights (see `published_weights`).
        arguments: Arguments of the model (``model.args``), such as ``drop_path_rate``.
        channels: Number of channels of the images (timm's ``in_chans``). The weights of the first
            layer, which are for RGB, are converted as timm does.

    Raises:
        PluginError: timm has no such model; the message has near names.
        ModelError: The model doesn't support the size, or its weights are not available.
        ConfigError: The model has no such argument, or can't be built with its value.
    """

    def __init__(
        self,
        name: str,
        *,
        image_size: Size | None = None,
        pretrained: bool = False,
        arguments: Mapping[str, Any] | None = None,
        channels: int = 3,
    ) -> None:
        super().__init__()
        import timm.data

        source, arguments = find_model(name), dict(arguments or {})
        configuration = source.configuration
        self.arguments: dict[str, Any] = source.arguments | arguments
        self._channels = channels
        own_size = _own_size(source, self.arguments)
        size = own_size if image_size is None else image_size
        if min(sides(size)) < 1:
            raise _size_error(name, size, own_size, "it must be at least 1")
        if self.arguments:
            _check_names(source, self.arguments)
        is_dynamic = self.arguments.get("dynamic_img_size", False)
        if "img_size" in arguments and own_size != size and not is_dynamic:
            raise ConfigError(
                f"model.args.img_size: {own_size} is not the image size of the run, "
                f"{size_text(size)}; "
                "leave one of them out"
            )
        published = None
        if pretrained:  # first: a large model takes a minute to build
            from ssl_toolkit.models.published import published_weights

            published = published_weights(name, configuration)
        has_fixed_size = configuration and configuration.fixed_input_size and not is_dynamic
        self.model: nn.Module
        self.build_arguments: dict[str, Any]
        try:
            self.model, self.build_arguments = _create(
                source, self.arguments, size if has_fixed_size else None, channels
            )
        except Exception as error:
            if channels != 3:
                reason = one_line(f"{type(error).__name__}: {error}")[:200]
                raise ModelError(
                    f"backbone {name!r} can't be built for {channels} channels ({reason})"
                ) from error
            if not arguments:
                reason = _allowed(source, self, error)
                raise _size_error(name, size, own_size, reason) from error
            reason = one_line(f"{type(error).__name__}: {error}")[:200]
            raise ConfigError(
                f"model.args: backbone {name!r} can't be built with {arguments} at image size "
                f"{size_text(size)} ({reason})"
            ) from error
        self.feature_dim: int = self._probe(source, size, own_size)
        untyped: Any = timm.data
        data = untyped.resolve_model_data_config(self.model)
        self.mean: ChannelStatistics = tuple(data["mean"])
        self.std: ChannelStatistics = tuple(data["std"])
        self.default_image_size: int = own_size
        self.timm_name = name
        self.architecture: str = source.name.partition(".")[0]
        self.saved: dict[str, Any] = {"arguments": self.arguments}
        """Keys that replace those of `factory.describe`."""
        if has_fixed_size:
            kept = {key: value for key, value in self.arguments.items() if key != "img_size"}
            self.saved["arguments"] = kept  # it is the image size
        if has_source(name):
            self.saved["backbone"] = f"timm:{source.name}"
        self.weights_source: str | None = None
        if published is not None:
            self._load_published(*published)
            self.weights_source = str(published[0])

    @classmethod
    def build(
        cls,
        name: str,
        *,
        image_size: Size | None = None,
        pretrained: bool = False,
        arguments: Mapping[str, Any] | None = None,
        channels: int = 3,
    ) -> Self:
        """Build the backbone; arguments and errors are those of the class."""
        return cls(
            name,
            image_size=image_size,
            pretrained=pretrained,
            arguments=arguments,
            channels=channels,
        )

    @classmethod
    def own_image_size(cls, name: str) -> int | None:
        """Return the image size in pixels of timm's configuration of the model.

        Raises:
            PluginError: timm has no such model.
        """
        source = find_model(name)
        return _own_size(source, source.arguments) if source.configuration else None

    @classmethod
    def takes_other_sizes(cls, name: str) -> bool:
        """Return True if the model has no position table or the like (``fixed_input_size``)."""
        configuration = find_model(name).configuration
        return bool(configuration) and not configuration.fixed_input_size

    def forward(self, images: Tensor) -> Tensor:
        """(N, C, H, W) normalized images to (N, feature_dim) features."""
        features: Tensor = self.model(images)
        return features

    def stage_modules(self) -> list[nn.Module]:
        """Return the parts of the model's trunk, which timm calls blocks, stages or layers.

        There are none in models of another structure, and in those with channels in the last
        dimension of their maps, such as Swin's.
        """
        model, names = self.model, [f"layer{number}" for number in range(1, 5)]
        if getattr(model, "output_fmt", "") == "NHWC":
            return []
        if all(hasattr(model, name) for name in names):
            return [getattr(model, name) for name in names]
        for name in ("blocks", "stages"):
            trunk = getattr(model, name, None)
            if isinstance(trunk, nn.Sequential | nn.ModuleList):
                return list(trunk)
        return []

    def adapt(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """Convert weights as timm does: old names, position tables of another size.

        Args:
            state: State dict, keys without prefixes of wrappers.
        """
        convert = getattr(sys.modules[type(self.model).__module__], "checkpoint_filter_fn", None)
        if convert is not None:
            # Weights of another family: the caller reports what does not fit.
            with contextlib.suppress(Exception):
                state = dict(convert(dict(state), self.model))
        return state if self._channels == 3 else self._with_channels(state)

    def _with_channels(self, state: dict[str, Tensor]) -> dict[str, Tensor]:
        """Convert the first layer from RGB to other channels, as timm does."""
        from timm.models import adapt_input_conv

        names = getattr(self.model, "pretrained_cfg", {}).get("first_conv") or ()
        own, state = self.model.state_dict(), dict(state)
        for name in (names,) if isinstance(names, str) else names:
            key = f"{name}.weight"
            if key in state and key in own and state[key].shape[1] == 3:
                state[key] = adapt_input_conv(self._channels, state[key])
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
                f"({reason}); remove that file, give one with --weights FILE, or check model.args"
            )

    def _probe(self, source: TimmSource, size: Size, own_size: int) -> int:
        """Return the length of the features, from one zero image in eval mode."""
        try:
            with torch.no_grad(), in_eval_mode(self.model):
                features = self.model(torch.zeros(1, self._channels, *sides(size)))
        except Exception as error:
            reason = _allowed(source, self, error)
            raise _size_error(source.name, size, own_size, reason) from error
        if not isinstance(features, Tensor) or features.ndim != 2:
            raise PluginError(
                f"timm model {source.name!r} returns no feature vector; choose another one, or "
                "another global_pool in model.args"
            )
        return features.shape[1]


def _own_size(source: TimmSource, arguments: Mapping[str, Any]) -> int:
    """Return the image size of the arguments, else that of the configuration."""
    size = arguments.get("img_size")
    if size is None:
        size = source.configuration.input_size[-1] if source.configuration else 224
    sides = set(size) if isinstance(size, list | tuple) else {size}
    if len(sides) > 1 or not isinstance(side := sides.pop(), int):
        raise ConfigError(
            f"model.args.img_size: must be one number of pixels (given {size}); "
            "--image-size HEIGHTxWIDTH sets others"
        )
    return side


def _check_names(source: TimmSource, arguments: Mapping[str, Any]) -> None:
    import timm

    try:
        with torch.device("meta"):
            function: Any = type(timm.create_model(source.name)).__init__
    except Exception:  # a model that needs a real device: the names are checked when it is built
        function = lambda **arguments: None  # noqa: E731
    check_arguments("model.args", arguments, function, f"timm model {source.name}", _RESERVED)


def _passed(source: TimmSource) -> Any:
    """Return the configuration to pass to timm, None where the name already means it."""
    configuration = source.configuration
    return configuration if configuration and configuration.source else None


def _create(
    source: TimmSource, arguments: Mapping[str, Any], size: Size | None, channels: int
) -> tuple[nn.Module, dict[str, Any]]:
    """Return a timm model with random weights, and its arguments except ``num_classes``."""
    import timm

    arguments = dict(arguments) if channels == 3 else {**arguments, "in_chans": channels}
    passed = dict(arguments) if size is None else {**arguments, "img_size": size}
    fixed: dict[str, Any] = {"num_classes": 0, "pretrained_cfg": _passed(source)}
    try:
        return timm.create_model(source.name, **fixed, **passed), passed
    except TypeError as error:
        if size is None or "img_size" not in str(error):
            raise
        # Some models have a size of their own but no argument for it.
        return timm.create_model(source.name, **fixed, **arguments), dict(arguments)


def _allowed(source: TimmSource, backbone: TimmBackbone, error: Exception) -> str:
    """Describe the required image size, or return what timm says if the model does not."""
    import timm

    passed = {key: value for key, value in backbone.arguments.items() if key != "img_size"}
    try:
        with torch.device("meta"):
            model = timm.create_model(source.name, num_classes=0, **passed)
        patches = getattr(model, "patch_embed", None)
        patch = max(patches.patch_size) if patches is not None else 0
    except Exception:  # not every model can be built without its weights
        patch = 0
    if patch:
        return f"it must be a multiple of {patch}"
    return f"timm says {' '.join(str(error).split())[:120] or type(error).__name__}"


def _size_error(name: str, size: Size, own_size: int, reason: str) -> UserError:
    return ModelError(
        f"backbone {name!r} can't take image size {size_text(size)}: {reason}; its own is "
        f"{own_size} (--image-size {own_size})"
    )
