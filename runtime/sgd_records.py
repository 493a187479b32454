"""What runs of SGD record, and the words they record by default."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import xarray as xr

from tracewords.errors import ModelError
from tracewords.runtime.free import canonical, parse_word
from tracewords.runtime.store import provenance

MANY = 10**6


class Alphabet:
    """The letters of a solver's words, and which of them may stand alone.

    Parameters
    ----------
    solver : solver module
        Without WORD_LETTERS and ADJOINT, all letters are symmetric.
    """

    def __init__(self, solver: Any) -> None:
        self.solver = solver
        self.letters: list[str] = list(getattr(solver, "WORD_LETTERS", solver.LETTERS))
        self.adjoint: dict[str, str] = {k: getattr(solver, "ADJOINT", {}).get(k, k) for k in self.letters}
        self.index = {letter: k for k, letter in enumerate(self.letters)}
        self.values = [k for k in solver.LETTERS if solver.KINDS[k] == "values"]
        rectangular = {*self.values, *(k + "'" for k in self.values)}
        self.square = [k for k in self.letters if k not in rectangular]
        transposes = [self.index[self.adjoint[k]] for k in self.letters]
        self.table = bytes(transposes) + bytes(range(len(transposes), 256))

    def transpose(self, letter: str) -> str:
        """The transpose of a square letter, as words write it."""
        return self.adjoint.get(letter, letter)

    def pair(self, first: str, second: str) -> str:
        """The word of ``tr(A B')``."""
        if first in self.values:
            return f"{first}.{second}'"
        return f"{first}.{self.transpose(second)}"

    def up_to(self, order: int) -> list[str]:
        """One word of each class up to this length; of the rectangular letters the pairs only."""
        if len(self.square) ** order > MANY:
            raise ModelError("order", order, f"less than {MANY} products to sort through; name some by `words`")
        square = [self.index[k] for k in self.square]
        found = []
        for n in range(1, order + 1):
            words = sorted({canonical(bytes(word), self.table) for word in product(square, repeat=n)})
            found += [".".join(self.letters[k] for k in word) for word in words]
            found += self._pairs() if n == 2 else []
        return found

    def _pairs(self) -> list[str]:
        ratio = self.solver.RANK_RATIOS
        pairs = ((k, l) for n, k in enumerate(self.values) for l in self.values[n:])
        return [self.pair(k, l) for k, l in pairs if ratio[k] == ratio[l]]

    def default(self) -> list[str]:
        """The traces of the letters, and the order parameters."""
        return list(dict.fromkeys([*self.up_to(1), *self.solver.ORDER_PARAMETERS]))

    def checked(self, words: Sequence[str]) -> list[str]:
        """The words given, each once, if they are closed paths: d x d_v of values after what ends in d."""
        for word in words:
            parse_word(word, self.index)
            names = [k for k in word.split(".") if k != "1"]
            ends = [k in self.values for k in names]  # whether the columns are the d_v of values
            starts = [k not in self.square and k not in self.values for k in names]
            if ends[-1:] + ends[:-1] != starts:
                raise ModelError("word", word, "a closed path: V followed by some V', and V' after some V")
        return list(dict.fromkeys(words))


class Records:
    """What runs of SGD recorded: NaN wherever a run did not get to.

    Parameters
    ----------
    plan : Plan
        What was asked for, see `sgd`.
    """

    def __init__(self, plan: Any) -> None:
        self.plan, solver = plan, plan.solver
        runs, times = len(plan.runs), len(plan.steps)
        alphabet = Alphabet(solver)
        scores = [k for k in solver.LETTERS if solver.KINDS[k] != "values"]
        self.scores = [k for k in scores if k in solver.STUDENTS]
        teachers = [k for k in scores if k not in solver.STUDENTS]
        self.pair = (self.scores[0], teachers[0]) if self.scores and teachers else None
        a, b = self.pair or ("", "")
        self.overlap_words = [alphabet.pair(k, l) for k, l in ((a, a), (a, b), (b, b))] if self.pair else []
        self.words = list(dict.fromkeys([*plan.words, *alphabet.default(), *self.overlap_words]))
        self.moment = np.full((runs, times, len(self.words)), np.nan)
        self.mean = np.full((runs, times, len(self.scores)), np.nan)
        self.loss, self.loss_sem, self.overlap = np.full((3, runs, times), np.nan)
        self.status = ["interrupted"] * runs
        self.diverged_step, self.reason = [-1] * runs, ""

    def overlap_of(self, values: Mapping[str, float]) -> float:
        """p_12 / sqrt(p_11 p_22), p_kl = q_kl - t_k t_l, of the first student and the first teacher."""
        if self.pair is None:
            return math.nan
        (a, b), q = self.pair, [values[word] for word in self.overlap_words]
        p = [x - values[k] * values[l] for x, (k, l) in zip(q, ((a, a), (a, b), (b, b)), strict=True)]
        return p[1] / math.sqrt(p[0] * p[2]) if p[0] * p[2] > 0 else math.nan

    def dataset(self, wall: float) -> xr.Dataset:
        """All runs, with dimensions run, time, word, letter."""
        plan, solver = self.plan, self.plan.solver
        columns = [self.words.index(w) for w in plan.words]
        steps, n = np.array(plan.steps, np.int64), len(plan.runs)
        overlap = "p_12 / sqrt(p_11 p_22), p_kl = tr(k l') - tr(k) tr(l), (1, 2) = " + str(self.pair)
        note = "long_name"
        variables: dict[str, Any] = {
            "moment": (("run", "time", "word"), self.moment[..., columns], {note: "trace moments"}),
            "loss": (("run", "time"), self.loss, {note: "batch loss, mean since the record before"}),
            "loss_sem": (("run", "time"), self.loss_sem, {note: "standard error of loss, over samples"}),
            "overlap": (("run", "time"), self.overlap, {note: overlap}),
            "status": ("run", np.array(self.status), {"values": "ok, stopped, diverged, interrupted"}),
            "diverged_step": ("run", np.array(self.diverged_step, np.int64), {note: "-1 if none"}),
        }
        coords: dict[str, Any] = {
            "run": ("run", np.array(plan.runs, np.int64)),
            "time": ("time", steps * plan.unit, {"units": solver.TIME_UNIT, "long_name": solver.TIME}),
            "word": ("word", np.array(plan.words)),
            "step": ("time", steps, {note: "steps of SGD, n"}),
            "seed": ("run", np.full(n, plan.seed), {note: "of SeedSequence(seed, spawn_key=(run,))"}),
        }
        if self.scores:
            # not "mean": that name says that a Dataset holds means over runs
            label = {note: "m_k = d^{-1/2} Tr S_k of the students"}
            variables["score_mean"] = (("run", "time", "letter"), self.mean, label)
            coords["letter"] = ("letter", np.array(self.scores))
        facts = {"kappa": plan.alpha * plan.d / plan.batch, "gamma": plan.params.get("gamma", 0.0)}
        facts |= {name: getattr(plan, name) for name in ("alpha", "batch", "d", "dtype", "seed")}
        facts |= {f"parameter_{name}": value for name, value in plan.params.items() if name != "kappa"}
        facts["status"] = next((s for s in ("interrupted", "diverged") if s in self.status), "ok")
        return xr.Dataset(variables, coords, provenance(solver, **facts, wall_seconds=wall))
