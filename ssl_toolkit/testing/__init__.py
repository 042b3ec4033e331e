"""The contract kit: rules that a plugin must keep, checked by the engine's own parts.

>>> from ssl_toolkit.testing import check_algorithm
>>> check_algorithm("supervised", expected_failures={})  # doctest: +SKIP
"""

# The order of the imports is that of the rules.
# isort: off
from ssl_toolkit.testing import form_rules as form_rules
from ssl_toolkit.testing import loss_rules as loss_rules
from ssl_toolkit.testing import gradient_rules as gradient_rules
from ssl_toolkit.testing import report_rules as report_rules
from ssl_toolkit.testing import run_rules as run_rules
from ssl_toolkit.testing import rank_rules as rank_rules
from ssl_toolkit.testing import feature_rules as feature_rules
from ssl_toolkit.testing import augmenter_rules as augmenter_rules
from ssl_toolkit.testing import backbone_rules as backbone_rules
from ssl_toolkit.testing import dataset_rules as dataset_rules
from ssl_toolkit.testing import launcher_rules as launcher_rules
from ssl_toolkit.testing import logger_rules as logger_rules

# isort: on
from ssl_toolkit.testing.checks import (
    check,
    check_algorithm,
    check_augmenter,
    check_backbone,
    check_dataset,
    check_launcher,
    check_logger,
    run_checks,
)
from ssl_toolkit.testing.parametrize import parametrize_with_checks
from ssl_toolkit.testing.rules import ContractError, Rule, RuleResult, rules

__all__ = [
    "ContractError",
    "Rule",
    "RuleResult",
    "check",
    "check_algorithm",
    "check_augmenter",
    "check_backbone",
    "check_dataset",
    "check_launcher",
    "check_logger",
    "parametrize_with_checks",
    "rules",
    "run_checks",
]
