"""Contract kit: check plugins against the rules of their contract, with parts of the engine.

>>> from ssl_toolkit.testing import check_plugin
>>> results = check_plugin("supervised")  # doctest: +SKIP
"""

from ssl_toolkit.testing import (
    addon_rules,
    augmenter_rules,
    backbone_rules,
    class_rules,
    config_rules,
    dataset_rules,
    feature_rules,
    gradient_rules,
    hook_rules,
    launcher_rules,
    logger_rules,
    output_rules,
    process_rules,
    training_rules,
)
from ssl_toolkit.testing.checks import check_plugin
from ssl_toolkit.testing.parametrize import parametrize_with_checks
from ssl_toolkit.testing.rules import ContractError, Rule, RuleResult, register, rules
from ssl_toolkit.testing.subject import INTERFACES, Subject

__all__ = [
    "ContractError",
    "Rule",
    "RuleResult",
    "check_plugin",
    "parametrize_with_checks",
    "rules",
]

# Rules are checked in this order.
register(class_rules, *INTERFACES, "feature_algorithm")
register(config_rules, "addon", "algorithm", "feature_algorithm", "augmenter", "launcher")
register(addon_rules, "addon")
for _module in (output_rules, gradient_rules, training_rules, hook_rules, process_rules):
    register(_module, "algorithm")
    register(_module, "addon", checked=Subject.on_base)
register(feature_rules, "feature_algorithm")
register(augmenter_rules, "augmenter")
register(backbone_rules, "backbone")
register(dataset_rules, "dataset")
register(launcher_rules, "launcher")
register(logger_rules, "logger")
