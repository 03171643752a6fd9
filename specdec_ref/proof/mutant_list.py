"""The catalogue of planted bugs: a few lines of the production code each, and what they become."""

from __future__ import annotations

from dataclasses import dataclass

TOKENWISE = "specdec_ref.verify.tokenwise:"
BLOCK = "specdec_ref.verify.block:"
BATCH = "specdec_ref.verify.batch:"
ENGINE = "specdec_ref.engine.engine:SpeculativeEngine."
RUN = "specdec_ref.engine.run:Run."
DRAFT = "specdec_ref.draft.model:DraftModelDrafter."
SOURCE = "specdec_ref.sampling.source:RandomSource."
SAMPLING = "specdec_ref.sampling.options:"


@dataclass(frozen=True)
class Edit:
    """In `function` ("module:name") each `(old, new)` text is replaced; `old` occurs once."""

    function: str
    changes: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Mutant:
    """A planted bug.

    wrong: what people get wrong, in a sentence.
    seen: where it was seen, as repository and number; "" where it is a slip that only we thought of.
    """

    name: str
    wrong: str
    edits: tuple[Edit, ...]
    seen: str = ""

    def __str__(self) -> str:
        return self.name

    def diff(self) -> str:
        """The change, as lines to take out and to put in."""
        return "\n".join(
            line
            for edit in self.edits
            for old, new in edit.changes
            for line in [edit.function, *(f"- {x}" for x in old.splitlines()), *(f"+ {x}" for x in new.splitlines())]
        )


def bug(
    name: str, wrong: str, function: str, *changes: tuple[str, str], seen: str = "", also: Edit | None = None
) -> Mutant:
    """A mutant of one function; `also` edits a second one."""
    edits = (Edit(function, changes),)
    return Mutant(name, wrong, edits if also is None else (*edits, also), seen)


RESIDUAL = "residual_distribution(p[i], q_i)"
ACCEPT = "source.bernoulli(acceptance_probability(p[i, x].item(), proposal.probability(i, like=p)))"
BONUS = 'Verdict(len(proposal.tokens), source.categorical(p[len(proposal.tokens)]), "bonus")'

