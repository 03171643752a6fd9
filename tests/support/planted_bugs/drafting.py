"""Planted bugs of drafters and of what chooses among them."""

from support.planted_bugs import bug

SUFFIX = "specdec_ref/draft/suffix.py"
EARLY_EXIT = "specdec_ref/draft/early_exit.py"
CONTROL = "specdec_ref/engine/control.py"

BUGS = [
    bug(
        "a rarer follower that came later is taken",
        SUFFIX,
        "if self._seen[longer] >= self.times(node, self._likely[node]):",
        "if True:",
        "draft/suffix",
    ),
    bug(
        "followers are counted for the longest run alone",
        SUFFIX,
        "            self._followed[node] += 1\n",
        "            self._followed[node] += node == self.ends[-1]\n",
        "draft/suffix",
    ),
    bug(
        "an answer runs on into the next",
        SUFFIX,
        "        self.counts.new_text()\n",
        "",
        "draft/suffix",
    ),
    bug(
        "earlier answers are followed by their old place",
        SUFFIX,
        "self.answers.counts.step(there, token)\n        return",
        "there\n        return",
        "draft/suffix",
    ),
    bug(
        "the prompt is remembered as an answer",
        SUFFIX,
        "self.learn(self._newest[self._prompt :])",
        "self.learn(self._newest)",
        "draft/suffix",
    ),
    bug(
        "old answers are never forgotten",
        SUFFIX,
        "if self.tokens > self.memory:",
        "if False:",
        "draft/suffix",
    ),
    bug(
        "the probability of the last place stands for all",
        SUFFIX,
        "survival *= share",
        "survival = share",
        "draft/suffix",
    ),
    bug(
        "an early exit is a layer late",
        "specdec_ref/models/llama.py",
        "short.layers = self.layers[:n]",
        "short.layers = self.layers[: n + 1]",
        "draft/early_exit",
    ),
    bug(
        "an early exit shortens the target itself",
        "specdec_ref/models/llama.py",
        'short.__dict__ = {**self.__dict__, "_modules": dict(self._modules)}',
        "short.__dict__ = self.__dict__",
        "draft/early_exit",
    ),
    bug(
        "a drafter keeps the layers of its first target",
        EARLY_EXIT,
        "if self._target is target:",
        "if self._target is not None:",
        "draft/early_exit",
    ),
    bug(
        "features go to the wrong drafter",
        "specdec_ref/draft/combined.py",
        "features[self.layers.index(layer)] for layer in drafter.layers",
        "features[i] for i, _ in enumerate(drafter.layers)",
        "draft/combined",
    ),
    bug(
        "drafts after a rejection count as tested",
        CONTROL,
        "for i in range(min(drafted, accepted + 1)):",
        "for i in range(drafted):",
        "engine/control",
    ),
    bug(
        "drafting is free in the controller's sum",
        CONTROL,
        "n * each + self.times(n + 1)",
        "self.times(n + 1)",
        "engine/control",
    ),
    bug(
        "a pass over the drafts is timed as one over as many tokens",
        CONTROL,
        "self.times.observe(len(drafted) + 1,",
        "self.times.observe(max(1, len(drafted)),",
        "engine/control",
    ),
    bug(
        "what looks worse is never tried",
        CONTROL,
        "if loss <= self._to_spend:",
        "if False:",
        "engine/control",
    ),
    bug(
        "what looks worse is tried whatever it costs",
        CONTROL,
        "if loss <= self._to_spend:",
        "if True:",
        "engine/control",
    ),
    bug(
        "a match counts whatever its length",
        CONTROL,
        "match = min(copies[i].match, 8) if i in copies else 0",
        "match = 1 if i in copies else 0",
        "engine/control",
    ),
    bug(
        "one generation's text teaches the next",
        CONTROL,
        "        assert isinstance(fresh, Controller)\n        fresh._forget()\n",
        "        assert isinstance(fresh, Controller)\n",
        "engine/control",
    ),
]
