"""Contract kit: rules that plugins must satisfy, checked with the engine's own parts.

>>> from ssl_toolkit.testing import check_plugin
>>> results = check_plugin("supervised")  # doctest: +SKIP
"""

# Rules are checked in the order of these imports.
# isort: off
from ssl_toolkit.testing import config_rules as config_rules
from ssl_toolkit.testing import output_rules as output_rules
from ssl_toolkit.testing import gradient_rules as gradient_rules
from ssl_toolkit.testing import training_rules as training_rules
from ssl_toolkit.testing import process_rules as process_rules
from ssl_toolkit.testing import feature_rules as feature_rules
from ssl_toolkit.testing import augmenter_rules as augmenter_rules
from ssl_toolkit.testing import backbone_rules as backbone_rules
from ssl_toolkit.testing import dataset_rules as dataset_rules
from ssl_toolkit.testing import launcher_rules as launcher_rules
from ssl_toolkit.testing import logger_rules as logger_rules

# isort: on
from ssl_toolkit.testing.checks import check_plugin
from ssl_toolkit.testing.parametrize import parametrize_with_checks
from ssl_toolkit.testing.rules import ContractError, Rule, RuleResult, rules

__all__ = [
    "ContractError",
    "Rule",
    "RuleResult",
    "check_plugin",
    "parametrize_with_checks",
    "rules",
]