TOKENWISE_BUGS = [
    bug(
        "p after a rejection",
        "The correction is drawn from p instead of the residual.",
        TOKENWISE + "verify_tokenwise",
        (RESIDUAL, "p[i]"),
        seen="claims of many blog posts",
    ),
    bug(
        "residual with q = 0",
        "The residual's q is looked up where nothing was stored: max(0, p - 0) is p.",
        TOKENWISE + "verify_tokenwise",
        (RESIDUAL, "residual_distribution(p[i], 0 * q_i)"),
        seen="the article that this course checks",
    ),
    bug(
        "no residual, the argmax",
        "After a rejection the target's best token is taken.",
        TOKENWISE + "verify_tokenwise",
        (f"source.categorical({RESIDUAL})", "int(p[i].argmax())"),
    ),
    bug(
        "residual softmaxed",
        "max(0, p - q) is normalised by softmax, which gives mass to every token.",
        TOKENWISE + "residual_distribution",
        ("residual / mass if mass > 0 else p", "residual.softmax(-1)"),
        seen="SafeAILab/EAGLE #20",
    ),
    bug(
        "residual restricted to the rejected token",
        "q is subtracted at the rejected token alone.",
        TOKENWISE + "verify_tokenwise",
        (RESIDUAL, "residual_distribution(p[i], q_i * (q_i == q_i[x]))"),
        seen="huggingface/transformers PR #28508",
    ),
    bug(
        "residual not cut at 0",
        "The sign of p - q is dropped where it should be cut.",
        TOKENWISE + "residual_distribution",
        (".clamp(min=0)", ".abs()"),
    ),
    bug(
        "ratio upside down",
        "q/p decides instead of p/q.",
        TOKENWISE + "acceptance_probability",
        ("p_x / q_x)", "q_x / max(p_x, 1e-9))"),
    ),
    bug(
        "nothing random in the test",
        "A draft is kept if and only if p >= q.",
        TOKENWISE + "acceptance_probability",
        ("min(1.0, p_x / q_x)", "float(p_x >= q_x)"),
    ),
    bug(
        "half-precision ratio",
        "p/q is computed in 16 bits.",
        TOKENWISE + "acceptance_probability",
        ("min(1.0, p_x / q_x)", "min(1.0, torch.tensor(p_x / q_x).half().item())"),
    ),
    bug(
        "single-precision ratio",
        "p/q is computed in 32 bits: off by 1e-8, which only a strict comparison sees.",
        TOKENWISE + "acceptance_probability",
        ("min(1.0, p_x / q_x)", "min(1.0, torch.tensor(p_x / q_x).float().item())"),
    ),
    bug(
        "row off by one",
        "A draft is compared with the distribution after it, not the one that it was drawn against.",
        TOKENWISE + "verify_tokenwise",
        ("p[i, x].item()", "p[i + 1, x].item()"),
    ),
    bug(
        "first draft's q for all",
        "The distribution of the first place is used at every place.",
        TOKENWISE + "verify_tokenwise",
        ("proposal.distribution(i, like=p[i])", "proposal.distribution(0, like=p[i])"),
        ("proposal.probability(i, like=p)", "max(1e-9, proposal.distribution(0, like=p[i])[x].item())"),
    ),
    bug(
        "accepted counted past a rejection",
        "Tests go on after the first rejection, and all that pass are counted.",
        TOKENWISE + "verify_tokenwise",
        (
            "return Verdict(i, ",
            "more = [j for j in range(i + 1, len(proposal.tokens)) if p[j, proposal.tokens[j]] > 0.3]\n"
            "            return Verdict(i + len(more), ",
        ),
        seen="vllm-project/vllm PR #2658",
    ),
    bug(
        "no bonus",
        "When all drafts are kept the target's extra token is thrown away.",
        TOKENWISE + "verify_tokenwise",
        (
            f"return {BONUS}",
            "if proposal.tokens:\n"
            '        return Verdict(len(proposal.tokens) - 1, proposal.tokens[-1], "corrected")\n'
            '    return Verdict(0, source.categorical(p[0]), "bonus")',
        ),
    ),
    bug(
        "bonus from the wrong row",
        "The bonus is drawn from the distribution of the last draft.",
        TOKENWISE + "verify_tokenwise",
        (BONUS, BONUS.replace("p[len(proposal.tokens)]", "p[len(proposal.tokens) - 1]")),
    ),
    bug(
        "first token unverified",
        "The first looked-up token goes straight into the output.",
        TOKENWISE + "verify_tokenwise",
        (f"if not {ACCEPT}", f"if i > 0 and not {ACCEPT}"),
        seen="lattice #243",
    ),
    bug(
        "the rejected token again",
        "After a looked-up token was rejected it may be drawn once more.",
        "specdec_ref.interfaces:Proposal.distribution",
        ("q[self.tokens[i]] = 1", "pass"),
    ),
    bug(
        "padded vocabulary",
        "The residual ends where the draft's vocabulary ends: the ids after it are out of reach.",
        TOKENWISE + "verify_tokenwise",
        (RESIDUAL, f"({RESIDUAL})[: None if proposal.probs is None else proposal.probs.shape[-1]]"),
        seen="huggingface/transformers #45307",
    ),
    bug(
        "a lookup that is nearly sure",
        "A looked-up token is given q = 0.9, though nothing random was involved.",
        "specdec_ref.interfaces:Proposal.probability",
        ("return 1 if", "return 0.9 if"),
    ),
]

