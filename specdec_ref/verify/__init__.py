"""The proposal, and the rules that decide which of it stays."""

from specdec_ref.interfaces import Proposal, Verdict
from specdec_ref.verify.block import expected_accepted, verify_block
from specdec_ref.verify.greedy import verify_greedy
from specdec_ref.verify.leniency import verify_lossy_leniency
from specdec_ref.verify.match import verify_match
from specdec_ref.verify.onehot import verify_onehot
from specdec_ref.verify.rules import RULES, NamedRule, Rule
from specdec_ref.verify.tokenwise import acceptance_probability, residual_distribution, verify_tokenwise
from specdec_ref.verify.typical import verify_lossy_typical

__all__ = [
    "RULES",
    "NamedRule",
    "Proposal",
    "Rule",
    "Verdict",
    "acceptance_probability",
    "expected_accepted",
    "residual_distribution",
    "verify_block",
    "verify_greedy",
    "verify_lossy_leniency",
    "verify_lossy_typical",
    "verify_match",
    "verify_onehot",
    "verify_tokenwise",
]
