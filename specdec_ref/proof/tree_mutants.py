"""The catalogue of bugs planted into trees."""

from __future__ import annotations

from specdec_ref.proof.mutant_list import ENGINE, Mutant, bug

VERIFY = "specdec_ref.verify.tree:"
DRAFT = "specdec_ref.draft.tree:"

TREE_MUTANTS: list[Mutant] = [
    bug(
        "sibling residual left out",
        "The second guess is tested against p, as if the first had not been rejected.",
        VERIFY + "verify_tree",
        ("r = residual_distribution(r, proposal.distribution(child, like=r))", "pass"),
    ),
    bug(
        "residual for the correction alone",
        "Guesses are tested against p, and only the correction comes from the residual.",
        VERIFY + "verify_tree",
        ("acceptance_probability(r[x].item()", "acceptance_probability(p[node + 1][x].item()"),
    ),
    bug(
        "row of another node",
        "The children of a node are tested against the distribution before it.",
        VERIFY + "verify_tree",
        ("p[node + 1]", "p[max(node, 0)]"),
    ),
    bug(
        "whole q for every sibling",
        "Guesses are drawn without replacement, and all report the q of the first: not renormalised.",
        DRAFT + "draw_children",
        ("while len(children)", "whole = q\n    while len(children)"),
        ("children.append((x, q))", "children.append((x, whole))"),
    ),
    bug(
        "drawn guesses taken as one-hot",
        "Guesses were drawn, and are reported as if nothing had been: the output stays exact, and less is accepted.",
        DRAFT + "depth_first",
        ("torch.stack(distributions) if distributions else None", "None"),
    ),
    bug(
        "the likelier of two first",
        "Guesses are drawn, and tried in the order of their probability.",
        DRAFT + "TreeDrafter._children",
        (
            'return draw_children(q, width, self.candidates == "distinct", source)',
            'drawn = draw_children(q, width, self.candidates == "distinct", source)\n'
            "    return sorted(drawn, key=lambda child: -float(q[child[0]]))",
        ),
    ),
    bug(
        "mask below the diagonal",
        "Each token sees all before it, its siblings too.",
        "specdec_ref.kernels.masks:tree_mask",
        ("torch.eye(len(parents), dtype=torch.bool)", "torch.ones(2 * [len(parents)], dtype=torch.bool).tril()"),
    ),
    bug(
        "place by index",
        "A token's position is its index in the tree instead of its depth.",
        ENGINE + "_pass",
        ("mask.sum(-1) - 1 + run.cache.length", "torch.arange(len(tokens)) + run.cache.length"),
    ),
    bug(
        "wrong parent",
        "Parents are counted without the pending token, which is the pass's first row.",
        ENGINE + "_forward",
        ("1 + parent for parent", "max(0, parent) for parent"),
    ),
    bug(
        "keys of a rejected sibling kept",
        "The target's cache is cut to its new length, and the path not moved together.",
        ENGINE + "_commit",
        ("cache.keep([start + row for row in rows])", "cache.truncate(start + len(rows))"),
    ),
    bug(
        "path not moved in the draft",
        "The target's cache keeps the path, the draft's is only cut.",
        DRAFT + "TreeDrafter._keep_path",
        ("self.cache.keep([self._root - 1, *(self._root + i for i in path)])",
         "self.cache.truncate(self._root + len(path))"),
    ),
]  # fmt: skip