OTHER_RULES = [
    bug(
        "smallest block index",
        "The shortest prefix that passes is kept, not the longest.",
        BLOCK + "verify_block",
        (
            "if source.bernoulli(rho[g]):",
            "q = [proposal.distribution(i, like=p[i]) for i in range(g)]\n"
            "    h = [stop_probability(rho[i], p[i], q[i]) for i in range(1, g)] + [rho[g]]\n"
            "    passed = [i for i in range(1, g + 1) if source.bernoulli(h[i - 1])] if g else [0]\n"
            "    if passed and passed[0] < g:\n"
            "        i, q_next = passed[0], proposal.distribution(passed[0], like=p[passed[0]])\n"
            "        residual = residual_distribution(p[i] * rho[i], q_next)\n"
            '        return Verdict(i, source.categorical(residual), "corrected")\n'
            "    if passed:",
        ),
        ("if i == 0 or source.bernoulli(stop_probability(rho[i], p[i], q_next)):", "if i == 0:"),
    ),
    bug(
        "block ratio not capped",
        "rho may exceed 1.",
        BLOCK + "prefix_ratios",
        ("min(1, rho[-1] * p[i, x].item() / q_x)", "rho[-1] * p[i, x].item() / q_x"),
    ),
    bug(
        "block ratio capped too early",
        "rho is the product of min(1, p/q): the token-wise chance, without the credit of earlier drafts.",
        BLOCK + "prefix_ratios",
        ("min(1, rho[-1] * p[i, x].item() / q_x)", "rho[-1] * min(1, p[i, x].item() / q_x)"),
    ),
    bug(
        "block residual without rho",
        "The correction comes from max(0, p - q) instead of max(0, rho p - q).",
        BLOCK + "verify_block",
        ("residual_distribution(p[i] * rho[i], q_next)", "residual_distribution(p[i], q_next)"),
    ),
    bug(
        "rho asked in place of h",
        "Inside the block a prefix is kept with its chance rho, as if longer ones had not been tried before.",
        BLOCK + "stop_probability",
        ("mass / (mass + 1 - rho_i)", "rho_i"),
    ),
    bug(
        "a fresh draw after a mismatch",
        "Sample and match draws again where the first draw differed from the draft.",
        "specdec_ref.verify.match:verify_match",
        ('Verdict(i, y, "corrected")', 'Verdict(i, source.categorical(p[i]), "corrected")'),
        seen="mlxcel PR #992",
    ),
]

BATCH_BUGS = [
    bug(
        "batch: p after a rejection",
        "The fast path leaves the residual out.",
        BATCH + "_last_token",
        ("(rho[rows, accepted].unsqueeze(-1).to(p.dtype) * p_next - q_next).clamp(min=0)", "p_next"),
    ),
    bug(
        "batch: accepted counted past a rejection",
        "A sum where a cumulative product belongs: [T, F, T, T] counts 3.",
        BATCH + "verify_tokenwise_batch",
        ("kept.long().cumprod(-1).sum(-1)", "kept.long().sum(-1)"),
        seen="vllm-project/vllm PR #2658",
    ),
    bug(
        "batch: one uniform a row",
        "All places of a row are tested with the same number.",
        BATCH + "verify_tokenwise_batch",
        ("kept = u_keep <", "kept = u_keep[:, :1] <"),
        seen="vllm-project/vllm-ascend PR #13766",
    ),
    bug(
        "batch: smallest block index",
        "The first place that passes counts.",
        BATCH + "verify_block_batch",
        (
            "torch.where(passed, torch.arange(1, g + 1, device=p.device), 0).amax(-1)",
            "(passed.long().argmax(-1) + 1) * passed.any(-1)",
        ),
    ),
]

