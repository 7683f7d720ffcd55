"""The figures of a layer as polynomials of batch and sequence length, fitted to the samples of the runs."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

TERMS: dict[str, Any] = {
    "constant": lambda b, s: 1,
    "sequence": lambda b, s: b,
    "token": lambda b, s: b * s,
    "token_pair": lambda b, s: b * s * s,
    "length": lambda b, s: s,
    "length_pair": lambda b, s: s * s,
}
"""Term of a polynomial -> its value at a batch and a sequence length."""


def fit(name: str, samples: dict[tuple[int, int], int]) -> dict[str, Any]:
    """Return the polynomial through the samples of one figure. `exact`: whether all samples lie on it."""
    terms = ["constant", "sequence", "token", "token_pair"]
    if len({size[0] for size in samples}) == 1:
        terms.remove("sequence")
    if name == "shared_bytes":
        terms = ["token", "token_pair", "length", "length_pair"]
    elif name.endswith("kernels"):
        # A batch of one needs fewer copies. All other batches have equal numbers of kernels.
        terms = ["constant", "length"]
        samples = {size: value for size, value in samples.items() if size[0] > 1} or samples
    polynomial, exact = _fit_terms(terms, samples)
    batch_one = {size: value for size, value in samples.items() if size[0] == 1}
    larger = {size: value for size, value in samples.items() if size[0] != 1}
    if exact or not batch_one or not larger:
        return {**polynomial, "exact": exact, "runs": len(samples)}
    # A batch of one needs fewer copies, so it has its own polynomial. The other batches share some of its terms.
    single = fit(name, batch_one)
    rest = {
        size: value - sum(c * TERMS[t](*size) for t, c in single.items() if t in ("constant", "token_pair"))
        for size, value in larger.items()
    }
    tokens, exact = _fit_terms(["token"], rest)
    if not exact:
        tokens, _ = _fit_terms(["constant", "token"], rest)
    constants: dict[str, Any] = {term: single[term] for term in ("constant", "token_pair") if term in single}
    constants["constant"] = constants.get("constant", 0) + tokens.pop("constant", 0)
    return {**constants, **tokens, "exact": exact, "runs": len(samples), "batch_one": single}


def _fit_terms(terms: list[str], samples: dict[tuple[int, int], Any]) -> tuple[dict[str, Any], bool]:
    rows = [
        [*(Fraction(TERMS[term](*size)) for term in terms), Fraction(value)] for size, value in sorted(samples.items())
    ]
    solution = _solve([row[:] for row in rows], len(terms))
    exact = all(sum(c * x for c, x in zip(solution, row)) == row[-1] for row in rows)
    return {term: _plain(value) for term, value in zip(terms, solution) if value}, exact


def _plain(value: Fraction) -> int | float:
    return int(value) if value.denominator == 1 else float(value)


def _solve(rows: list[list[Fraction]], unknowns: int) -> list[Fraction]:
    """Return a solution of the independent rows. Unknowns that the rows do not determine are 0."""
    pivots: list[int] = []
    used = 0
    for column in reversed(range(unknowns)) if len(rows) < unknowns else range(unknowns):
        pivot = next((i for i in range(used, len(rows)) if rows[i][column]), None)
        if pivot is None:
            continue
        rows[used], rows[pivot] = rows[pivot], rows[used]
        head = rows[used][column]
        rows[used] = [value / head for value in rows[used]]
        for i, row in enumerate(rows):
            if i != used and row[column]:
                factor = row[column]
                rows[i] = [value - factor * other for value, other in zip(row, rows[used])]
        pivots.append(column)
        used += 1
    solution = [Fraction(0)] * unknowns
    for position, column in enumerate(pivots):
        solution[column] = rows[position][-1]
    return solution
