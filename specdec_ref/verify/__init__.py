"""The rules that decide which of a proposal stays."""

from specdec_ref.verify.block import expected_accepted, verify_block
from specdec_ref.verify.greedy import verify_greedy
from specdec_ref.verify.leniency import verify_lossy_leniency
from specdec_ref.verify.match import verify_match
from specdec_ref.verify.registry import RULES, NamedRule, as_rule
from specdec_ref.verify.tokenwise import acceptance_probability, residual_distribution, verify_tokenwise
from specdec_ref.verify.tree import verify_tree, verify_tree_greedy, verify_tree_match
from specdec_ref.verify.typical import verify_lossy_typical

__all__ = [
    "RULES",
    "NamedRule",
    "acceptance_probability",
    "as_rule",
    "expected_accepted",
    "residual_distribution",
    "verify_block",
    "verify_greedy",
    "verify_lossy_leniency",
    "verify_lossy_typical",
    "verify_match",
    "verify_tokenwise",
    "verify_tree",
    "verify_tree_greedy",
    "verify_tree_match",
]