DRAFT_BUGS = [
    bug(
        "draft cache cut too far",
        "Each roll-back of the draft's cache loses a committed token.",
        DRAFT + "commit",
        (
            "del self._fed[keep:]",
            "if keep < len(self._fed):\n        keep = max(keep - 1, 0)\n    del self._fed[keep:]",
        ),
    ),
    bug(
        "q before filtering",
        "Drafts are drawn after top-k and temperature, the distribution is reported from before.",
        DRAFT + "propose",
        ("distributions.append(q)", "distributions.append(self._in_target_ids(logits).softmax(-1))"),
        seen="vllm-project/vllm PR #40269",
    ),
    bug(
        "argmax drafts with softmax q",
        "The draft takes its best token and reports the distribution that it did not draw from.",
        DRAFT + "propose",
        ("source.categorical(q[0])", "int(q[0].argmax())"),
        seen="huggingface/transformers #32867",
    ),
    bug(
        "an unsure token dropped",
        "A drawn token is given up because the draft finds it unlikely: that biases those that stay.",
        DRAFT + "propose",
        (
            "distributions.append(q)",
            "distributions.append(q)\n"
            "        if q[0, drafted[-1]] < 0.35:\n"
            "            del drafted[-1], distributions[-1]\n"
            "            break",
        ),
    ),
    bug(
        "the likelier of two samples",
        "Two tokens are drawn and the better one proposed, under the distribution of a single draw.",
        DRAFT + "propose",
        (
            "source.categorical(q[0])",
            "max(source.categorical(q[0]), source.categorical(q[0]), key=q[0].tolist().__getitem__)",
        ),
    ),
    bug(
        "draft cache without the last token",
        "When all drafts are kept, the last one never enters the draft's cache.",
        DRAFT + "propose",
        ("new = list(tokens[cache.length :])", "new = list(tokens[-1 if self._fed else 0 :])"),
        seen="NVIDIA/TensorRT-LLM PR #5285, vllm-project/vllm PR #9730",
    ),
    bug(
        "draft rolled back one short",
        "A rejected draft stays in the draft's cache.",
        DRAFT + "commit",
        ("self.cache.truncate(keep)", "self.cache.truncate(min(keep + 1, self.cache.length))"),
        seen="mlxcel #994",
    ),
    bug(
        "ids beyond the target's vocabulary",
        "A draft with a larger vocabulary proposes ids that the target does not have.",
        DRAFT + "_in_target_ids",
        ("logits[:, : self._vocab]", "logits"),
        seen="vllm-project/vllm #7252",
    ),
]

SAMPLING_BUGS = [
    bug(
        "<= at u = 0",
        "u may be exactly 0, and 0 <= p accepts a token of probability 0.",
        SOURCE + "bernoulli",
        ("random() < p", "random() <= p"),
        seen="sgl-project/sglang #35771, and the article that this course checks",
    ),
    bug(
        "a draw at u = 0",
        "The first index whose cumulative probability reaches u: at u = 0 that is one of probability 0.",
        SOURCE + "categorical",
        ("right=True", "right=False"),
    ),
    bug(
        "shared uniform",
        "The number that rejected the draft also draws the correction.",
        SOURCE + "bernoulli",
        ("return self._generator.random() < p", "self._u = self._generator.random()\n    return self._u < p"),
        also=Edit(
            SOURCE + "categorical",
            (("self._generator.random(), right", 'self.__dict__.pop("_u", self._generator.random()), right'),),
        ),
        seen="vllm-project/vllm-ascend PR #13766",
    ),
    bug(
        "one uniform for all coins",
        "A block's tests share a number.",
        SOURCE + "bernoulli",
        (
            "return self._generator.random() < p",
            'self._u = self.__dict__.get("_u") or self._generator.random()\n    return self._u < p',
        ),
        seen="vllm-project/vllm-ascend PR #13766",
    ),
    bug(
        "re-seeded in the loop",
        "The generator is seeded again before each draw.",
        SOURCE + "categorical",
        ("self._generator.random()", "random.Random(7).random()"),
        seen="feifeibear/LLMSpeculativeSampling",
    ),
    bug(
        "seed ignored",
        "Every generation draws the same numbers.",
        SOURCE + "__init__",
        ("random.Random(seed)", "random.Random(0)"),
        seen="vllm-project/vllm #6038",
    ),
    bug(
        "raw ratio at temperature 0",
        "Greedy decoding is left to the ratio test with the models' own distributions.",
        SAMPLING + "Sampling.probs",
        ("if self.greedy:", "if False:"),
        ("logits / self.temperature", "logits / (self.temperature or 1.0)"),
        seen="jaymody/speculative-sampling #9",
        also=Edit("specdec_ref.verify.registry:NamedRule.judge", (("self.greedy_by_argmax and", "False and"),)),
    ),
    bug(
        "highest index on a tie",
        "Of two equally likely tokens the last is taken.",
        SAMPLING + "Sampling.probs",
        (
            "best, argmax = logits.max(-1, keepdim=True)",
            "best = logits.amax(-1, keepdim=True)\n"
            "        argmax = logits.shape[-1] - 1 - logits.flip(-1).argmax(-1, keepdim=True)",
        ),
        seen="vllm-project/vllm #7627",
        also=Edit(
            SAMPLING + "Sampling.argmax",
            (("index.tolist()", "(logits.shape[-1] - 1 - logits.flip(-1).argmax(-1)).tolist()"),),
        ),
    ),
    bug(
        "argmax of the row before",
        "Greedy verification compares a draft with the row that is one too early.",
        "specdec_ref.verify.greedy:verify_argmax",
        ("== best[kept]", "== best[max(kept - 1, 0)]"),
    ),
    bug(
        "argmax of the last row",
        "Greedy verification corrects with what follows the last draft, not the last accepted one.",
        "specdec_ref.verify.greedy:verify_argmax",
        ("Verdict(kept, best[kept],", "Verdict(kept, best[-1],"),
    ),
    bug(
        "NaN becomes a token",
        "Broken logits are not refused.",
        SAMPLING + "_check_finite",
        ("if broken:", "if False:"),
        seen="vllm-project/vllm PR #21876, #53029",
    ),
    bug(
        "top-p border",
        "The token that crosses the mass is dropped.",
        "specdec_ref.sampling.filters:keep_top_p",
        ("(before < top_p)", "(head.cumsum(-1) < top_p)"),
        seen="fishaudio/fish-speech PR #1171",
    ),
    bug(
        "top-k keeps one more",
        "The border is the distribution's (k+1)-th token.",
        "specdec_ref.sampling.filters:keep_top_k",
        ("logits.topk(k, -1)", "logits.topk(k + 1, -1)"),
    ),
    bug(
        "min-p as a plain threshold",
        "The share is not scaled by the likeliest token.",
        "specdec_ref.sampling.filters:keep_min_p",
        ("logits.amax(-1, keepdim=True)", "logits.logsumexp(-1, keepdim=True)"),
    ),
    bug(
        "penalty counted twice",
        "A token that came twice is penalised twice.",
        "specdec_ref.sampling.penalties:penalise_repetition",
        (
            "return row.scatter(0, seen, torch.where(score < 0, score * penalty, score / penalty))",
            "times = torch.bincount(seen, minlength=len(row)).to(row)\n"
            "    return torch.where(times > 0, row * penalty**times, row)",
        ),
        seen="vllm-project/vllm PR #33251",
    ),
    bug(
        "penalty for later drafts",
        "Every row of a block is penalised for all of the block's drafts, also those behind it.",
        SAMPLING + "Sampling._in_context",
        ("history[:end]", "history"),
        seen="vllm-project/vllm PR #33251",
    ),
    bug(
        "frequency of the prompt",
        "Tokens of the prompt count as output.",
        SAMPLING + "Sampling._row",
        ("penalise_use(row, output,", "penalise_use(row, context,"),
    ),
    bug(
        "end token held back a row too far",
        "min_new_tokens masks one row more than it should.",
        SAMPLING + "Sampling._row",
        ("len(output) < self.min_new_tokens", "len(output) <= self.min_new_tokens"),
        seen="vllm-project/vllm PR #41768",
    ),
]

ENGINE_BUGS = [
    bug(
        "temperature on one side",
        "p is taken at temperature 1, whatever was asked for.",
        "specdec_ref.verify.registry:NamedRule.judge",
        ("sampling.probs(logits, [*tokens, *proposal.tokens])", "logits.softmax(-1)"),
        seen="lattice PR #974",
    ),
    bug(
        "rollback by one",
        "The target's cache loses a committed token.",
        ENGINE + "_commit",
        ("cache.truncate(len(run.tokens) - 1)", "cache.truncate(len(run.tokens) - 2)"),
        seen="mlxcel #994",
    ),
    bug(
        "no rollback",
        "Rejected drafts stay in the target's cache.",
        ENGINE + "_commit",
        ("cache.truncate(len(run.tokens) - 1)", "pass"),
    ),
    bug(
        "rejected tokens stay",
        "All drafts are committed, whatever the rule kept.",
        ENGINE + "_commit",
        ("verdict.emitted(proposal.tokens)", "[*proposal.tokens, verdict.token]"),
        seen="lucidrains/speculative-decoding #3",
    ),
    bug(
        "EOS passed over",
        "Only the last token of a round is compared with the end tokens.",
        RUN + "append",
        ("if token in self.eos:", "if token in self.eos and i == len(emitted) - 1:"),
        seen="huggingface/transformers #47912",
    ),
    bug(
        "drafted EOS ends it",
        "The output stops because the draft proposed an end token, kept or not.",
        ENGINE + "_commit",
        (
            "cache.truncate(len(run.tokens) - 1)",
            "cache.truncate(len(run.tokens) - 1)\n"
            "            if run.eos.intersection(proposal.tokens):\n"
            '                run.finish_reason = "eos"',
        ),
        seen="lattice #237, openvinotoolkit/openvino.genai PR #3293",
    ),
    bug(
        "budget overshot",
        "A round's tokens are all kept, though fewer were left to give.",
        ENGINE + "_draft",
        ("gamma = min(gamma, self._most(run))", "pass"),
        also=Edit(RUN + "append", (("elif self.room == 0:", "elif self.room <= 0 and i == len(emitted) - 1:"),)),
        seen="lattice #242, and the article that this course checks",
    ),
    bug(
        "cut tokens counted",
        "Accepted drafts after the end of the output count as accepted.",
        "specdec_ref.engine.stats:Stats.count",
        ("accepted = min(verdict.accepted, kept)", "accepted = verdict.accepted"),
    ),
]

SEVERAL_BUGS = [
    bug(
        "one of two drafters is told",
        "What another drafter's round committed never reaches the draft model: its cache keeps what it had guessed.",
        "specdec_ref.draft.combined:Several.commit",
        ("for drafter in self.drafters:", "for drafter in self.drafters[:1]:"),
    ),
    bug(
        "the drafter chosen by what was drawn",
        "The model drafts, and where it finds its own first token unlikely the copy is proposed after all.",
        "specdec_ref.draft.combined:CombinedDrafter.propose",
        (
            "return named(trained.propose(tokens, gamma, source), trained)",
            "drawn = trained.propose(tokens, gamma, source)\n"
            "    unsure = drawn.probs is not None and drawn.tokens and drawn.probs[0, drawn.tokens[0]] < 0.5\n"
            "    return named(copied if unsure else drawn, trained)",
        ),
    ),
    bug(
        "the number chosen by what was drawn",
        "The controller cuts a draft where the model was unsure of the token that it drew.",
        "specdec_ref.engine.control:Controller.propose",
        (
            "proposal = named(drafter.propose(tokens, option.n, source), drafter)",
            "proposal = named(drafter.propose(tokens, option.n, source), drafter)\n"
            "        q, x = proposal.probs, proposal.tokens\n"
            "        if q is not None and x and q[0, x[0]] < 0.5:\n"
            "            proposal = Proposal([])",
        ),
    ),
]

MUTANTS: list[Mutant] = [
    *TOKENWISE_BUGS,
    *OTHER_RULES,
    *BATCH_BUGS,
    *DRAFT_BUGS,
    *SEVERAL_BUGS,
    *SAMPLING_BUGS,
    *ENGINE_BUGS,
]
"""Every planted bug; `specdec_ref.proof.kill` says what finds one."""
